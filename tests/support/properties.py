"""How Hypothesis is run here: by count alone, as a busy machine must not fail a property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_ALL = 100


def load_profile() -> None:
    """No deadlines. `make test-all` tries `all` examples, `make test` and others a quarter, `make check` a tenth.

    Another profile than `usual` is chosen by `--hypothesis-profile`.
    """
    settings.register_profile("all", max_examples=_ALL, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("usual", settings.get_profile("all"), max_examples=_ALL // 4)
    settings.register_profile("check", settings.get_profile("all"), max_examples=_ALL // 10)
    settings.load_profile("usual")


def thorough(examples: int) -> settings:
    """So many examples in the profile `all`, for what needs more or fewer than others; in proportion in the others."""
    return settings(max_examples=max(1, examples * settings.default.max_examples // _ALL))


def times(usual: int, everything: int) -> int:
    """How often something is done: `usual` in `make test`, `everything` in `make test-all`."""
    return everything if settings.default.max_examples >= _ALL else usual
