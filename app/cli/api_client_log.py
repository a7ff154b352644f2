"""The client of a remote service's event log: object histories, dead letters, replays and the audit log."""

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from app.cli.api_client import ApiClient
from app.cli_common.param_types import milliseconds
from app.config.arn import TargetId, parse_arn
from app.events.trace import trace_of
from app.outbox.audit import Actor, AuditFilter, Entry
from app.outbox.delivery.attempts import Attempt
from app.outbox.delivery.event_states import DeliveryState, RecordedEvent
from app.outbox.delivery.object_history import ObjectHistory
from app.outbox.delivery.replays import Replay, Selection
from app.outbox.delivery.retries import Retry, RetryPage, RetryPlace
from app.outbox.markers import NEVER
from app.resources.dead_letter import DeadLetter, DeadLetterFilter
from app.resources.retry import RetryFilter

_PAGE = 1000  # the API's largest page


def object_history(remote: ApiClient, bucket: str, key: str, *, limit: int, after: int) -> ObjectHistory:
    """Return a page of the object's last `limit` events, oldest first, before the event of the seq `after`."""
    params = {"bucket": bucket, "key": key, "limit": limit, "after": after}
    body = remote.request("GET", "/v1/events", params=params)
    return ObjectHistory([_recorded(event) for event in body["events"]], body["next"])


def find_event(remote: ApiClient, event_id: str) -> RecordedEvent:
    """Return the event of this id with the attempts at it. Raises `CommandError` if the log does not have it."""
    return _recorded(remote.request("GET", f"/v1/events/{event_id}"))


def audit_entries(remote: ApiClient, which: AuditFilter, action: str, *, limit: int) -> list[Entry]:
    """Return the last `limit` entries of the audit log, newest first; requests page by page."""
    params: dict[str, Any] = {"actor": which.actor, "action": action, "resource": which.resource}
    params |= {"since": which.since, "before": which.before if which.before < NEVER else 0}
    params = {name: value for name, value in params.items() if value}
    entries: list[Entry] = []
    after = 0
    while after is not None and len(entries) < limit:
        page = {"limit": min(_PAGE, limit - len(entries)), "after": after}
        answer = remote.request("GET", "/v1/audit", params=params | page)
        entries += map(_entry, answer["entries"])
        after = answer["next"]
    return entries


_WHOLE = 10_000  # parts of a replay: the API reports progress with four decimals


class RemoteDeadLetters:
    """`DeadLetters` of a remote service. Every method raises `CommandError` with the service's message."""

    def __init__(self, remote: ApiClient) -> None:
        self._remote = remote

    def list(self, which: DeadLetterFilter, *, limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """Return the first `limit` with a number above `after`, in order of number; requests page by page."""
        params = _filter_params(which)
        if which.ids:
            params["ids"] = ",".join(map(str, which.ids))
        letters: list[DeadLetter] = []
        while len(letters) < limit:
            page = {"limit": min(_PAGE, limit - len(letters)), "after": after}
            answer = self._remote.request("GET", "/v1/dead-letters", params=params | page)
            letters += map(_letter, answer["dead_letters"])
            after = answer["next"]
            if after is None:
                break
        return letters

    def replay(self, which: DeadLetterFilter) -> int:
        """Queue dead letters for delivery again; return how many."""
        return int(
            self._remote.request("POST", "/v1/dead-letters/replay", json=_explicit(_filter_params(which), which.ids))[
                "replayed"
            ]
        )

    def purge(self, which: DeadLetterFilter) -> int:
        """Delete dead letters; return how many."""
        return int(
            self._remote.request("POST", "/v1/dead-letters/purge", json=_explicit(_filter_params(which), which.ids))[
                "purged"
            ]
        )


class RemoteReplays:
    """`Replays` of a remote service. Every method raises `CommandError` with the service's message."""

    def __init__(self, remote: ApiClient) -> None:
        self._remote = remote

    def begin(self, target: TargetId, selection: Selection) -> Replay:
        """Start delivering the selected events again. Raises `UnknownTarget`."""
        body: dict[str, Any] = {"target": str(target)}
        if selection == Selection():
            body["all"] = True
        if selection.since:
            body["since"] = selection.since
        if selection.before < NEVER:
            body["before"] = selection.before
        filters = {"bucket": selection.bucket, "prefix": selection.prefix, "events": list(selection.names)}
        body |= {name: value for name, value in filters.items() if value}
        return _replay(self._remote.request("POST", "/v1/replays", target=target, json=body))

    def cancel(self, replay_id: int) -> Replay:
        """Cancel a replay at its current position."""
        return _replay(self._remote.request("DELETE", f"/v1/replays/{replay_id}"))

    def get(self, replay_id: int) -> Replay:
        """Return the replay of this number."""
        return _replay(self._remote.request("GET", f"/v1/replays/{replay_id}"))

    def list(self) -> Sequence[Replay]:
        """Return every replay, newest first."""
        return [_replay(replay) for replay in self._remote.request("GET", "/v1/replays")["replays"]]


class RemoteRetries:
    """`Retries` of a remote service. Every method raises `CommandError` with the service's message."""

    def __init__(self, remote: ApiClient) -> None:
        self._remote = remote

    def page(self, which: RetryFilter, *, limit: int = 100, after: RetryPlace | None = None) -> RetryPage:
        """Return up to `limit` retried events."""
        params: dict[str, Any] = _retry_params(which) | {"limit": limit}
        if which.ids:
            params["ids"] = ",".join(which.ids)
        if after is not None:
            params["after"] = ".".join(map(str, after))
        answer = self._remote.request("GET", "/v1/retries", params=params)
        more = answer["next"]
        place = None if more is None else RetryPlace(*map(int, more.split(".")))
        return RetryPage([_retry(body) for body in answer["retries"]], place)

    def try_now(self, which: RetryFilter) -> int:
        """Make retried events due at once; return how many."""
        return int(
            self._remote.request("POST", "/v1/retries/now", json=_explicit(_retry_params(which), which.ids))["due"]
        )

    def give_up(self, which: RetryFilter) -> int:
        """Make dead letters of retried events; return how many."""
        return int(
            self._remote.request("POST", "/v1/retries/give-up", json=_explicit(_retry_params(which), which.ids))[
                "given_up"
            ]
        )


def _retry_params(which: RetryFilter) -> dict[str, Any]:
    params = {"target": str(which.target or ""), "bucket": which.bucket, "prefix": which.prefix}
    return {name: value for name, value in params.items() if value}


def _retry(body: dict[str, Any]) -> Retry:
    return Retry(
        place=RetryPlace(0, 0, milliseconds(body["next_try"]), 0),
        target=parse_arn(body["target"])[1],
        event_id=body["event_id"],
        name=body["name"],
        bucket=body["bucket"],
        key=body["key"],
        attempts=body["attempts"],
        first_tried=milliseconds(body["first_tried"]),
        last_tried=milliseconds(body["last_tried"]),
        history=_history(body),
    )


def _filter_params(which: DeadLetterFilter) -> dict[str, Any]:
    """Return the filter's members that are set, except the numbers."""
    params: dict[str, Any] = {"bucket": which.bucket, "prefix": which.prefix, "reason": which.reason}
    params |= {
        "target": str(which.target or ""),
        "since": which.since,
        "before": which.before if which.before < NEVER else 0,
    }
    return {name: value for name, value in params.items() if value}


def _explicit(params: dict[str, Any], ids: Sequence[object]) -> dict[str, Any]:
    """Return the filter of a change, with `all` if it selects everything."""
    return params | ({"ids": list(ids)} if ids else {}) or {"all": True}


def _history(body: dict[str, Any]) -> list[tuple[int, str]]:
    return [(milliseconds(attempt["at"]), attempt["reason"]) for attempt in body["history"]]


def _letter(body: dict[str, Any]) -> DeadLetter:
    return msgspec.convert(body | {"record": msgspec.Raw(orjson.dumps(body["record"]))}, DeadLetter)


def _replay(body: dict[str, Any]) -> Replay:
    before = body["before"]
    selection = Selection(
        since=milliseconds(body["since"]),
        before=NEVER if before is None else milliseconds(before),
        bucket=body["bucket"],
        prefix=body["prefix"],
        names=tuple(body["events"]),
    )
    return Replay(
        body["id"],
        parse_arn(body["target"])[1],
        selection,
        milliseconds(body["created_at"]),
        body["replayed"],
        _WHOLE if body["finished"] else min(_WHOLE - 1, round(body["progress"] * _WHOLE)),
        _WHOLE,
        milliseconds(body["cancelled_at"]),
    )


def _entry(body: dict[str, Any]) -> Entry:
    actor = Actor(body["actor"], body["address"], body["via"], body["operation"])
    return Entry(body["id"], milliseconds(body["at"]), actor, body["action"], body["resource"], body["details"])


def _attempt(body: dict[str, Any]) -> Attempt:
    return Attempt(
        0, 0, 0, 0, milliseconds(body["at"]), body["outcome"], body["events"], round(body["duration"] * 1000),
        body["attempt"] or 0, body["replay"] or 0, body["reason"],
    )  # fmt: skip


def _recorded(body: dict[str, Any]) -> RecordedEvent:
    return RecordedEvent(
        event_id=body["id"],
        seq=body["seq"],
        name=body["name"],
        version=body["version"],
        time=milliseconds(body["time"]),
        received_at=milliseconds(body["received_at"]),
        delivery_states=[
            DeliveryState(
                parse_arn(state["target"])[1],
                state["state"],
                state["reason"],
                timeline=[_attempt(attempt) for attempt in state.get("timeline", ())],
            )
            for state in body["delivery_states"]
        ],
        record=orjson.dumps(body["record"]).decode(),
        bucket=body["bucket"],
        key=body["key"],
        trace=trace_of(body.get("traceparent"), body.get("tracestate")),
    )
