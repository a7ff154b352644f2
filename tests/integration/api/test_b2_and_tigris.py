"""Events of Backblaze B2 and Tigris over HTTP: both take 200 for success alone, and B2 signs its bodies."""

from __future__ import annotations

import hashlib
import hmac
import json

from app.events.frontends.clouds import B2_SIGNATURE_HEADER
from app.outbox.engine.database import Database
from tests.integration.api.conftest import Api, Start, keys, problem, url_of
from tests.support.reported_senders import reports

SECRETS = ("MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0", "fw4AXzn5YE4vBGbBFbCzZHwHTBWzyqXZ")


def body_of(case: str) -> bytes:
    """A body as it is documented, spaced as no writer of JSON of ours does."""
    return json.dumps(next(report for report in reports() if report["case"] == case)["body"], indent=1).encode()


def signature(body: bytes, secret: str = SECRETS[0]) -> str:
    """As in Backblaze's guide: `v1=` and the HMAC-SHA256 of the body by the rule's secret, in hexadecimal."""
    return "v1=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def test_what_b2_has_not_signed_is_refused_where_its_secrets_are_set(log: Database, start: Start) -> None:
    api = start(url_of(log), b2_signing_secrets=", ".join(SECRETS))
    body, test, tigris = body_of("Backblaze B2"), body_of("Backblaze B2, a test"), body_of("Tigris")

    def post(content: bytes, signed: str) -> int:
        return api.post(content, **{B2_SIGNATURE_HEADER: signed}).status_code

    refused = problem(api.post(body), 401, "unauthorized")
    assert B2_SIGNATURE_HEADER in refused["detail"]
    assert "set a signing secret" in refused["detail"]
    right = signature(body)
    for given in (signature(body, "another"), signature(body + b" "), right[3:], right.replace("v1", "v2"), "v1="):
        response = api.post(body, **{B2_SIGNATURE_HEADER: given})
        assert "BUCKETWIRE_B2_SIGNING_SECRETS" in problem(response, 401, "unauthorized")["detail"], given
    assert post(body.replace(b"smiley", b"frowny"), right) == 401
    assert post(b"[" + tigris + b"," + body + b"]", "") == 401
    assert keys(log) == []
    assert post(body, signature(body, SECRETS[1])) == post(body, right) == 200
    assert keys(log) == ["images/raw/smiley.png"]
    assert api.post(test).status_code == 202  # it records nothing
    assert api.post(tigris).status_code == 200
    assert not any(secret in api.log.read_text() for secret in SECRETS)


def test_b2_and_tigris_get_a_200_because_they_repeat_what_gets_a_202(plain: Api, plain_log: Database) -> None:
    for case in ("Backblaze B2", "Backblaze B2, a hide marker and removals", "Tigris"):
        answer = plain.post(body_of(case))
        assert (answer.status_code, answer.json()["repeated"]) == (200, 0), case
    test = plain.post(body_of("Backblaze B2, a test"), **{B2_SIGNATURE_HEADER: "v1=00"})
    assert (test.status_code, test.json()["ignored"]) == (200, 1)
    assert len(keys(plain_log)) == 7
    assert plain.post(body_of("Backblaze B2")).json()["repeated"] == 1
