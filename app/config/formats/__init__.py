"""The forms in which settings come in and go out: environment, notify_ lines, config.json, the reference page."""
