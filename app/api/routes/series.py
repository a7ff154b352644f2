"""Read the time series of the targets' counters."""

from flask import Blueprint

from app.api.description import answers
from app.api.services import services
from app.api.token_scopes import READ, may_see, needs, require_target
from app.outbox import series
from app.outbox.delivery_times import percentile
from app.outbox.engine.database import now_ms
from app.outbox.series import RESOLUTIONS, read_merged, read_series
from app.resources.declaration import BadMember
from app.resources.target import AllSeries, Sample, Series, SeriesQuery

routes = Blueprint("series", __name__)
_HOUR = 3_600_000  # ms
_MAX_SAMPLES = 50_000  # in a response


@routes.get("/v1/series")
@needs(READ, limited=True)
@answers(AllSeries, "the samples", query=SeriesQuery)
def show(query: SeriesQuery) -> AllSeries:
    """Return the samples of every target's counters, or of one target's, oldest first.

    Every 10 seconds for a day, every 5 minutes for 90 days. At most 50,000 samples; a request for more is refused.
    """
    if query.step not in RESOLUTIONS:
        raise BadMember("step", "is not kept", f"give {' or '.join(map(str, RESOLUTIONS))} (seconds)")
    since = now_ms() - _HOUR if query.since is None else query.since
    registry, target = services().registry, query.target
    if target is not None:
        require_target(target)
        targets = [registry.target(target)]
    else:
        targets = [stored for stored in registry.targets() if may_see(stored.target)]
    if query.width and target is None:
        raise BadMember("width", "merges the samples of one target", "give a target too")
    ids = [stored.row_id for stored in targets]
    database, resolution, most = services().database, RESOLUTIONS[query.step], _MAX_SAMPLES + 1
    if query.width > query.step:
        stored_samples = read_merged(
            database, ids[0], resolution, width=query.width, since=since, before=query.before, limit=most
        )
    else:
        stored_samples = read_series(database, ids, resolution, since=since, before=query.before, limit=most)
    if len(stored_samples) > _MAX_SAMPLES:
        hint = "give a shorter time, one target, or step=300"
        raise BadMember("since", f"selects more than {_MAX_SAMPLES} samples", hint)
    samples: dict[int, list[Sample]] = {row_id: [] for row_id in ids}
    for sample in stored_samples:
        samples[sample.target_id].append(_sample(sample))
    region = services().settings.region
    shown = [Series(target=stored.target.arn(region), samples=samples[stored.row_id]) for stored in targets]
    return AllSeries(step=query.step, series=shown)


def _sample(sample: series.Sample) -> Sample:
    return Sample.of(
        sample,
        oldest_age=_seconds(sample.oldest_age),
        p50=_seconds(percentile(sample.times, 0.5)),
        p99=_seconds(percentile(sample.times, 0.99)),
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
