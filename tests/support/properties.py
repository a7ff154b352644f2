"""How Hypothesis is run here: by count alone, as a busy machine must not fail a property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_USUAL = 100


def load_profile() -> None:
    """No deadlines. The profile `check` tries a tenth of the examples; choose it by `--hypothesis-profile`."""
    settings.register_profile("usual", max_examples=_USUAL, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("check", settings.get_profile("usual"), max_examples=_USUAL // 10)
    settings.load_profile("usual")


def thorough(examples: int) -> settings:
    """More examples than usual, for properties that carry a promise; in proportion, where a profile has fewer."""
    return settings(max_examples=max(1, examples * settings.default.max_examples // _USUAL))
