"""Requests to SQS, which are signed: of a target or a source."""

import importlib.metadata
import logging
import re
from functools import partial
from typing import Any

import orjson
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

import app.boto_connections  # noqa: F401 - reads answers strictly
from app.config.sources.sqs import SqsSourceSettings
from app.config.targets.sqs import SqsSettings
from app.http_pools import AnswerTooLong
from workers.targets import tls
from workers.targets.base import TargetUnavailable
from workers.targets.http_pool import HttpPool, describe_http_error, http_endpoint, http_pool, retry_after
from workers.targets.sockets import Deadline
from workers.targets.tcp import Endpoint

# botocore writes what it signs into its debug lines, with a session's token.
logging.getLogger("botocore").setLevel(logging.ERROR)

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"
MAX_ENTRIES = 10  # of a request, which SQS allows
MAX_SHOWN_CHARACTERS = 500
ABOUT_MESSAGES = re.compile(r"InvalidMessageContents|MessageTooLong|BatchRequestTooLong|InvalidAttributeValue")
_ROLES = ("assume-role-with-web-identity", "container-role", "iam-role")  # botocore's names, in the order of the SDKs
# What obtaining a role's credentials may raise, such as the refusal of STS, or a token that cannot be read.
_ROLE_ERRORS = (BotoCoreError, ClientError, OSError, RuntimeError, ValueError)


class Refused(Exception):
    """SQS refused a request as a whole, for what is in it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TooMuch(TargetUnavailable):
    """The answer has more bytes than are read; with fewer messages it would have fewer."""


class SqsClient:
    """A pool of kept-alive connections to the endpoint of one queue; several threads may use it at once."""

    def __init__(self, settings: SqsSettings | SqsSourceSettings, connections: int) -> None:
        self._settings = settings
        self._connections = connections
        self._http: HttpPool | None = None
        self._stamp: object = None
        self._credentials: Any = None
        self.where = f"SQS queue {settings.queue_url}"

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoint, or its proxy."""
        return [http_endpoint(self._settings.url, partial(tls.context_of, self._settings), guarded=False)]

    @property
    def connected(self) -> bool:
        """Whether `connect` has been called, and the files of TLS are the same since."""
        return self._http is not None and self._stamp == tls.stamp_of(self._settings)

    def connect(self) -> dict[str, str]:
        """Connect, and return the queue's attributes: it exists, and the login may ask. Raises `TargetUnavailable`."""
        self.close()
        chosen = self._settings
        self._credentials = _credentials(chosen)
        self._stamp = tls.stamp_of(chosen)
        context = partial(tls.context_of, chosen)
        self._http = http_pool(chosen.url, context, guarded=False, connections=self._connections)
        try:
            answer = self.ask("GetQueueAttributes", {"AttributeNames": ["QueueArn"]})
        except Refused as error:
            self.close()
            raise TargetUnavailable(error.reason) from error
        except BaseException:
            self.close()
            raise
        return dict(answer.get("Attributes") or {})

    def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            http.close()

    def ask(self, action: str, asked: dict[str, Any], wait: float = 0.0) -> Any:
        """Make one signed request about the queue; return its answer, for which the server may take `wait` seconds.

        Raises `TargetUnavailable`, and `Refused` for its contents.
        """
        http = self._http
        if http is None:
            raise TargetUnavailable(f"{self.where}: the connection is closed")
        timeout = Timeout(connect=self._settings.timeout, read=self._settings.timeout + wait)
        body = orjson.dumps({"QueueUrl": self._settings.queue_url, **asked})
        headers = self._signed(action, body)
        with Deadline(self._settings.timeout * 2 + wait) as limit:
            try:
                response = http.send("POST", http.target, body, headers, timeout)
                status, data = response.status, response.data
            except AnswerTooLong as error:
                raise TooMuch(f"{self.where}: {describe_http_error(error)}") from error
            except HTTPError as error:
                reason = "no answer in time" if limit.expired else describe_http_error(error)
                raise TargetUnavailable(f"{self.where}: {reason}") from error
        try:
            answer = orjson.loads(data)
        except ValueError:
            answer = None
        if 200 <= status <= 299 and isinstance(answer, dict):
            return answer
        if 200 <= status <= 299:
            raise TargetUnavailable(f"{self.where}: the server is not SQS")
        members = answer if isinstance(answer, dict) else {}
        code = str(members.get("__type", "")).rpartition("#")[2]
        words = str(members.get("message") or members.get("Message") or response.reason or "")
        words = words.partition("\n")[0]  # after a wrong signature AWS repeats the request, with a session's token
        reason = f"{self.where} answered {status}: {code}: {words}"[:MAX_SHOWN_CHARACTERS]
        named = f"{code} {response.headers.get('x-amzn-query-error', '')}"
        if status == 413 or (status == 400 and ABOUT_MESSAGES.search(named)):
            raise Refused(reason)
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
            raise TargetUnavailable(f"{self.where}: instance_role: {error}") from error
        return dict(request.headers.items())


def _credentials(settings: SqsSettings | SqsSourceSettings) -> Any:
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
            credentials = resolver.get_provider(name).load()
        except _ROLE_ERRORS as error:
            raise TargetUnavailable(f"instance_role: {error}") from error
        if credentials is not None:
            return credentials
    raise TargetUnavailable("instance_role: this machine has no role, nor has its container or pod")
