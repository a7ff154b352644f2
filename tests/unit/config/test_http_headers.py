"""Extra headers of a webhook: how they are written, what is refused, and that no value is ever shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.config.errors import REDACTED
from app.config.secrets import Sealer
from app.config.target_settings import BadSettings, changed_lines, load, merged, parse_line, redacted, texts, to_line
from app.config.targets.webhook import WebhookSettings
from app.manifest.document import schema
from app.manifest.plan import _keep_secrets

ENDPOINT = {"endpoint": "http://h/"}
KEY = "4Zc0NqS8Rk0l3yWc9mJ1bq5o2u7t6v8x9yAzBxCdEfg="


def headers(value: object, environ: Mapping[str, str] | None = None, **more: str) -> tuple[tuple[str, str], ...]:
    settings = load("webhook", ENDPOINT | more | {"headers": value}, environ or {})
    assert isinstance(settings, WebhookSettings)
    return settings.headers


def refusal(value: object, environ: Mapping[str, str] | None = None, **more: str) -> str:
    with pytest.raises(BadSettings) as caught:
        headers(value, environ, **more)
    (problem,) = caught.value.problems
    assert problem.key == "headers"
    return str(problem)


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        ("", ()),
        ("{}", ()),
        ("X-Tenant: a", (("X-Tenant", "a"),)),
        ("X-Tenant:a", (("X-Tenant", "a"),)),
        (" X-Tenant : a ; x-b: c: d; ", (("X-Tenant", "a"), ("x-b", "c: d"))),
        ("Accept: text/html, */*;  !#$%&'*+.^_`|~-9: v", (("Accept", "text/html, */*"), ("!#$%&'*+.^_`|~-9", "v"))),
        ('{"Cookie": "a=1; b=2", "X-B": " c "}', (("Cookie", "a=1; b=2"), ("X-B", "c"))),
        ({"Cookie": "a=1; b=2"}, (("Cookie", "a=1; b=2"),)),
        ("User-Agent: mine; Authorization: Digest x", (("User-Agent", "mine"), ("Authorization", "Digest x"))),
    ],
)
def test_headers_are_pairs_or_json(value: object, pairs: tuple[tuple[str, str], ...]) -> None:
    assert headers(value) == pairs


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("X-Tenant", "is not Name: value"),
        ("Cookie: a=1; b=2", "(number 2) that is not Name: value"),
        ("X-A: 1;X-B: 2", "has a ; without a space after it"),
        (": v", "whose name is not a token"),
        ("X A: v", "whose name is not a token"),
        ("X-Ä: v", "whose name is not a token"),
        (f"{'x' * 129}: v", "whose name is not a token"),
        ("X-A:", "without a value"),
        ("X-A: 1; x-a: 2", "names a header twice (number 2)"),
        ('{"X-A": "1", "X-A": "2"}', "names a header twice (number 2)"),
        ("X-A: 1\r\nX-Evil: 2", "with a line break"),
        ('{"X-A": "1\\r\\nX-Evil: 2"}', "with a line break"),
        ('{"X-A\\r\\nX-Evil": "2"}', "whose name is not a token"),
        ('{"X-A": "\\u0000"}', "a control character"),
        ("X-A: é", "outside ASCII"),
        ('{"X-A": "\\ud800"}', "outside ASCII"),
        ('{"X-A": 1}', "has a value that is not text"),
        ('{"X-A": {"b": "c"}}', "has a value that is not text"),
        ('{"X-A": "1"', "is not JSON"),
        ('{"X-A": ' * 7_000, "is not JSON"),
        ("; ".join(f"X-{number}: v" for number in range(51)), "has more than 50 headers"),
        ("X-A: " + "v" * 8200, "8192 characters"),
    ],
)
def test_what_no_header_can_be_is_refused_without_repeating_it(value: object, why: str) -> None:
    assert why in refusal(value)


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Content-Type", "CONTENT-ENCODING", "Connection", "Keep-Alive", "Proxy-Authorization",
     "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "webhook-id", "Webhook-Signature",
     "traceparent", "tracestate", "ce-id", "CE-Anything"],
)  # fmt: skip
def test_headers_that_are_not_the_users_are_refused_by_name(name: str) -> None:
    assert name.lower() in refusal(f"X-A: 1; {name}: v")


def test_json_values_that_are_no_objects_of_texts_are_refused() -> None:
    for value in ({"X-A": 1}, ["X-A: 1"], True):
        assert "JSON" in refusal(value)


def test_a_second_authorization_is_refused() -> None:
    assert "auth_token is set" in refusal("authorization: x", auth_token="t")
    assert "endpoint has a login" in refusal("Authorization: x", endpoint="http://me:pw@h/")
    assert headers("X-A: x", auth_token="t") == (("X-A", "x"),)


def test_no_value_is_shown_and_every_name_and_reference_is() -> None:
    secret = "hunter2"
    for text, shown in {
        f"X-Tenant: {secret}; X-Key: env:HOOK_KEY": f"X-Tenant: {REDACTED}; X-Key: env:HOOK_KEY",
        f'{{"X-Tenant": "{secret}; b"}}': f'{{"X-Tenant": "{REDACTED}"}}',
        "env:HOOK_HEADERS": "env:HOOK_HEADERS",
        secret: REDACTED,
        f"X-A: a;{secret}: b": REDACTED,
        f'{{"X-A": "{secret}"': REDACTED,
        f"X A: {secret}": REDACTED,
        f"env:{secret}-{secret}": f"env: {REDACTED}",  # not a reference: it reads as a header named env
    }.items():
        assert redacted("webhook", {"headers": text}) == {"headers": shown}
        assert secret not in to_line(TargetId("webhook", "a"), ENDPOINT | {"headers": text})
        assert secret not in str(changed_lines("webhook", {}, {"headers": text}))
        assert secret not in str(Sealer([KEY]).seal_all(WebhookSettings, {"headers": text}))
    settings = load("webhook", ENDPOINT | {"headers": f"X-Tenant: {secret}"})
    assert secret not in repr(settings)
    for wrong in (f"X-A: {secret}\x01", f"Host: {secret}", secret, f"X-A: {secret}; X-A: b", f"X-A: {secret};b"):
        assert secret not in refusal(wrong)


def test_values_may_be_references_and_so_may_the_whole(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from;a file\n")
    environ = {"HOOK_KEY": "from a variable", "HOOK_HEADERS": "X-A: 1; X-B: 2", "BUCKETWIRE_SECRETS_DIR": str(tmp_path)}
    value = f"X-Tenant: a; X-Key: env:HOOK_KEY; X-File: file:{tmp_path}/key"
    assert headers(value, environ) == (("X-Tenant", "a"), ("X-Key", "from a variable"), ("X-File", "from;a file"))
    assert headers("env:HOOK_HEADERS", environ) == (("X-A", "1"), ("X-B", "2"))
    assert "the variable NONE is empty or missing" in refusal("X-A: env:NONE", environ)
    assert "refers to a variable of the service itself" in refusal("X-A: env:BUCKETWIRE_TOKEN", environ)
    assert "outside the folder of secrets" in refusal("X-A: file:/etc/passwd", environ)
    for wrong in ("X-A: env:not-a-name", "env:not-a-name", "file:key"):
        assert "looks like a reference" in refusal(wrong, environ)
    (tmp_path / "lines").write_text("two\nlines\n")
    assert "with a line break" in refusal(f"X-A: file:{tmp_path}/lines", environ)


def test_a_value_that_comes_back_as_it_was_shown_is_kept_and_another_is_changed() -> None:
    stored = ENDPOINT | {"headers": "X-Tenant: a; X-Key: hunter2"}

    def changed(sent: object) -> str:
        result = merged("webhook", stored, {"headers": sent})
        kept = _keep_secrets(WebhookSettings, stored, ENDPOINT | texts("webhook", {"headers": sent}))
        assert kept == result
        return result["headers"]

    assert changed(redacted("webhook", stored)["headers"]) == stored["headers"]
    assert changed(f"X-Tenant: b; x-key: {REDACTED}") == "X-Tenant: b; x-key: hunter2"
    assert changed({"X-Key": REDACTED, "X-New": "1"}) == '{"X-Key": "hunter2", "X-New": "1"}'
    assert changed("X-Tenant: b") == "X-Tenant: b"
    with pytest.raises(BadSettings, match="placeholder of a secret"):
        load("webhook", stored | {"headers": changed(f"X-Other: {REDACTED}")})
    stored["headers"] = json.dumps({"X-Key": "a;b"})
    assert changed(f"X-Key: {REDACTED}; X-New: 1") == '{"X-Key": "a;b", "X-New": "1"}'


@pytest.mark.parametrize("value", ["X-Tenant: a; X-B: b c=d", '{"Cookie": "a=1; b=2"}', "X-A: env:B"])
def test_a_line_of_text_holds_them_and_is_read_back(value: str) -> None:
    line = to_line(TargetId("webhook", "a"), ENDPOINT | {"headers": value}, redact=False)
    assert parse_line(line)[1]["headers"] == value


def test_the_schema_of_the_declaration_takes_a_mapping() -> None:
    targets = schema()["properties"]["targets"]["patternProperties"]
    (webhook,) = (each for pattern, each in targets.items() if pattern.startswith("^webhook"))
    assert webhook["properties"]["headers"]["type"][-1] == "object"
    assert webhook["properties"]["endpoint"]["type"] == ["string", "number", "boolean", "null"]
