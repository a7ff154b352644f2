"""`bucketwire mcp`: a read-only server of the Model Context Protocol over stdin and stdout, for agents.

Each tool reads routes of the API. What a token may not read is said in the answer beside what it may.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, BinaryIO

import click
import orjson

from app.api import Refused
from app.cli.context import Client, CommandContext, event_path, with_api
from app.cli_common import CommandError

_PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # the newest first
_MAX_REQUEST_BYTES, _MAX_ANSWER_BYTES, _MAX_ROWS, _DEFAULT_ROWS = 1 << 20, 256 << 10, 500, 20

Part = Callable[[Client, Mapping[str, Any]], Any]  # reads one thing, by the arguments
_PUT = {"event": "s3:ObjectCreated:Put"}
_TEXT: Mapping[str, Any] = {"type": "string"}
_ROWS = {"type": "integer", "minimum": 1, "maximum": _MAX_ROWS, "description": f"{_DEFAULT_ROWS} unless given"}
_PAGE: Mapping[str, Any] = {"limit": _ROWS, "after": {**_TEXT, "description": "`next` of the page before"}}


class InvalidArgument(Exception):
    """An argument of a tool is missing, unknown or of the wrong type; the message says which."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A question: what it is about, and the parts of its answer by their names."""

    about: str
    parts: Mapping[str, Part]
    arguments: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()

    def described(self, name: str) -> dict[str, Any]:
        """Return what an agent learns of the tool."""
        schema = {"type": "object", "properties": self.arguments, "required": self.required}
        return {"name": name, "description": self.about, "inputSchema": schema, "annotations": {"readOnlyHint": True}}

    def checked(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with the default of `limit`. Raises `InvalidArgument`."""
        for name, value in given.items():
            if name not in self.arguments:
                raise InvalidArgument(f"{name} is no argument; there are {', '.join(self.arguments) or 'none'}")
            if self.arguments[name] is _ROWS:
                if type(value) is not int or not 1 <= value <= _MAX_ROWS:
                    raise InvalidArgument(f"{name} has to be a number from 1 to {_MAX_ROWS}")
            elif not isinstance(value, str):
                raise InvalidArgument(f"{name} has to be a text")
        if missing := [name for name in self.required if not given.get(name)]:
            raise InvalidArgument(f"{' and '.join(missing)} is missing")
        return {**({"limit": _DEFAULT_ROWS} if "limit" in self.arguments else {}), **given}


def _get(path: str, *names: str, **fixed: Any) -> Part:
    """Read a route with the arguments of these names as its query; `prefix=key`: under another name."""
    pairs = [(name.partition("=")[0], name.rpartition("=")[2]) for name in names]
    return lambda api, given: api.get(path, **{name: given.get(argument) for name, argument in pairs}, **fixed)


def _segment(name: str) -> str:
    """Return a part of a path. Raises `InvalidArgument` for one that leads elsewhere."""
    if "/" in name or name in ("", ".", ".."):
        raise InvalidArgument(f"there is no {name!r}")
    return name


def _one_target(api: Client, given: Mapping[str, Any]) -> Any:
    type_name, _, name = given["target"].partition(":")
    return api.get(f"/v1/targets/{_segment(type_name)}/{_segment(name or '_')}")


_WHICH = ("since", "before", "bucket", "prefix", "target")
TOOLS: Mapping[str, Tool] = {
    "why_not_delivered": Tool(
        "Why was this object not delivered? Its last events with their state at each target, the rules that match a "
        "PUT of it with their targets' states, retries and dead letters of keys that begin with it. No event: the "
        "frontend sent none. No rule: no target wants it. A target that is not running (ask for it): its events wait.",
        {"events": _get("/v1/events", "bucket", "key", "limit", brief=True),
         "matching_rules": lambda api, given: api.change(
             "POST", "/v1/rules/match", {name: given[name] for name in ("bucket", "key")} | _PUT),
         "retries": _get("/v1/retries", "bucket", "prefix=key", "limit"),
         "dead_letters": _get("/v1/dead-letters", "bucket", "prefix=key", "limit")},
        {"bucket": _TEXT, "key": {**_TEXT, "description": "not encoded"}, "limit": _ROWS}, ("bucket", "key"),
    ),
    "health": Tool(
        "Is the service well? Its checks, the sums of its counters, and what needs attention.",
        {"status": _get("/v1/status"), "doctor": _get("/v1/doctor"), "processes": _get("/v1/processes")}, {}),
    "targets": Tool(
        "All targets with their state.",
        {"targets": lambda api, _given: [{name: target[name] for name in ("type", "name", "state", "reason")}
                                         for target in api.get("/v1/targets", brief=True)["targets"]]}, {}),
    "target": Tool(
        "One target: its settings without secrets, its state, its counters. Its name is type:name, as in redis:cache.",
        {"target": _one_target}, {"target": _TEXT}, ("target",)),
    "event": Tool(
        "One event with its record, its state at each target, and the attempts.",
        {"event": lambda api, given: api.get(event_path(given["id"]))}, {"id": _TEXT}, ("id",)),
    "search_events": Tool(
        "Search the event log, newest first: times as in 2026-11-21T10:00:00Z, `events` as in s3:ObjectCreated:*.",
        {"events": _get("/v1/events", *_WHICH, "events", "state", "limit", "after")},
        {**dict.fromkeys((*_WHICH, "events", "state"), _TEXT), **_PAGE},
    ),
    "dead_letters": Tool(
        "Events that a target has refused or that were given up, with the reason, and how many of each reason.",
        {"reasons": _get("/v1/dead-letters/reasons", "target"),
         "dead_letters": _get("/v1/dead-letters", *_WHICH, "reason", "limit", "after")},
        {**dict.fromkeys((*_WHICH, "reason"), _TEXT), **_PAGE},
    ),
    "retries": Tool(
        "Events that are retried, with attempts and reasons.",
        {"retries": _get("/v1/retries", "target", "bucket", "prefix", "limit", "after")},
        {**dict.fromkeys(("target", "bucket", "prefix"), _TEXT), **_PAGE}),
    "rules": Tool("Which events go to which target.", {"rules": _get("/v1/rules", "bucket")}, {"bucket": _TEXT}),
    "reconciliations": Tool(
        "Comparisons of targets with their buckets, newest first: the drift that was found.",
        {"reconciliations": _get("/v1/reconciliations", "limit")}, {"limit": _ROWS}),
}  # fmt: skip


@click.command()
@with_api
def mcp(context: CommandContext) -> None:
    """Serve the Model Context Protocol on stdin and stdout, read-only. An agent starts this command."""
    serve(lambda: context.api, sys.stdin.buffer, sys.stdout.buffer)


def serve(api: Callable[[], Client], requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer each line of `requests` with one, until its end; a notification needs none."""
    while line := requests.readline(_MAX_REQUEST_BYTES):
        rest = line
        while len(rest) == _MAX_REQUEST_BYTES and not rest.endswith(b"\n"):  # too long: answered as no JSON
            rest = requests.readline(_MAX_REQUEST_BYTES)
        if line.strip() and (answer := _answer(api, line)) is not None:
            answers.write(orjson.dumps({"jsonrpc": "2.0", **answer}) + b"\n")
            answers.flush()


def _answer(api: Callable[[], Client], line: bytes) -> dict[str, Any] | None:
    try:
        request = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {"id": None, "error": {"code": -32700, "message": "not a line of JSON of at most 1 MiB"}}
    # An id of another kind may be nested more deeply than what can be written.
    is_request = isinstance(request, dict) and isinstance(request.get("id"), str | int | float | None)
    if not is_request or not isinstance(request.get("method"), str):
        return {"id": None, "error": {"code": -32600, "message": "not a request of JSON-RPC"}}
    if "id" not in request:
        return None
    result: dict[str, Any]
    match request["method"], request.get("params") or {}:
        case "initialize", {"protocolVersion": asked, **_others}:
            spoken = asked if asked in _PROTOCOLS else _PROTOCOLS[0]
            server = {"name": "bucketwire", "version": version("bucketwire")}
            result = {"protocolVersion": spoken, "capabilities": {"tools": {}}, "serverInfo": server}
        case "ping", _:
            result = {}
        case "tools/list", _:
            result = {"tools": [tool.described(name) for name, tool in TOOLS.items()]}
        case "tools/call", {"name": str(name), **others} if name in TOOLS:
            result = _call(api, TOOLS[name], others.get("arguments") or {})
        case "initialize" | "tools/call" as method, _:
            return {"id": request["id"], "error": {"code": -32602, "message": f"{method} has wrong parameters"}}
        case method, _:
            return {"id": request["id"], "error": {"code": -32601, "message": f"{method} is not supported"}}
    return {"id": request["id"], "result": result}


def _call(api: Callable[[], Client], tool: Tool, given: Any) -> dict[str, Any]:
    """Return the answer of a tool as JSON; what the API refuses is said in its place."""
    answer, refused = dict[str, Any](), 0
    try:
        arguments = tool.checked(given if isinstance(given, dict) else {"arguments": given})
        for name, part in tool.parts.items():
            try:
                answer[name] = part(api(), arguments)
            except Refused as refusal:
                refused += 1
                answer[name] = {"refused": refusal.status, "reason": "; ".join(refusal.sentences)}
    except (CommandError, InvalidArgument) as error:
        return _content(str(error), is_error=True)
    except Exception as error:  # noqa: BLE001 - as of a command; but an agent does not start this one again
        from app.cli.errors import describe_exception  # noqa: PLC0415 - loads SQLAlchemy, which --url does not need

        return _content(describe_exception(error), is_error=True)
    text = orjson.dumps(answer).decode()
    if (size := len(text.encode())) > _MAX_ANSWER_BYTES:
        return _content(f"the answer has {size} bytes of {_MAX_ANSWER_BYTES}; ask with a smaller limit", is_error=True)
    return _content(text, is_error=refused == len(tool.parts))


def _content(text: str, *, is_error: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}
