"""How jobs reach the API of their own settings: with TLS where it has TLS, at an IPv6 address, and without `--url`."""

from __future__ import annotations

from pathlib import Path

import httpx
import orjson
import pytest

from app.config.arn import TargetId
from app.events.names import EVERY
from app.rules.model import Rule
from tests import provision, services
from tests.integration.api.conftest import SecureApi, keys, token, url_of
from tests.spark.conftest import Job
from tests.support.builders import add_target, migrated, registry


class SecureApiAtIpv6(SecureApi):
    """The API with a certificate, by its IPv6 address."""

    @property
    def url(self) -> str:
        return f"https://[::1]:{self.port}"


def test_backfill_and_scan_post_by_tls_to_an_ipv6_address(job: Job, tmp_path: Path) -> None:
    log = migrated(f"sqlite:///{tmp_path}/outbox.db")
    add_target(log)
    registry(log).add_rule(Rule(bucket="*", events=("s3:Scanner:*", EVERY), target=TargetId("webhook", "x")))
    admin = token(log, "admin")["Authorization"].removeprefix("Bearer ")
    listing = tmp_path / "listing.json"
    entry = {"status": "success", "type": "file", "lastModified": "2026-11-18T00:00:00Z", "size": 5, "etag": "e"}
    versions = [entry | {"key": "a", "versionId": f"v{number}", "versionOrdinal": number} for number in (1, 2)]
    listing.write_bytes(b"\n".join(map(orjson.dumps, versions)))
    with SecureApiAtIpv6(url_of(log), {}) as api:
        # Every address, which is none to connect to.
        api.settings = {**api.settings, "BUCKETWIRE_LISTEN": f"[::]:{api.port}"}
        api.start()
        environment = dict(api.env()) | {
            "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS), "BUCKETWIRE_TOKEN": admin, "BUCKETWIRE_URL": "",
            "SSL_CERT_FILE": str(services.certificates().ca),
        }  # fmt: skip

        def run(*words: str) -> None:
            listed = ("--listing", str(listing), "--listed-at", "1s")
            code, _, error = job(environment, *words, *listed, "--versions")
            assert code == 0, error

        run("scan", "images", "--many-versions", "1")
        assert keys(log) == ["a"]
        run("backfill", "images", "--target", "webhook:x", "--grace", "0s")
        assert keys(log) == ["a", "a"]
        with httpx.Client(trust_env=False) as plain, pytest.raises(httpx.TransportError):
            plain.get(api.url.replace("https", "http") + "/healthz")
        api.client.close()
    log.close()
