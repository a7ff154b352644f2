"""Check the service: `bucketwire doctor` and `GET /v1/doctor` run the same checks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found about a subject: a part of the service, or a target as `type:name`.

    A `problem` stops deliveries or loses events, a `warning` needs somebody to look, a `note` is information. `command`
    has the words of the `bucketwire` command that mends it or shows more.
    """

    subject: str
    grade: str  # ok | note | warning | problem
    text: str
    command: tuple[str, ...] = ()
