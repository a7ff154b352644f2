"""An Elasticsearch that takes little at once, and only from those who show a certificate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
import urllib3

from tests import services
from tests.contract.probes.base import LIMIT, attempt
from tests.contract.probes.elasticsearch import Namespace
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, Rejected, Unavailable
from workers.targets.base import TargetUnavailable

pytestmark = pytest.mark.nightly(
    "what its answers mean in test_elasticsearch_answers.py; portions; certificates behind a gateway"
)

MOST = 300  # kilobytes of a request
MAX_WORKED_ON_KB = 240  # kilobytes of documents that the node works on


@dataclass(eq=False)
class Strict(services.Elasticsearch):
    tls: bool = True

    def prepare(self) -> None:
        super().prepare()
        with (self.folder / "config/elasticsearch.yml").open("a") as file:
            file.write(
                "xpack.security.http.ssl.client_authentication: required\n"
                f"http.max_content_length: {MOST}kb\nindexing_pressure.memory.limit: {MAX_WORKED_ON_KB}kb\n"
            )

    def ping(self) -> None:
        certificates = services.certificates()
        login = urllib3.make_headers(basic_auth=f"{self.user_name}:{services.PASSWORD}")
        with urllib3.PoolManager(
            ca_certs=str(certificates.ca),
            cert_file=str(certificates.client_cert),
            key_file=str(certificates.client_key),
        ) as pool:
            assert pool.request("GET", f"{self.url}/", headers=login, timeout=5, retries=False).status == 200


class Guarded(Namespace):
    """Its client shows the certificate too."""

    def values(self) -> dict[str, str]:
        certificates = services.certificates()
        pair = {"client_cert": str(certificates.client_cert), "client_key": str(certificates.client_key)}
        return super().values() | pair


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Strict().start() as server:
        yield Guarded(server)


def test_a_client_certificate_is_shown(guarded: Guarded) -> None:
    assert guarded.delivered([sample_events.put("a")], index="shown") == [DELIVERED]
    (refused,) = attempt(guarded.target(index="shown", client_cert="", client_key=""), [sample_events.put("a")], 1)
    assert isinstance(refused, Unavailable)


def test_verification_can_be_waived(guarded: Guarded, certificates: services.Certificates) -> None:
    target = guarded.target(index="waived", tls_ca=str(certificates.other_ca), tls_skip_verify="on")
    target.open()
    target.close()


def test_a_certificate_file_that_cannot_be_read_is_named(guarded: Guarded) -> None:
    with pytest.raises(TargetUnavailable, match=r"/absent\.pem"):
        guarded.target(client_cert="/absent.pem").open()


@pytest.mark.parametrize("fault", ["hangs", "drips"])
def test_a_handshake_ends_in_time_when_the_server(guarded: Guarded, fault: str) -> None:
    with services.proxy(guarded.server.port) as proxy, closing(guarded.target(guarded.at_port(proxy.port))) as target:
        if fault == "hangs":
            proxy.swallow()
        else:
            proxy.drip(1.5)
        began = time.monotonic()
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        took = time.monotonic() - began
    assert took < LIMIT
    assert isinstance(outcome, Unavailable)


def test_a_request_that_is_too_large_goes_in_halves_and_the_next_ones_smaller(guarded: Guarded) -> None:
    with closing(guarded.target(index="halves")) as target:
        batch = [sample_events.put(f"object-{number}", metadata="x" * 8_000) for number in range(100)]
        assert set(target.deliver(batch, 100)) == {DELIVERED}
        assert set(target.deliver(batch, 100)) == {DELIVERED}


@pytest.mark.parametrize("kilobytes", [400, 250])
def test_a_document_that_is_too_large_is_told_from_a_node_that_is_busy(guarded: Guarded, kilobytes: int) -> None:
    """Above its limit for a request the node will never take it; above that for its memory it says: not now."""
    with closing(guarded.target(index="large")) as target:
        large = sample_events.put("large", metadata="x" * kilobytes * 1000)
        outcomes = attempt(target, [sample_events.put("a"), large, sample_events.put("b")], 100)
    if kilobytes > MOST:
        assert [type(outcome).__name__ for outcome in outcomes] == ["Delivered", "Rejected", "Delivered"]
        assert isinstance(outcomes[1], Rejected)
        assert "413" in outcomes[1].reason
    else:
        assert isinstance(outcomes[1], Unavailable)
        assert "429" in outcomes[1].reason
        assert "rejected execution" in outcomes[1].reason
