"""The event model, and the parsers that turn every frontend's body into events. Standard library and orjson only."""
