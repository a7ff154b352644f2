"""What the outbox knows of its events, asked of a service somewhere else: histories, dead letters, replays."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.cli.api_client import ApiClient
from app.cli_common.param_types import milliseconds
from app.config.arn import TargetId, parse_arn
from app.events.trace import trace_of
from app.outbox.delivery.dead_letters import DeadLetter, Filter
from app.outbox.delivery.object_history import DeliveryState, RecordedEvent
from app.outbox.delivery.replays import Replay, Selection, UnknownReplay
from app.outbox.tables import NEVER

_PAGE = 1000  # the most that the API gives at once


def object_history(remote: ApiClient, bucket: str, key: str, *, limit: int) -> list[RecordedEvent]:
    """The object's last `limit` events, oldest first."""
    found = remote.ask("GET", "/v1/events", params={"bucket": bucket, "key": key, "limit": limit})
    return [_recorded(each) for each in found["events"]]


_WHOLE = 10_000  # parts of a replay: the API tells its progress with four digits


class RemoteDeadLetters:
    """As `DeadLetters`. Every method raises `CommandError` in the service's own words."""

    def __init__(self, remote: ApiClient) -> None:
        self._remote = remote

    def list(self, which: Filter, *, limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """The first `limit` with a number above `after`, in order of number; asked for page by page."""
        params = _chosen(which)
        if which.ids:
            params["ids"] = ",".join(map(str, which.ids))
        found: list[DeadLetter] = []
        while len(found) < limit:
            page = {"limit": min(_PAGE, limit - len(found)), "after": after}
            answer = self._remote.ask("GET", "/v1/dead-letters", params=params | page)
            found += map(_letter, answer["dead_letters"])
            after = answer["next"]
            if after is None:
                break
        return found

    def replay(self, which: Filter) -> int:
        """Send them on their way again; says how many."""
        return int(self._remote.ask("POST", "/v1/dead-letters/replay", json=_body(which))["replayed"])

    def purge(self, which: Filter) -> int:
        """Throw them away; says how many."""
        return int(self._remote.ask("POST", "/v1/dead-letters/purge", json=_body(which))["purged"])


class RemoteReplays:
    """As `Replays`. Every method raises `CommandError` in the service's own words."""

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
        given = {"bucket": selection.bucket, "prefix": selection.prefix, "events": list(selection.names)}
        body |= {name: value for name, value in given.items() if value}
        return _replay(self._remote.ask("POST", "/v1/replays", target=target, json=body))

    def cancel(self, replay_id: int) -> Replay:
        """End a replay where it is."""
        return _replay(self._remote.ask("DELETE", f"/v1/replays/{replay_id}"))

    def get(self, replay_id: int) -> Replay:
        """The replay of this number. Raises `UnknownReplay`."""
        found = next((each for each in self.list() if each.replay_id == replay_id), None)
        if found is None:
            raise UnknownReplay(replay_id)
        return found

    def list(self) -> Sequence[Replay]:
        """Every replay, newest first."""
        return [_replay(each) for each in self._remote.ask("GET", "/v1/replays")["replays"]]


def _chosen(which: Filter) -> dict[str, Any]:
    """The filter's members that say something, but for the numbers."""
    found: dict[str, Any] = {"bucket": which.bucket, "prefix": which.prefix, "reason": which.reason}
    found |= {
        "target": str(which.target or ""),
        "since": which.since,
        "before": which.before if which.before < NEVER else 0,
    }
    return {name: value for name, value in found.items() if value}


def _body(which: Filter) -> dict[str, Any]:
    found = _chosen(which) | ({"ids": list(which.ids)} if which.ids else {})
    return found or {"all": True}


def _letter(shown: dict[str, Any]) -> DeadLetter:
    return DeadLetter(
        letter_id=shown["id"],
        target=parse_arn(shown["target"])[1],
        event_id=shown["event_id"],
        name=shown["name"],
        bucket=shown["bucket"],
        key=shown["key"],
        reason=shown["reason"],
        attempts=shown["attempts"],
        first_tried=milliseconds(shown["first_tried"]),
        last_tried=milliseconds(shown["last_tried"]),
        history=[(milliseconds(each["at"]), each["reason"]) for each in shown["history"]],
        record=orjson.dumps(shown["record"]).decode(),
    )


def _replay(shown: dict[str, Any]) -> Replay:
    before = shown["before"]
    selection = Selection(
        since=milliseconds(shown["since"]),
        before=NEVER if before is None else milliseconds(before),
        bucket=shown["bucket"],
        prefix=shown["prefix"],
        names=tuple(shown["events"]),
    )
    return Replay(
        shown["id"],
        parse_arn(shown["target"])[1],
        selection,
        milliseconds(shown["created_at"]),
        shown["replayed"],
        _WHOLE if shown["finished"] else min(_WHOLE - 1, round(shown["progress"] * _WHOLE)),
        _WHOLE,
        milliseconds(shown["cancelled_at"]),
    )


def _recorded(shown: dict[str, Any]) -> RecordedEvent:
    return RecordedEvent(
        event_id=shown["id"],
        seq=shown["seq"],
        name=shown["name"],
        version=shown["version"],
        time=milliseconds(shown["time"]),
        received_at=milliseconds(shown["received_at"]),
        delivery_states=[
            DeliveryState(parse_arn(each["target"])[1], each["state"], each["reason"])
            for each in shown["delivery_states"]
        ],
        record=orjson.dumps(shown["record"]).decode(),
        trace=trace_of(shown.get("traceparent"), shown.get("tracestate")),
    )
