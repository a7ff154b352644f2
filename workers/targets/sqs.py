"""SQS: each event is one message of a standard or a FIFO queue.

Delivered means: SQS named the message among those that it has stored (`Successful` of SendMessageBatch).

A request has up to ten messages, in sync mode one, because SQS confirms each by itself. It names an object only once:
the object's next event waits for the answer. A FIFO queue gets a group for each object and the event's id for
deduplication, so that it keeps the order and drops what is sent again within five minutes.

| answer                                                                 | outcome                               |
|------------------------------------------------------------------------|---------------------------------------|
| named in Successful                                                    | Delivered                             |
| named in Failed: contents, size, attributes                            | Rejected                              |
| named in Failed: throttled                                             | Unavailable                           |
| named in Failed: anything else; not named                              | Failed                                |
| to the request: contents or size                                       | each alone; Rejected for a single one |
| to the request: anything else, no answer                               | Unavailable; nothing more is sent     |
"""

import hashlib
import importlib.metadata
import logging
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from app.config.targets.sqs import SqsSettings
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.endpoint import Endpoint
from workers.targets.http_errors import describe_http_error, retry_after
from workers.targets.http_pool import HttpPool, http_endpoint, http_pool
from workers.targets.messages import message_format
from workers.targets.request_threads import MAX_THREADS, RequestThreads
from workers.targets.socket_deadline import Deadline

# botocore writes what it signs into its debug lines, with a session's token.
logging.getLogger("botocore").setLevel(logging.ERROR)

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"
BATCH_ENTRIES = 10
BATCH_BYTES = 262_144  # bodies and attributes of a request; AWS takes more since 2025, others do not
_MAX_READ_BYTES = 256 * 1024
_MAX_SHOWN_CHARACTERS = 500
_ABOUT_MESSAGES = re.compile(r"InvalidMessageContents|MessageTooLong|BatchRequestTooLong|InvalidAttributeValue")
_ABOUT_ONE = re.compile(r"InvalidParameter|InvalidRequest|ValidationError")  # in an entry; of a request it may be ours
_THROTTLED = re.compile(r"Throttl|OverLimit|TooManyRequests|RequestLimit|ServiceUnavailable")
_ROLES = ("assume-role-with-web-identity", "container-role", "iam-role")  # botocore's names, in the order of the SDKs
# What obtaining a role's credentials may raise, such as the refusal of STS, or a token that cannot be read.
_ROLE_ERRORS = (BotoCoreError, ClientError, OSError, RuntimeError, ValueError)
# XML cannot have these, and SQS checks for XML's characters; the other ones are escaped in JSON anyway.
_NOT_IN_XML = re.compile("[\ufffe\uffff\ud800-\udfff]")
_NOT_IN_ATTRIBUTES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


class Entry(NamedTuple):
    """One message of a request."""

    place: int  # index among the events of the call
    members: dict[str, Any]
    size: int  # bytes that count towards SQS's limit


class _Refused(Exception):
    """SQS refused a request as a whole, for what is in it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SqsTarget:
    """One queue: a pool of kept-alive connections and, if several requests may be open, a pool of threads."""

    def __init__(self, settings: SqsSettings) -> None:
        self._settings = settings
        self._format = message_format(settings)
        self._http: HttpPool | None = None
        self._stamp: object = None
        self._threads = RequestThreads("sqs")
        self._credentials: Any = None
        self._timeout = Timeout(connect=settings.timeout, read=settings.timeout)
        self._where = f"SQS queue {settings.queue_url}"

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoint, or its proxy."""
        return [http_endpoint(self._settings.url, partial(tls.context_of, self._settings), guarded=False)]

    def open(self) -> None:
        """Connect, and check that the queue exists and the login may ask for it; create nothing."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Send requests of up to ten messages, up to `window` (at most 64) at once; in sync mode of one message."""
        http = self._http
        if http is None or self._stamp != tls.stamp_of(self._settings):
            http = self._connect()
        batch = Batch(events, lease)
        if window == 1:
            self._send_in_order(http, batch, range(len(events)), most=1)
        else:
            self._threads.run(batch, window, BATCH_ENTRIES, partial(self._send_in_order, http, batch))
        return batch.outcomes()

    def close(self) -> None:
        """Close the connections and end the threads, which are idle between calls."""
        http, self._http = self._http, None
        self._threads.close()
        if http is not None:
            http.close()

    def _connect(self) -> HttpPool:
        self.close()
        chosen = self._settings
        self._credentials = _credentials(chosen)
        self._stamp = tls.stamp_of(chosen)
        http = http_pool(chosen.url, tls.context_of(chosen), guarded=False, connections=MAX_THREADS)
        try:
            self._ask(http, "GetQueueAttributes", {"QueueUrl": chosen.queue_url, "AttributeNames": ["QueueArn"]})
        except _Refused as error:
            http.close()
            raise TargetUnavailable(error.reason) from error
        except BaseException:
            http.close()
            raise
        self._http = http
        return http

    def _send_in_order(self, http: HttpPool, batch: Batch, indexes: Sequence[int], most: int = BATCH_ENTRIES) -> None:
        """Send these events, of each object one at a time."""
        waiting = list(indexes)
        while waiting and not batch.is_over:
            some, waiting = _next(batch.events, waiting, most)
            for entries in _portions(self._entry(index, batch.events[index]) for index in some):
                self._send(http, batch, entries)

    def _send(self, http: HttpPool, batch: Batch, entries: Sequence[Entry]) -> None:
        """Make one request for the messages that may be sent; if it is refused for one of them, one for each."""
        chosen = set(batch.begin([entry.place for entry in entries]))
        entries = [entry for entry in entries if entry.place in chosen]
        if not entries:
            return
        asked = {"QueueUrl": self._settings.queue_url, "Entries": [entry.members for entry in entries]}
        indexes = [entry.place for entry in entries]
        try:
            answer = self._ask(http, "SendMessageBatch", asked)
        except TargetUnavailable as error:
            batch.settle_all(indexes, Unavailable(error.reason, error.retry_after))
            return
        except _Refused as refused:
            if len(entries) == 1:
                batch.settle(entries[0].place, Rejected(refused.reason))
                return
            for entry in entries:
                self._send(http, batch, [entry])
            return
        outcomes = self._outcomes(answer)
        for entry in entries:
            lost = Failed(f"{self._where}: the answer does not name the message")
            batch.settle(entry.place, outcomes.get(entry.members["Id"], lost))

    def _outcomes(self, answer: Any) -> dict[str, Outcome]:
        """Return the outcomes of the messages that an answer names."""
        try:
            outcomes: dict[str, Outcome] = {each["Id"]: DELIVERED for each in answer.get("Successful") or ()}
            for each in answer.get("Failed") or ():
                code, words = str(each.get("Code", "")), str(each.get("Message") or "")
                reason = f"{self._where}: {code}: {words}"[:_MAX_SHOWN_CHARACTERS]
                outcomes[each["Id"]] = _outcome(code, reason, sender=bool(each.get("SenderFault")))
        except (AttributeError, KeyError, TypeError):
            return {}
        return outcomes

    def _entry(self, index: int, event: Event) -> Entry:
        """Return an event's message."""
        body = _NOT_IN_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", self._format.body(event))
        named = {"bucket": event.bucket, "event": event.name, "id": event.id}
        if event.trace:
            named |= self._format.all_headers(event)
        named = {name: _NOT_IN_ATTRIBUTES.sub("\ufffd", value) for name, value in named.items() if value}
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in named.items()}
        members: dict[str, Any] = {"Id": str(index), "MessageBody": body, "MessageAttributes": attributes}
        if self._settings.is_fifo:
            members["MessageGroupId"] = hashlib.sha256(event.path.encode(errors="replace")).hexdigest()
            members["MessageDeduplicationId"] = event.id
        size = len(body.encode()) + sum(len(name) + 6 + len(value.encode()) for name, value in named.items())
        return Entry(index, members, size)

    def _ask(self, http: HttpPool, action: str, asked: dict[str, Any]) -> Any:
        """Make one signed request; return its answer. Raises `TargetUnavailable`, and `_Refused` for its contents."""
        body = orjson.dumps(asked)
        headers = self._signed(action, body)
        with Deadline(self._settings.timeout * 2) as limit:
            try:
                response = http.send("POST", http.target, body, headers, self._timeout)
                status, data = response.status, response.data[:_MAX_READ_BYTES]
            except HTTPError as error:
                reason = "no answer in time" if limit.expired else describe_http_error(error)
                raise TargetUnavailable(f"{self._where}: {reason}") from error
        try:
            answer = orjson.loads(data)
        except ValueError:
            answer = None
        if 200 <= status <= 299 and isinstance(answer, dict):
            return answer
        if 200 <= status <= 299:
            raise TargetUnavailable(f"{self._where}: the server is not SQS")
        members = answer if isinstance(answer, dict) else {}
        code = str(members.get("__type", "")).rpartition("#")[2]
        words = str(members.get("message") or members.get("Message") or response.reason or "")
        words = words.partition("\n")[0]  # after a wrong signature AWS repeats the request, with a session's token
        reason = f"{self._where} answered {status}: {code}: {words}"[:_MAX_SHOWN_CHARACTERS]
        named = f"{code} {response.headers.get('x-amzn-query-error', '')}"
        if status == 413 or (status == 400 and _ABOUT_MESSAGES.search(named)):
            raise _Refused(reason)
        raise TargetUnavailable(reason, retry_after(response.headers))

    def _signed(self, action: str, body: bytes) -> dict[str, str]:
        chosen = self._settings
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "User-Agent": USER_AGENT,
            "X-Amz-Target": f"AmazonSQS.{action}",
        }
        request = AWSRequest("POST", chosen.url, headers=headers, data=body)
        try:
            frozen = self._credentials.get_frozen_credentials()  # others may be renewed meanwhile by another thread
            SigV4Auth(frozen, "sqs", chosen.signed_region).add_auth(request)
        except _ROLE_ERRORS as error:  # the role's have to be renewed, and cannot be
            raise TargetUnavailable(f"{self._where}: instance_role: {error}") from error
        return dict(request.headers.items())


def _credentials(settings: SqsSettings) -> Any:
    """Return what requests are signed with. Raises `TargetUnavailable` for a machine without a role.

    Never the service's own, which its environment and its files have for the storage.
    """
    if not settings.instance_role:
        return Credentials(settings.access_key, settings.secret_key, settings.session_token or None)
    session = get_session()
    seconds = settings.timeout  # else STS has minutes to answer
    session.set_default_client_config(
        Config(connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 1})
    )
    resolver = session.get_component("credential_provider")
    for name in _ROLES:
        try:
            found = resolver.get_provider(name).load()
        except _ROLE_ERRORS as error:
            raise TargetUnavailable(f"instance_role: {error}") from error
        if found is not None:
            return found
    raise TargetUnavailable("instance_role: this machine has no role, nor has its container or pod")


def _outcome(code: str, reason: str, *, sender: bool) -> Outcome:
    if _THROTTLED.search(code):
        return Unavailable(reason)
    if sender and (_ABOUT_MESSAGES.search(code) or _ABOUT_ONE.search(code)):
        return Rejected(reason)
    return Failed(reason)


def _next(events: Sequence[Event], waiting: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Return the next events, of each object one, and those that are left."""
    chosen: list[int] = []
    left: list[int] = []
    named: set[str] = set()
    for index in waiting:
        path = events[index].path
        (left if path in named or len(chosen) == most else chosen).append(index)
        named.add(path)
    return chosen, left


def _portions(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Yield parts of at most `BATCH_BYTES`; more only for a single message."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and size + entry.size > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry.size
    if part:
        yield part
