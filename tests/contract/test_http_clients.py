"""What reads answers over HTTP beside the targets, at servers that send interim answers, or answers without an end."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable

import pytest

from app.cli.frontend_metrics import NoMetrics
from app.cli_common.api_session import ApiUnavailable
from app.config.sources.bucket import BucketSourceSettings
from app.config.target_settings import load
from app.console.openid_provider import ProviderProblem
from app.listings import s3_client
from app.listings.pages import pages
from spark_jobs.listings.s3_listing import Bucket
from spark_jobs.stores import CannotRead
from tests.services import LOOPBACK
from tests.support.host_of_worker import HostOfWorker
from tests.support.http_readers import CLIENTS, ENTRY, METRICS, READERS, TARGETS
from tests.support.raw_http import Asked, Pieces, RawServer, written

S3 = b"<Answer><Buckets></Buckets>%s</Answer>"


def answer(asked: Asked) -> bytes:
    """What each of them expects."""
    if b"metrics" in asked.head:
        return written(200, METRICS).replace(b"application/json", b"text/plain")
    if b"AWS4-HMAC" in asked.head:
        return written(200, S3 % (ENTRY % b"a")).replace(b"application/json", b"application/xml")
    if b"openid-configuration" in asked.head:
        issuer = re.findall(rb"(?i)host: (\S+)", asked.head)[0].decode()
        names = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
        return written(200, json.dumps(dict.fromkeys(names, f"http://{issuer}")).encode())
    return written(200, json.dumps(TARGETS).encode())


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
def test_an_interim_answer_is_read_past(client: Callable[[int], None]) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    with RawServer(lambda asked: [hints, hints, answer(asked)]) as server:
        client(server.port)
    assert len(server.asked) == 1


@pytest.mark.parametrize("client", READERS.values(), ids=READERS.keys())
def test_a_packed_answer_is_read(client: Callable[[int], None]) -> None:
    def packed(asked: Asked) -> Pieces:
        head, _, body = answer(asked).partition(b"\r\n\r\n")
        sent = written(200, gzip.compress(body), "Content-Encoding: gzip")
        return [sent.replace(b"application/json", b"text/plain") if b"text/plain" in head else sent]

    with RawServer(packed) as server:
        client(server.port)


@pytest.mark.parametrize("client", CLIENTS)
def test_no_login_of_the_host_is_sent(client: str, host_of_worker: HostOfWorker) -> None:
    with RawServer(lambda asked: [answer(asked)]) as server:
        used = host_of_worker.connect("client", name=client, port=server.port)
        used.assert_not_sent(b"".join(asked.head + asked.body for asked in server.asked))
    assert used.outcome == "done"
    others = {path for path in used.opened if "/.aws/" not in path}  # where boto3 looks for what is not set
    assert others == set()


def unpacking(_: Asked) -> Pieces:
    return [written(200, gzip.compress(b" " * (1 << 28), 1), "Content-Encoding: gzip")]


def without_end(_: Asked) -> Pieces:
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", *([b" " * (1 << 20)] * 256)]


def claiming(_: Asked) -> Pieces:
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000000000\r\n\r\n{"]


@pytest.mark.parametrize("hostile", [unpacking, without_end, claiming], ids=lambda hostile: str(hostile.__name__))
@pytest.mark.parametrize("client", READERS.values(), ids=READERS.keys())
def test_an_answer_has_a_limit(client: Callable[[int], None], hostile: Callable[[Asked], Pieces]) -> None:
    errors = (ApiUnavailable, NoMetrics, ProviderProblem, CannotRead)
    pieces = hostile(Asked(0, 0, b"", b""))  # before the client's time runs
    with RawServer(lambda _: pieces) as server, pytest.raises(errors) as raised:
        client(server.port)
    assert re.search("more than [0-9,]+", str(raised.value)), raised.value


def growing(_: Asked) -> Pieces:
    entity = b'<!DOCTYPE a [<!ENTITY e "%s">]>' % (b"x" * 500_000)
    return [written(200, entity + S3 % (ENTRY % (b"&e;" * 90))).replace(b"json", b"xml")]


def refusing_at_length(asked: Asked) -> Pieces:
    return [piece.replace(b" 200 ", b" 403 ") for piece in growing(asked)]


@pytest.mark.parametrize("hostile", [unpacking, without_end, claiming, growing, refusing_at_length])
def test_an_answer_of_s3_has_a_limit(hostile: Callable[[Asked], Pieces]) -> None:
    with RawServer(hostile) as server:
        values = {"endpoint": f"http://{LOOPBACK}:{server.port}", "bucket": "images", "every": "1h"}
        client = s3_client.of_source(load(BucketSourceSettings, values), attempts=1)
        with pytest.raises(s3_client.STORE_ERRORS) as raised:
            list(pages(client, "images", versioned=False))
        client.close()
    assert re.search("more than 16,777,216|declares entities", str(raised.value)), str(raised.value)[:200]


def test_a_listing_is_not_the_one_before() -> None:
    page = b"<ListBucketResult>" + ENTRY.replace(b"%s", b"%d") + b"</ListBucketResult>"

    def twice(asked: Asked) -> Pieces:
        both = [written(200, page % number).replace(b"json", b"xml") for number in (len(server.asked), 0)]
        return [b"".join(both)]

    with RawServer(twice) as server:
        client = Bucket("images", f"http://{LOOPBACK}:{server.port}", login=("a", "b", None)).client()
        keys = [client.list_objects_v2(Bucket="images")["Contents"][0]["Key"] for _ in range(3)]
        client.close()
    assert keys == ["1", "2", "3"]
    assert len({asked.connection for asked in server.asked}) == 3
