"""Signatures against the examples that AWS has published, and against whoever tampers with them."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.s3.errors import CODES, S3Error
from app.api.s3.signature import EMPTY, MAX_SIGNED_BODY_BYTES, Received, known_keys, read_signed_body, verify
from app.config.settings import S3Key
from tests.support.properties import thorough

KEY = S3Key("aws", frozenset({"admin"}), "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
NOW = datetime(2013, 5, 24, tzinfo=UTC)
STAMP = "20130524T000000Z"
CREDENTIAL = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"


def authorization(signed: str, signature: str) -> str:
    return f"AWS4-HMAC-SHA256 Credential={CREDENTIAL},SignedHeaders={signed},Signature={signature}"


LIFECYCLE = Received(
    "GET",
    "/",
    (("lifecycle", ""),),
    {
        "host": "examplebucket.s3.amazonaws.com",
        "x-amz-content-sha256": EMPTY,
        "x-amz-date": STAMP,
        "authorization": authorization(
            "host;x-amz-content-sha256;x-amz-date", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        ),
    },
)
PRESIGNED = Received(
    "GET",
    "/test.txt",
    (
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", CREDENTIAL),
        ("X-Amz-Date", STAMP),
        ("X-Amz-Expires", "86400"),
        ("X-Amz-SignedHeaders", "host"),
        ("X-Amz-Signature", "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"),
    ),
    {"host": "examplebucket.s3.amazonaws.com"},
)
CHUNKED = Received(
    "PUT",
    "/examplebucket/chunkObject.txt",
    (),
    {
        "host": "s3.amazonaws.com",
        "content-encoding": "aws-chunked",
        "content-length": "66824",
        "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "x-amz-date": STAMP,
        "x-amz-decoded-content-length": "66560",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "authorization": authorization(
            "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;"
            "x-amz-storage-class",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        ),
    },
)
CHUNKS = [
    (b"a" * 65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (b"a" * 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
]


def check(received: Received, *, now: datetime = NOW, region: str = "", key: S3Key = KEY) -> str:
    """The code of the refusal, "" where the signature holds."""
    try:
        verify(received, known_keys([key]), region=region, now=now)
    except S3Error as error:
        return error.code
    return ""


@pytest.mark.parametrize("received", [LIFECYCLE, PRESIGNED, CHUNKED], ids=["header", "presigned", "chunked"])
def test_the_examples_of_aws_hold(received: Received) -> None:
    assert check(received) == ""
    assert check(received, region="us-east-1") == ""


@pytest.mark.parametrize("received", [LIFECYCLE, PRESIGNED, CHUNKED], ids=["header", "presigned", "chunked"])
def test_whatever_of_it_is_changed_it_holds_no_more(received: Received) -> None:
    wrong = "SignatureDoesNotMatch"
    assert check(replace(received, method="DELETE")) == wrong
    assert check(replace(received, path="/other")) == wrong
    assert check(replace(received, query=(*received.query, ("notification", "")))) == wrong
    assert check(replace(received, headers={**received.headers, "host": "example.com"})) == wrong
    assert check(received, key=KEY._replace(secret_key="another secret")) == wrong
    assert check(received, key=KEY._replace(access_key="SOMEBODYELSE")) == "InvalidAccessKeyId"
    assert check(received, region="eu-west-1") == "AuthorizationHeaderMalformed"


def test_a_header_that_was_not_signed_may_change() -> None:
    assert check(replace(LIFECYCLE, headers={**LIFECYCLE.headers, "user-agent": "x", "via": "a proxy"})) == ""


def test_a_clock_may_be_a_quarter_of_an_hour_off() -> None:
    for minutes, code in ((14, ""), (16, "RequestTimeTooSkewed")):
        assert check(LIFECYCLE, now=NOW + timedelta(minutes=minutes)) == code
        assert check(LIFECYCLE, now=NOW - timedelta(minutes=minutes)) == code


def test_a_presigned_request_holds_as_long_as_it_says() -> None:
    assert check(PRESIGNED, now=NOW + timedelta(hours=23, minutes=59)) == ""
    assert check(PRESIGNED, now=NOW + timedelta(days=1, seconds=1)) == "AccessDenied"
    assert check(PRESIGNED, now=NOW - timedelta(minutes=16)) == "AccessDenied"


def without(received: Received, name: str, *, value: str | None = None) -> Received:
    """The request without this parameter, or with another value of it."""
    kept = [(key, value if key == name and value is not None else given) for key, given in received.query
            if key != name or value is not None]  # fmt: skip
    return replace(received, query=tuple(kept))


@pytest.mark.parametrize("name", ["Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_presigned_request_needs_all_its_parameters(name: str) -> None:
    assert check(without(PRESIGNED, f"X-Amz-{name}")) == "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("name", "value"),
    [("Expires", "604801"), ("Expires", "-1"), ("Expires", "soon"), ("Date", "yesterday"), ("Credential", "a/b"),
     ("Signature", "é"), ("Date", "20130523T235959Z")],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_refused(name: str, value: str) -> None:
    assert check(without(PRESIGNED, f"X-Amz-{name}", value=value)) == "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "AccessDenied"),
        ("AWS AKIAIOSFODNN7EXAMPLE:frJIUN8DYpKDtOLCwo//yllqDzg=", "AccessDenied"),
        ("AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host, Signature=y", "AuthorizationHeaderMalformed"),
        (authorization("x-amz-date", "0" * 64), "AccessDenied"),
        (authorization("host;x-not-there", "0" * 64), "AccessDenied"),
        (authorization("host", "0" * 64).replace("/s3/", "/sqs/"), "AuthorizationHeaderMalformed"),
        (authorization("host", "0" * 64).replace("/20130524/", "/20130523/"), "AuthorizationHeaderMalformed"),
        (authorization("host", "é" * 64), "AuthorizationHeaderMalformed"),
    ],
)
def test_headers_that_make_no_sense_are_refused(header: str, code: str) -> None:
    assert check(replace(LIFECYCLE, headers={**LIFECYCLE.headers, "authorization": header})) == code


def test_a_request_without_a_time_or_with_a_session_token_is_refused() -> None:
    timeless = {name: value for name, value in LIFECYCLE.headers.items() if name != "x-amz-date"}
    assert check(replace(LIFECYCLE, headers=timeless)) == "AccessDenied"
    token = {**LIFECYCLE.headers, "x-amz-security-token": "x"}
    assert check(replace(LIFECYCLE, headers=token)) == "InvalidTokenId"


def chunked(chunks: list[tuple[bytes, str]]) -> bytes:
    return b"".join(f"{len(c):x};chunk-signature={s}\r\n".encode() + c + b"\r\n" for c, s in chunks)


def read(received: Received, body: bytes) -> bytes | str:
    """The body, or the code of the refusal."""
    seal = verify(received, known_keys([KEY]), region="", now=NOW)
    try:
        return read_signed_body(BytesIO(body), len(body), seal)
    except S3Error as error:
        return error.code


def test_the_signed_chunks_of_aws_hold_and_no_others() -> None:
    body = chunked(CHUNKS)
    assert len(body) == 66824
    assert read(CHUNKED, body) == b"a" * 66560
    first, second, last = CHUNKS
    assert read(CHUNKED, chunked([(b"b" * 65536, first[1]), second, last])) == "SignatureDoesNotMatch"
    assert read(CHUNKED, chunked([second, first, last])) == "SignatureDoesNotMatch"
    assert read(CHUNKED, chunked([first, last])) == "SignatureDoesNotMatch"
    assert read(CHUNKED, body.replace(b";chunk-signature", b";chunk-sign", 1)) == "IncompleteBody"
    assert read(CHUNKED, chunked([first, second])) == "IncompleteBody"
    assert read(CHUNKED, b"") == "IncompleteBody"
    assert read(CHUNKED, b"10000;") == "IncompleteBody"
    assert read(CHUNKED, b"x" * (MAX_SIGNED_BODY_BYTES + 1)) == "EntityTooLarge"


def test_a_body_must_be_what_was_signed() -> None:
    assert read(LIFECYCLE, b"") == b""
    assert read(LIFECYCLE, b"more") == "XAmzContentSHA256Mismatch"
    assert read(PRESIGNED, b"anything") == b"anything"


def dated(date: str) -> Received:
    """The request with a `Date` header in place of `X-Amz-Date`."""
    headers = {name: value for name, value in LIFECYCLE.headers.items() if name != "x-amz-date"}
    return replace(LIFECYCLE, headers={**headers, "date": date, "authorization": authorization("host", "0" * 64)})


@pytest.mark.parametrize(
    "date",
    [
        "Fri, 31 Dec 9999 23:59:59 -0100",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999",
        "Mon, 01 Jan 99999999999999999999 00:00:00",
        "Mon, 01 Jan 2024 00:00:00 -2400",
        "Mon, 01 Jan 99999 00:00:00 GMT",
        "1 Jan " + "9" * 5000 + " 00:00:00",
    ],
)
def test_a_date_that_overflows_is_refused(date: str) -> None:
    assert check(dated(date)) == "AccessDenied"


def test_a_date_in_an_unnamed_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert check(dated("Fri, 24 May 2013 00:00:00 -0000")) == "SignatureDoesNotMatch", "the time is accepted"
    finally:
        monkeypatch.undo()
        time.tzset()


_DIGITS = st.text("0123456789٣+-", max_size=25)
_DATES = st.one_of(
    st.text(max_size=40),
    st.builds("{} {} {} {}:{} {}".format, _DIGITS, st.sampled_from(["Jan", "May", "dec,"]), *[_DIGITS] * 4),
    st.builds("{}T{}Z".format, _DIGITS, _DIGITS),
    st.builds("Fri, {} May {} {}:{}:{} {}".format, *[_DIGITS] * 6),
)


@thorough(500)
@given(
    date=_DATES, presigned=st.booleans(), expires=_DIGITS, credential=st.text(max_size=60), signed=st.text(max_size=20)
)
def test_no_field_of_a_signature_raises_anything_but_a_refusal(
    date: str, presigned: bool, expires: str, credential: str, signed: str
) -> None:
    if presigned:
        given_ = {
            "Date": [date, STAMP], "Expires": [expires, "86400"], "Credential": [credential, CREDENTIAL],
            "SignedHeaders": [signed, "host"],
        }  # fmt: skip
        for name, (hostile, usual) in given_.items():
            request = PRESIGNED
            for each, (_, value) in given_.items():
                request = without(request, f"X-Amz-{each}", value=hostile if each == name else value)
            assert check(request) in CODES or hostile == usual
        return
    for header in (CREDENTIAL, credential):
        request = dated(date)
        said = authorization(signed or "host", "0" * 64).replace(CREDENTIAL, header)
        for headers in (
            {**request.headers, "authorization": said},
            {**request.headers, "authorization": said, "x-amz-date": date},
            {**request.headers, "authorization": said, "date": "Fri, 24 May 2013 00:00:00 GMT"},
        ):
            assert check(replace(request, headers=headers)) in CODES
