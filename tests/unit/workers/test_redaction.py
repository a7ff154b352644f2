"""What a target keeps secret is not in what it says, wherever in its settings it stands."""

from __future__ import annotations

import html
import json
import re
import time
import traceback
from collections.abc import Callable, Sequence
from urllib.parse import quote, quote_plus

import pytest

from app.config import target_settings
from app.config.secret_texts import Redaction, SecretTexts
from app.events.model import Event
from tests.support.builders import event
from workers.delivery.outcomes import DELIVERED, Exchange, Failed, HttpMessage, Outcome, Rejected, Unavailable
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.http_pool import http_message
from workers.telemetry.redaction import RedactingTarget, kept

SECRET = "hunter2x"
SIGNING = "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="


class Parrot:
    """Repeats a sentence in every way that a target can."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def open(self) -> None:
        """Never opens."""
        raise TargetUnavailable(self.sentence, 7, pause=True, may_arrive=True)

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:
        """One outcome of each kind."""
        return [DELIVERED, Failed(self.sentence, 3), Rejected(self.sentence), Unavailable(self.sentence, 2, pause=True)]

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("redis", {"address": "h", "key": "k", "password": SECRET}),
        ("webhook", {"endpoint": f"http://me:{SECRET}@h/"}),
        ("webhook", {"endpoint": f"http://h/?n=1&access_token={SECRET}"}),
        ("webhook", {"endpoint": f"http://h/services/T0/{SECRET}/last"}),
        ("webhook", {"endpoint": f"http://h/?k={SECRET}"}),
        ("webhook", {"endpoint": f"https://ntfy.sh/{SECRET}"}),
        ("webhook", {"endpoint": f"http://{SECRET}@h/"}),
        ("webhook", {"endpoint": "http://h/", "auth_token": f"Splunk {SECRET}"}),
        ("webhook", {"endpoint": "http://h/", "headers": f"X-Key: {SECRET}"}),
        ("webhook", {"endpoint": "http://h/", "headers": f"Authorization: Token {SECRET}; X-Tenant: a"}),
        ("webhook", {"endpoint": "http://h/", "signing_secret": f"whsec_{SIGNING}"}),
        ("amqp", {"url": f"amqp://me:{SECRET}@h/", "routing_key": "q"}),
        ("mqtt", {"broker": f"tcp://me:{SECRET}@h", "topic": "t"}),
        ("postgresql", {"connection_string": f"host=h password='{SECRET}'", "table": "t"}),
        ("postgresql", {"connection_string": f"postgresql://me:{SECRET}@h/db", "table": "t"}),
        ("postgresql", {"connection_string": "host=h", "password": SECRET, "table": "t"}),
        ("mysql", {"dsn_string": f"me:{SECRET}@tcp(h)/db", "table": "t"}),
        ("elasticsearch", {"url": f"http://me:{SECRET}@h", "index": "i"}),
        ("kafka", {"brokers": "h", "topic": "t", "sasl": "on", "sasl_username": "me", "sasl_password": SECRET}),
    ],
)
def test_a_secret_that_a_remote_repeats_is_taken_out_and_all_else_stays(type_name: str, values: dict[str, str]) -> None:
    secret = SIGNING if "signing_secret" in values else SECRET
    target = RedactingTarget(Parrot(f"me? not with {secret}, says h"), target_settings.load(type_name, values))
    told = "me? not with *redacted*, says h"
    assert target.deliver([event()] * 4, 1) == [
        DELIVERED, Failed(told, 3), Rejected(told), Unavailable(told, 2, pause=True),
    ]  # fmt: skip
    with pytest.raises(TargetUnavailable) as caught:
        target.open()
    error = caught.value
    assert (error.reason, error.retry_after, error.pause, error.may_arrive) == (told, 7, True, True)
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_defects_trace_does_not_quote_a_secret_and_one_that_quotes_none_stays_as_it_is() -> None:
    class Defective(Parrot):
        def open(self) -> None:
            try:
                raise LookupError(self.sentence)
            except LookupError as error:
                raise ValueError("of a driver") from error

    settings = target_settings.load("redis", {"address": "h", "key": "k", "password": SECRET})
    with pytest.raises(RuntimeError, match="ValueError: of a driver") as caught:
        RedactingTarget(Defective(f"not with {SECRET}"), settings).open()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ValueError, match="of a driver") as plain:
        RedactingTarget(Defective("not at all"), settings).open()
    assert isinstance(plain.value.__cause__, LookupError)


class Refusing(Parrot):
    """Refuses a batch, which it sent in one request."""

    def __init__(self, headers: dict[str, str], body: bytes) -> None:
        super().__init__("")
        self.outcome = Unavailable(
            "no", exchange=Exchange(http_message("POST h", {}, b""), http_message("HTTP 503", headers, body))
        )

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:
        """The outcome of one request with all of the events."""
        return [self.outcome] * len(events)


def answered(headers: dict[str, str], body: bytes, *, token: str = SECRET, events: int = 1) -> list[HttpMessage]:
    """What is kept of an answer to one request with several events."""
    settings = target_settings.load("webhook", {"endpoint": "http://h/", "auth_token": token})
    outcomes = RedactingTarget(Refusing(headers, body), settings).deliver([event()] * events, 1)
    exchanges = [outcome.exchange for outcome in outcomes if isinstance(outcome, Unavailable)]
    return [exchange.response for exchange in exchanges if exchange and exchange.response]


def test_a_large_answer_costs_a_batch_neither_memory_nor_time_of_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 64 KB for each of 500 events, or headers of megabytes, would stop what else the worker does."""
    headers = {f"X-{number}": "y" * 3_000 for number in range(90)}
    message = http_message("HTTP 503", headers, b"<p>" * 30_000)
    assert len(message.body) + sum(map(len, message.headers.values())) < 20_000
    assert message.size == 90_000
    hidden: list[str] = []
    hide = Redaction.hide

    def noted(self: Redaction, text: str) -> str:
        hidden.append(text)
        return hide(self, text)

    monkeypatch.setattr(Redaction, "hide", noted)
    answers = answered({}, b"<p>" * 30_000, events=100)
    assert len(answers) == 100
    assert len(hidden) < 10, "once, and not for each event"


@pytest.mark.parametrize(
    "write",
    [
        lambda secret: json.dumps(secret)[1:-1],
        lambda secret: json.dumps(secret)[1:-1].replace("/", r"\/"),  # as PHP does
        lambda secret: json.dumps(secret)[1:-1].replace("&", r"\u0026").replace("<", r"\u003C"),  # as Go does
        html.escape,
        lambda secret: html.escape(secret).replace("=", "&#61;").replace("+", "&#x2B;").replace("/", "&sol;"),
        lambda secret: "".join(f"&#{ord(letter):04};" if letter in "&/+= <" else letter for letter in secret),
        quote,
        quote_plus,
        lambda secret: quote(secret, safe=""),
        lambda secret: re.sub("%..", lambda match: match[0].lower(), quote(secret, safe="")),
    ],
)
def test_a_secret_is_found_as_json_html_and_urls_write_it(write: Callable[[str], str]) -> None:
    secret = "p/a+b&c<d>e\"f'g\\h%i j=\U0001f511\xe9".lower()
    settings = target_settings.load("redis", {"address": "h", "key": "k", "password": secret})
    assert Redaction(settings).hide(f"<{write(secret)}> %2F \\/ &amp;") == "<*redacted*> %2F \\/ &amp;"
    login = "Basic dXNl/jpw+YXNz=="
    repeated = http_message("HTTP 401", {"X-Login": write(login[6:])}, write(f"{login}, {secret}").encode())
    request = http_message("POST h", {"Authorization": login}, b"")
    answer = kept(Exchange(request, repeated), Redaction(settings).hide).response
    assert answer is not None
    assert answer.headers == {"X-Login": "*redacted*"}
    assert {"dXNl", "YXNz", "p/a", "j="}.isdisjoint(re.split(r"\W", answer.body))
    assert "*redacted*" in answer.body


def test_a_secret_whose_spaces_are_plus_signs_is_found_in_a_text_without_any_other_mark() -> None:
    secrets = SecretTexts(["correct horse battery"])
    assert secrets.hide("password=correct+horse+battery; a+b") == "password=*redacted*; a+b"


@pytest.mark.parametrize(
    "text",
    [
        "\\" * 65_536, "%25" * 20_000, "&amp;" * 13_000, "&#" + "0" * 65_000, r"\u005c" * 9_000,
        "a" * 65_000, "a/" * 30_000, "/" * 20_000 + "&",
    ],
)  # fmt: skip
def test_hostile_text_is_searched_for_hostile_secrets_in_linear_time(text: str) -> None:
    secrets = SecretTexts(
        [
            "\\" * 40 + "x",
            "%25" * 20 + "/",
            "&amp;" * 20 + "<",
            "&" * 40 + "#",
            "a" * 30_000 + "b",
            "a/" * 15_000 + "b",
            "/" * 4_000 + "b",
        ]
    )
    begun = time.process_time()
    secrets.hide(text)
    assert time.process_time() - begun < 5, "backtracking would take years"


def test_of_secrets_that_overlap_nothing_stays() -> None:
    secrets = SecretTexts(["abcd", "bcde", "abc"])
    assert secrets.hide("abcde abcx abc%64e") == "*redacted* *redacted*x *redacted*"


def test_no_part_of_a_secret_is_kept_where_what_is_read_of_an_answer_ends_within_it() -> None:
    token = "".join(f"{number:04}" for number in range(500))
    [answer] = answered({}, token.encode() * 10, token=token)
    assert token[:4] not in answer.body
