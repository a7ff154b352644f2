"""One node of Elasticsearch or OpenSearch: requests, authentication, and the index that is written to (§4.8).

Raw HTTP over urllib3 instead of the client package: the package refuses OpenSearch and versions before 7.14, its next
major version supports no server of this one, and it costs 4 to 13 us per document against 3 (measured,
docs/explanation/client-libraries.md).
"""

import importlib.metadata
import re
from typing import Any

from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util import SKIP_HEADER

from app.config.targets.elasticsearch import ElasticsearchSettings
from workers.targets import tls
from workers.targets.base import TargetUnavailable
from workers.targets.elasticsearch.answers import Answer, read_answer
from workers.targets.http_errors import describe_http_error
from workers.targets.http_pool import HttpPool, http_pool

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"

_LEAST_MAJOR = 7
_STREAMS_ONLY = "creates data streams only"


class Node:
    """One connection to the node in the settings."""

    def __init__(self, settings: ElasticsearchSettings) -> None:
        self._settings = settings
        context = tls.context(
            settings.tls_ca,
            skip_verify=settings.tls_skip_verify,
            client_cert=settings.client_cert,
            client_key=settings.client_key,
        )
        self._http: HttpPool = http_pool(settings.url, context, guarded=False, connections=1)
        self._base = self._http.target.rstrip("/")
        self._timeout = Timeout(connect=settings.timeout, read=settings.timeout)
        # urllib3 would send an Accept-Encoding header.
        self._headers = {"User-Agent": USER_AGENT, "Accept-Encoding": SKIP_HEADER}
        if settings.authorization:
            self._headers["Authorization"] = settings.authorization
        self.where = f"Elasticsearch index {settings.index} at {self._http.where}"

    def request(self, method: str, path: str, body: bytes | None = None, *, lines: bool = False) -> Answer:
        """Make one request. Raises `TargetUnavailable` without an answer, or for one that every request would get."""
        headers = self._headers
        if body is not None:
            headers = {**headers, "Content-Type": "application/x-ndjson" if lines else "application/json"}
        try:
            response = self._http.send(method, self._base + path, body, headers, self._timeout)
        except ReadTimeoutError as error:
            raise TargetUnavailable(f"{self.where}: no answer within {self._settings.timeout:g} s") from error
        except HTTPError as error:
            raise TargetUnavailable(f"{self.where}: {describe_http_error(error)}") from error
        return self._answer(response)

    def check(self) -> None:
        """Raise `TargetUnavailable` unless this is a server that can be written to."""
        answer = self._opened(self.request("GET", "/"), "the privilege monitor of the cluster is needed")
        version = answer.body.get("version") if isinstance(answer.body, dict) else None
        number = str(version.get("number", "")) if isinstance(version, dict) else ""
        if not number:
            raise TargetUnavailable(f"{self.where}: the server is not Elasticsearch")
        is_opensearch = isinstance(version, dict) and version.get("distribution") == "opensearch"
        if not self._settings.opensearch and (is_opensearch or answer.product != "Elasticsearch"):
            server = f"OpenSearch {number}" if is_opensearch else f"version {number} of an unnamed server"
            raise TargetUnavailable(f"{self.where}: this is {server}; set opensearch=on to use it")
        if not is_opensearch and not _is_recent(number):
            raise TargetUnavailable(f"{self.where}: version {number} is too old; {_LEAST_MAJOR} or later is needed")

    def take_index(self) -> None:
        """Check that the index exists and is fit for the format, or create it (as MinIO: §4.8).

        Unlike in MinIO, an alias and a data stream count as existing. Raises `TargetUnavailable`.
        """
        name = self._settings.index
        answer = self.request("GET", f"/_resolve/index/{name}")
        if answer.status != 404:
            resolved = self._opened(answer, "the privilege read or view_index_metadata of the index is needed").body
            if named(resolved.get("indices"), name):
                return
            if alias := named(resolved.get("aliases"), name):
                self._take_alias(alias.get("indices", []))
                return
            if named(resolved.get("data_streams"), name):
                self._take_stream()
                return
        self._create(name)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _take_alias(self, indices: list[str]) -> None:
        if len(indices) == 1:
            return
        if self._settings.format == "namespace":
            raise TargetUnavailable(
                f"{self.where}: it is an alias of {len(indices)} indices, and a document could be in any of them; "
                "format namespace needs an alias of one"
            )
        answer = self._opened(self.request("GET", f"/_alias/{self._settings.index}"), "")
        aliases = [each["aliases"][self._settings.index] for each in answer.body.values()]
        if not any(alias.get("is_write_index") for alias in aliases):
            raise TargetUnavailable(f"{self.where}: it is an alias of {len(indices)} indices, none of them to write to")

    def _take_stream(self) -> None:
        if self._settings.format == "namespace":
            raise TargetUnavailable(
                f"{self.where}: it is a data stream, in which nothing can be replaced; format namespace needs an index"
            )

    def _create(self, name: str) -> None:
        answer = self.request("PUT", f"/{name}")
        if answer.is_good or (answer.status == 400 and "resource_already_exists" in answer.error):
            return
        if _STREAMS_ONLY in answer.error:
            self._take_stream()
            return  # the first document creates it
        self._opened(answer, f"create the index, or give the privilege create_index of {name}")

    def _opened(self, answer: Answer, hint: str) -> Answer:
        if answer.is_good:
            return answer
        problem = f"answered {answer.status}: {answer.error}" + (f" ({hint})" if hint and answer.status == 403 else "")
        raise TargetUnavailable(f"{self.where}: {problem}", answer.retry_after)

    def _answer(self, response: BaseHTTPResponse) -> Answer:
        answer = read_answer(response)
        if answer.status == 401:
            raise TargetUnavailable(f"{self.where} answered 401: {answer.error} (check the login)")
        if 300 <= answer.status <= 399 or (answer.is_good and answer.body is None):
            raise TargetUnavailable(f"{self.where} answered {answer.status}: the server is not Elasticsearch")
        return answer


def named(found: object, name: str) -> dict[str, Any] | None:
    """Return the entry of this name in a list of named entries."""
    entries = found if isinstance(found, list) else []
    return next((entry for entry in entries if entry.get("name") == name), None)


def _is_recent(version: str) -> bool:
    match = re.match(r"[0-9]+", version)
    return match is not None and int(match[0]) >= _LEAST_MAJOR
