"""Where the events of a call go, by a template of the settings."""

from collections.abc import Iterable, Sequence

from app.config.errors import BadValue
from app.config.fields.templates import Place
from workers.delivery.outcomes import Rejected
from workers.targets.batch import Batch

NOWHERE = ""  # no place is an empty text


def places(template: Place, batch: Batch) -> list[str]:
    """Return the place of each event of a batch; reject those that have none, which is `NOWHERE`."""
    if template.fixed is not None:
        return [template.fixed] * len(batch.events)
    chosen = []
    for index, event in enumerate(batch.events):
        try:
            chosen.append(template.of(event))
        except BadValue as error:
            batch.settle(index, Rejected(error.problem))
            chosen.append(NOWHERE)
    return chosen


def grouped(indexes: Iterable[int], places: Sequence[str]) -> dict[str, list[int]]:
    """Return the indexes by their places, in the order in which these come."""
    groups: dict[str, list[int]] = {}
    for index in indexes:
        groups.setdefault(places[index], []).append(index)
    return groups
