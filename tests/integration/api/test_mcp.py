"""An agent asks over the Model Context Protocol, with the protocol's own client, by way of a real API."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import orjson
import pytest

from app.cli.commands.mcp import TOOLS, serve
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.tokens import Tokens
from tests.integration.api.conftest import Api, Start, url_of
from tests.services import until
from tests.support.builders import add_target, event
from tests.support.service_processes import BUCKETWIRE

Call = Callable[..., Awaitable[tuple[bool, Any]]]


def asked(api: Api, token: str, question: Callable[[Call], Awaitable[None]]) -> None:
    """Start the command as an agent does, and ask it."""
    from mcp import Client, StdioServerParameters  # takes a second, in each process that collects the tests

    async def run() -> None:
        environment = {"BUCKETWIRE_URL": api.url, "BUCKETWIRE_TOKEN": token}
        async with Client(StdioServerParameters(command=str(BUCKETWIRE), args=["mcp"], env=environment)) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == TOOLS.keys()
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)

            async def call(name: str, /, **arguments: Any) -> tuple[bool, Any]:
                answer = await client.call_tool(name, arguments)
                [content] = answer.content
                text = content.text  # type: ignore[union-attr]  # every answer is text
                return bool(answer.is_error), json.loads(text) if text.startswith("{") else text

            await question(call)

    anyio.run(run)


@pytest.fixture
def api(log: Database, start: Start) -> Api:
    """An API whose only target is paused and has an event that waits."""
    add_target(log, "audit", bucket="images")
    Log(log).append([[event("a b.txt")]])
    made = start(url_of(log))
    made.client.post("/v1/targets/webhook/audit/pause", json={"reason": "maintenance"}).raise_for_status()
    return made


def test_an_agent_learns_why_an_object_was_not_delivered(api: Api) -> None:
    async def question(call: Call) -> None:
        failed, answer = await call("why_not_delivered", bucket="images", key="a b.txt")
        assert not failed
        [one] = answer["events"]["events"]
        assert [state["state"] for state in one["delivery_states"]] == ["pending"]
        assert answer["matching_rules"]["targets"] == [{"target": "arn:minio:sqs::audit:webhook", "state": "paused"}]
        assert [rule["target"] for rule in answer["matching_rules"]["rules"]] == ["arn:minio:sqs::audit:webhook"]
        assert answer["dead_letters"]["dead_letters"] == answer["retries"]["retries"] == []

        failed, answer = await call("why_not_delivered", bucket="elsewhere", key="a")
        assert (failed, answer["events"]["events"], answer["matching_rules"]["rules"]) == (False, [], [])
        [target] = (await call("targets"))[1]["targets"]
        assert target == {"type": "webhook", "name": "audit", "state": "paused", "reason": "maintenance"}
        assert (await call("event", id=one["id"]))[1]["event"]["record"]["s3"]["object"]["key"] == "a b.txt"

    asked(api, "", question)


@pytest.mark.nightly(
    "every tool on this machine in tests/integration/cli/test_mcp.py; what an agent asks about an object"
)
def test_every_tool_answers_and_what_cannot_be_asked_is_said(api: Api) -> None:
    async def question(call: Call) -> None:
        [found] = (await call("search_events", bucket="images", limit=1))[1]["events"]["events"]
        needed = {"id": found["id"], "target": "webhook:audit", "bucket": "images", "key": "x"}
        for name, tool in TOOLS.items():
            failed, answer = await call(name, **{each: needed[each] for each in tool.required})
            assert (failed, answer.keys()) == (False, tool.parts.keys()), (name, answer)
        assert await call("rules", bukket="x") == (True, "bukket is no argument; there are bucket")
        assert await call("search_events", limit=10_000) == (True, "limit has to be a number from 1 to 500")
        assert await call("search_events", bucket=7) == (True, "bucket has to be a text")
        assert await call("why_not_delivered", bucket="images") == (True, "key is missing")
        for no_id in ("../targets", "stream"):
            refused = f"there is no event {no_id!r}; an id has 32 hexadecimal digits"
            assert await call("event", id=no_id) == (True, refused)
        failed, answer = await call("target", target="webhook:none")
        assert (failed, answer["target"]["refused"]) == (True, 404)

    asked(api, "", question)


def test_what_a_limited_token_may_not_read_is_said_beside_what_it_may(api: Api, log: Database) -> None:
    token = Tokens(log).create("agent", ("read",), buckets=["images"])
    header = {"Authorization": f"Bearer {token}"}
    until(lambda: api.client.get("/v1/targets").status_code == 401, 60)
    until(lambda: all(api.client.get("/v1/targets", headers=header).status_code == 200 for _ in range(8)), 60)

    async def question(call: Call) -> None:
        failed, answer = await call("why_not_delivered", bucket="images", key="a b.txt")
        assert not failed
        assert len(answer["events"]["events"]) == 1
        failed, answer = await call("why_not_delivered", bucket="elsewhere", key="a b.txt")
        assert answer["events"]["refused"] == 403
        failed, answer = await call("search_events")
        assert (failed, answer["events"]["refused"]) == (True, 403)

    asked(api, token, question)


def test_an_answer_that_is_too_long_says_what_to_do(api: Api, log: Database) -> None:
    Log(log).append([[event("long" + "x" * 1000) for _ in range(300)]])

    async def question(call: Call) -> None:
        failed, answer = await call("search_events", limit=300)
        assert failed
        assert answer.endswith("bytes of 262144; ask with a smaller limit")
        assert not (await call("search_events", limit=50))[0]

    asked(api, "", question)


def test_an_api_that_is_away_is_said(api: Api) -> None:
    api.stop()

    async def question(call: Call) -> None:
        failed, answer = await call("targets")
        assert failed
        assert "does not answer" in answer

    asked(api, "", question)


def answered(*lines: bytes) -> list[Any]:
    """What is answered to these lines, which call nothing."""
    out = io.BytesIO()
    serve(lambda: pytest.fail("no call was asked for"), io.BytesIO(b"".join(lines)), out)
    return [orjson.loads(line) for line in out.getvalue().splitlines()]


def test_what_is_no_request_is_answered_with_an_error_and_the_next_one_is_read() -> None:
    ping = b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n'
    pong = {"jsonrpc": "2.0", "id": 7, "result": {}}
    notification = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    for wrong, code in (
        (b"{\n", -32700), (b"7\n", -32600), (b"[]\n", -32600), (b'{"id":1,"method":"none"}\n', -32601),
        (b'{"id":1,"method":"tools/call","params":{"name":"none"}}\n', -32602),
        (b'{"id":1,"method":"initialize","params":[]}\n', -32602), (b"x" * (3 << 20) + b"\n", -32700),
        (b'{"method":"ping","id":' + b"[" * 300 + b"]" * 300 + b"}\n", -32600),
    ):  # fmt: skip
        error, after = answered(wrong, notification, b"\n", ping)
        assert (error["error"]["code"], after) == (code, pong)
    [unfinished] = answered(b"x" * (1 << 20))
    assert unfinished["error"]["code"] == -32700
