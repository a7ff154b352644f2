"""List a bucket from S3: many key ranges in parallel, the pages of each range one after the other.

boto3 finds endpoint, credentials, region and certificates: `AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, `AWS_ACCESS_KEY_ID`,
`AWS_CA_BUNDLE` and so on, on the machine where the job is started; only a certificate bundle has to exist on the
executors as well. Temporary credentials are renewed where they are used, once those of that machine have expired. A
range that cannot be listed to its end fails the job (`pages`).

A bucket without folders is divided by asking for the first key after texts that may lie between its keys. Nothing is
known of the number of keys in a range, so each is halved by the characters that its keys have where they first differ.
A range that is much longer than others costs time, and nothing else.
"""

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import boto3  # type: ignore[import-untyped]  # ships no types
import botocore.session
from botocore.config import Config
from botocore.credentials import CredentialProvider, CredentialResolver, RefreshableCredentials
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

import app.boto_connections  # noqa: F401 - reads answers strictly
from app.config.bucket_settings import BucketSettings
from app.listings import s3_client
from app.listings.limits import BadListing
from app.listings.pages import PAGE_KEYS, is_bound, pages
from spark_jobs import errors
from spark_jobs.frames import ENTRIES, LISTING
from spark_jobs.listings.listing import Listing

Row = tuple[str, str, int, int, str]  # LISTING
KeyRange = tuple[str, str | None]  # keys after the first, up to and including the second; None: to the end
Login = tuple[str, str, str | None]  # access key, secret key, session token
_MAX_PREFIX_REQUESTS = 16
_ATTEMPTS = 12  # of a request
_NEVER = "9999-01-01T00:00:00+00:00"


def _login(session: boto3.session.Session) -> tuple[Login | None, str]:
    """Return the credentials of a session, and when they expire."""
    credentials = session.get_credentials()
    if credentials is None:
        return None, ""
    access, secret, token = credentials.get_frozen_credentials()[:3]
    # No public interface says it; without it they are taken for lasting ones, and end the run when they have expired.
    expiry = getattr(credentials, "_expiry_time", None)
    return (access, secret, token), expiry.isoformat() if expiry else ""


def _renewing(login: Login, expiry: str) -> botocore.session.Session:
    """Return a session that has a login until shortly before it expires, and from then on what boto3 finds here."""
    session = botocore.session.Session()
    provider = _RenewedLogin(login, expiry)
    session.register_component("credential_provider", CredentialResolver([provider]))
    return session


class _RenewedLogin(CredentialProvider):  # type: ignore[misc]  # botocore ships no types
    """A login that boto3's credentials on this machine replace when it expires."""

    METHOD = "bucketwire"

    def __init__(self, login: Login, expiry: str) -> None:
        super().__init__()
        self._first = login, expiry

    def load(self) -> RefreshableCredentials:
        """Return the login, which botocore renews."""
        return RefreshableCredentials.create_from_metadata(
            _metadata(*self._first), refresh_using=self._renew, method=self.METHOD
        )

    def _renew(self) -> dict[str, str | None]:
        login, expiry = _login(boto3.session.Session())
        if login is None:
            raise BadListing(
                f"the credentials expired at {self._first[1]}, and boto3 finds no others on {platform.node()}: give "
                "the executors a role, or use credentials that last"
            )
        return _metadata(login, expiry or _NEVER)


def _metadata(login: Login, expiry: str) -> dict[str, str | None]:
    access, secret, token = login
    return {"access_key": access, "secret_key": secret, "token": token, "expiry_time": expiry}


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, its endpoint and the credentials; it is sent to the executors."""

    name: str
    endpoint: str = ""  # empty: AWS itself
    region: str = "us-east-1"
    ca_bundle: str = ""  # a file of certificates; empty: the system's
    login: Login | None = field(default=None, repr=False)
    expiry: str = ""  # when the login expires, in ISO 8601; empty: never
    fips: bool = False
    dual_stack: bool = False
    style: str = ""  # how a request names the bucket: auto, path or virtual; empty: path, but for AWS
    requester_pays: bool = False
    prefix: str = ""  # only the keys that begin with it

    @classmethod
    def from_boto3(cls, name: str, endpoint: str = "", settings: BucketSettings | None = None) -> "Bucket":
        """Return the bucket by boto3's settings here; `endpoint` overrides them, and the bucket's own `settings` both.

        `name` is the one that its storage has for it.
        """
        own, session = settings or BucketSettings(), boto3.session.Session()
        region, endpoint = own.region or session.region_name or "us-east-1", own.endpoint or endpoint
        if own.access_key:
            login: Login | None = own.access_key, own.secret_key, own.session_token or None
            expiry = ""
        else:
            login, expiry = _login(session)
        errors.remember_texts(login[1:] if login else ())
        client = session.client("s3", endpoint_url=endpoint or None, region_name=region)
        unset = session.client("s3", region_name=region, config=Config(ignore_configured_endpoint_urls=True))
        try:
            url, config = client.meta.endpoint_url, client.meta.config
            is_given = endpoint or url != unset.meta.endpoint_url  # otherwise AWS's, which the executors find as well
        finally:
            client.close()
            unset.close()
        style = (config.s3 or {}).get("addressing_style") or ""
        if own.addressing_style != "auto":
            style = own.addressing_style
        ca_bundle = (
            own.tls_ca or os.environ.get("AWS_CA_BUNDLE") or session._session.get_config_variable("ca_bundle") or ""
        )
        return cls(
            name, url if is_given else "", client.meta.region_name, ca_bundle, login, expiry,
            fips=bool(config.use_fips_endpoint), dual_stack=bool(config.use_dualstack_endpoint),
            style=style,
            requester_pays=own.requester_pays,
        )  # fmt: skip

    def client(self) -> Any:
        """Return a client; the caller closes it."""
        # boto3 itself has read what it knows of S3 once; each other session does it again.
        session, login = boto3, self.login
        if login and self.expiry:
            session, login = boto3.session.Session(botocore_session=_renewing(login, self.expiry)), None
        access, secret, token = login or (None, None, None)
        client = session.client(
            "s3",
            endpoint_url=self.endpoint or None,
            region_name=self.region,
            verify=self.ca_bundle or None,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(
                # A server that is busy (503 SlowDown) is asked again for some minutes, ever less often.
                retries={"mode": "standard", "max_attempts": _ATTEMPTS},
                s3={"addressing_style": s3_client.style(self.style, self.endpoint)},
                use_fips_endpoint=self.fips,
                use_dualstack_endpoint=self.dual_stack,
            ),
        )
        return s3_client.prepared(client, requester_pays=self.requester_pays)

    def end(self) -> None:
        """Note that a task has sent its last request."""

    def is_gone(self) -> bool:
        """Return whether the server says that there is no such bucket. Any other error is raised."""
        client = self.client()
        try:
            client.list_objects_v2(Bucket=self.name, MaxKeys=1)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != "NoSuchBucket":  # a proxy's 404 is no evidence
                raise
            return True
        finally:
            client.close()
        return False

    def is_versioned(self) -> bool:
        """Return whether versioning is or was enabled."""
        client = self.client()
        try:
            return bool(client.get_bucket_versioning(Bucket=self.name).get("Status"))
        finally:
            client.close()


def listing(spark: SparkSession, bucket: Bucket, ranges: Sequence[KeyRange], *, versioned: bool) -> Listing:
    """Return the bucket's objects in some ranges as LISTING, each range listed by a task."""
    key_ranges = spark.sparkContext.parallelize(ranges, len(ranges))
    unreadable = spark.range(0).select(F.lit("").alias("line"))
    newest = key_ranges.flatMap(lambda keys: objects(bucket, keys, versioned=versioned))
    all_entries = key_ranges.flatMap(lambda keys: entries(bucket, keys, versioned=versioned))
    frame = spark.createDataFrame(newest, LISTING, verifySchema=False)
    return Listing(
        frame, versioned, unreadable, entries=spark.createDataFrame(all_entries, ENTRIES, verifySchema=False),
        single=frame,
    )  # fmt: skip


def divided(bucket: Bucket, *, sample: Sequence[str] = (), tasks: int, after: str = "") -> list[KeyRange]:
    """Divide the bucket's keys after `after` into `tasks` ranges or more.

    `sample` has some of its keys, if they are known.
    """
    return between(sample, tasks, after) if sample else between(found_bounds(bucket, tasks), 4 * tasks, after)


def of_no_bucket(spark: SparkSession, bucket: Bucket) -> Listing:
    """Return the listing of a bucket that is gone: it has no objects."""
    nothing = spark.createDataFrame([], LISTING)
    return Listing(
        nothing, False, spark.range(0).select(F.lit("").alias("line")), single=nothing,
        note=f"There is no bucket {bucket.name} at {bucket.endpoint or 'AWS'}, so that every row is orphaned.",
    )  # fmt: skip


def objects(bucket: Bucket, keys: KeyRange, *, versioned: bool) -> Iterator[Row]:
    """Yield the objects of a range, each in its newest version, in the order of their keys."""
    for entry in _listed(bucket, keys, versioned=versioned):
        if entry.get("IsLatest", True) and is_object(entry):
            yield row_of(entry)


def entries(bucket: Bucket, keys: KeyRange, *, versioned: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield every version and every delete marker of a range: ENTRIES."""
    for entry in _listed(bucket, keys, versioned=versioned):
        yield entry["Key"], entry.get("Size", 0), not is_object(entry)


def is_object(entry: Any) -> bool:
    """Return whether it is an object, not a delete marker, which has no size."""
    return "Size" in entry


def _listed(bucket: Bucket, keys: KeyRange, *, versioned: bool) -> Iterator[Any]:
    """Yield S3's entries of a range, page by page."""
    for page in pages_of(bucket, keys, versioned=versioned):
        for kind in PAGE_KEYS:
            for entry in page.get(kind, ()):
                if is_within(entry["Key"], keys):
                    yield entry


def is_within(key: str, keys: KeyRange) -> bool:
    """Return whether a key is in a range."""
    after, until = keys
    return after < key and (until is None or key <= until)


def pages_of(bucket: Bucket, keys: KeyRange, *, versioned: bool) -> Iterator[Mapping[str, Any]]:
    """Yield S3's pages that have a range, which may have other keys, too."""
    after, until = keys
    client = bucket.client()
    try:
        for page in pages(client, bucket.name, after, versioned=versioned, prefix=bucket.prefix):
            yield page
            last = [entry["Key"] for kind in PAGE_KEYS for entry in page.get(kind, ())[-1:]]
            if until is not None and last and max(last) > until:
                return
    finally:
        client.close()


def between(points: Iterable[str], tasks: int, after: str = "") -> list[KeyRange]:
    """Divide the keys after `after` into `tasks` ranges (fewer for few points) with the same number of points each."""
    ordered = sorted(point for point in set(points) if point > after and is_bound(point))
    bounds = sorted({ordered[len(ordered) * number // tasks] for number in range(1, tasks)}) if ordered else []
    return list(zip([after, *bounds], [*bounds, None], strict=True))


def found_bounds(bucket: Bucket, count: int) -> list[str]:
    """Return keys and prefixes that divide a bucket of which nothing is known: folders, or a flat one by bisection."""
    client = bucket.client()

    def first_after(text: str) -> str | None:
        page = client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.prefix, StartAfter=text, MaxKeys=1)
        return next((entry["Key"] for entry in page.get("Contents", ())), None)

    try:
        folders, is_large = prefixes(client, bucket, count)
        return folders + bisected(first_after, folders, 4 * count) if is_large and len(folders) < count else folders
    finally:
        client.close()


def prefixes(client: Any, bucket: Bucket, count: int) -> tuple[list[str], bool]:
    """Return prefixes of keys: list the folders, outermost first, until there are enough.

    The second value is whether a folder had more than one page.
    """
    known, unlisted, is_large = list[str](), [bucket.prefix], False
    for _ in range(_MAX_PREFIX_REQUESTS):
        if not unlisted or len(known) >= 4 * count:
            break
        prefix = unlisted.pop(0)
        page = client.list_objects_v2(Bucket=bucket.name, Prefix=prefix, Delimiter="/")
        folders = [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
        is_large |= bool(page.get("IsTruncated"))
        # The last key of a truncated page is a bound too.
        ends = [entry["Key"] for entry in page.get("Contents", ())[-1:]] if page.get("IsTruncated") else []
        known += folders + ends
        unlisted += folders
    return known, is_large


def row_of(entry: Any) -> Row:
    """Return S3's entry of an object as a row of a LISTING."""
    version = entry.get("VersionId", "")
    modified = round(entry["LastModified"].timestamp() * 1000)
    return entry["Key"], entry.get("ETag", "").strip('"'), entry["Size"], modified, "" if version == "null" else version


FirstAfter = Callable[[str], str | None]  # the first key after a text; None for no key

_REQUESTS_AT_ONCE = 4  # at once
_ASCII_END, _LAST = 0x7E, 0xD7FF  # the last character that ASCII, or any bound, has
_MAX_DIVISIONS = 512  # of one bucket


def bisected(first_after: FirstAfter, bounds: Sequence[str], count: int) -> list[str]:
    """Return keys that divide the ranges between `bounds` so that there are `count` ranges, fewer if that is not easy.

    The last range is that of all keys after the last bound. Each of the keys was there a moment ago.
    """
    first = first_after("")
    if first is None:
        return []
    ends = sorted({first, *bounds})
    ranges: list[tuple[str, str | None]] = list(zip(ends, [*ends[1:], None], strict=True))
    found, asked = list[str](), 0
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        while ranges and len(ends) + len(found) < count and asked < _MAX_DIVISIONS:
            asked += len(ranges)
            middles = list(threads.map(lambda ends: middle(first_after, *ends), ranges))
            divided = list[tuple[str, str | None]]()
            for (start, end), key in zip(ranges, middles, strict=True):
                if key is not None:
                    found.append(key)
                    divided += [(start, key), (key, end)]
            ranges = divided
    return sorted(found)


def middle(first_after: FirstAfter, start: str, end: str | None) -> str | None:
    """Return a key between a key and another, or the end of the bucket; None if none is found there."""

    def has_more(text: str) -> str | None:
        """Return the first key after a text, if it is in the range."""
        key = first_after(text) if is_bound(text) else None
        return key if key is not None and key > start and (end is None or key < end) else None

    certain = _common(start, end) if end is not None else 0
    length = _shared(has_more, start, certain)
    prefix, limit = start[:length], ord(end[length]) if end is not None and length == certain < len(end) else _LAST
    lowest = ord(start[length]) if length < len(start) else 0x1F
    highest = _greatest(has_more, prefix, lowest, min(limit, _LAST))
    return has_more(prefix + chr((lowest + highest + 1) // 2)) if lowest < highest else None


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with together."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def _shared(has_more: Callable[[str], str | None], start: str, certain: int) -> int:
    """Return how many characters of a key all later keys of the range begin with: `certain` or more."""
    shared, differs = certain, len(start) + 1
    while differs - shared > 1:
        length = (shared + differs) // 2 if not certain else shared + 1  # of a part of a range it is hardly ever more
        following = _following(start[:length])
        if following is None or has_more(following) is None:
            shared = length
        else:
            differs = length
    return shared


def _following(prefix: str) -> str | None:
    """Return a text after which no key begins with a prefix; None if there is none that is a bound."""
    last = ord(prefix[-1])
    return None if last >= _LAST else prefix[:-1] + chr(last + 1)


def _greatest(has_more: Callable[[str], str | None], prefix: str, lowest: int, limit: int) -> int:
    """Return the last character for which there are keys after the prefix with it; none is after `limit`."""
    least, most = lowest, min(limit, _ASCII_END)
    if lowest >= most or (limit > most and has_more(prefix + chr(most)) is not None):
        least, most = max(lowest, most), limit
    while least < most:
        at = (least + most + 1) // 2
        if has_more(prefix + chr(at)) is not None:
            least = at
        else:
            most = at - 1
    return least
