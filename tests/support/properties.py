"""How Hypothesis is run here: by count alone, as a busy machine must not fail a property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def thorough(examples: int) -> settings:
    """More examples than usual, for properties that carry a promise."""
    return settings(unhurried, max_examples=examples)
