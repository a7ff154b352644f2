"""With a certificate for the API, everything that the chart has ask it speaks HTTPS, and trusts its authority alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from app.outbox.engine.database import Database
from tests import services
from tests.integration.api.conftest import SecureApi, token, url_of
from tests.support.chart import LEAST, Object, objects
from tests.support.outbox_rows import heartbeats
from tests.support.service_processes import BUCKETWIRE


@pytest.fixture
def api(log: Database) -> Iterator[SecureApi]:
    with SecureApi(url_of(log)) as started:
        yield started.start()
        started.client.close()


@pytest.fixture
def chart(api: SecureApi) -> list[Object]:
    """The chart's objects for this API, which pods would reach by the name in its certificate."""
    tls = {"existingSecret": "api-tls", "serverName": "localhost"}
    spark = {"enabled": True, "existingSecret": "buckets"}
    monitor = {"enabled": True, "tokenSecret": {"name": "token"}}
    values = {"api": {"service": {"port": api.port}, "tls": tls}, "spark": spark, "serviceMonitor": monitor}
    return objects(LEAST | values)


def of(chart: list[Object], kind: str, name: str) -> Object:
    [found] = [each for each in chart if (each["kind"], each["metadata"]["name"]) == (kind, f"bw-bucketwire-{name}")]
    return found


def mounted(api: SecureApi, pod: Object, container: Object) -> dict[str, str]:
    """The files that the pod has of the API's Secret, each with what it is here."""
    here = {"tls.crt": api.cert, "tls.key": api.key, "ca.crt": services.certificates().ca}
    folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    return {
        f"{folders[volume['name']]}/{item['path']}": str(here[item["key"]])
        for volume in pod["volumes"]
        if volume.get("secret", {}).get("secretName") == "api-tls"
        for item in volume["secret"]["items"]
    }


def test_the_api_has_its_certificate_and_the_probes_ask_it_by_https(api: SecureApi, chart: list[Object]) -> None:
    pod = of(chart, "Deployment", "api")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    files = mounted(api, pod, container)
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert [files[environment[f"BUCKETWIRE_TLS_{each}"]] for each in ("CERT", "KEY")] == [str(api.cert), str(api.key)]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        request = container[probe]["httpGet"]
        url = f"{request['scheme'].lower()}://{services.LOOPBACK}:{api.port}{request['path']}"
        assert httpx.get(url, verify=False, timeout=60, trust_env=False).status_code == 200  # as a kubelet asks


def test_the_test_of_the_release_asks_by_https(api: SecureApi, chart: list[Object], log: Database) -> None:
    heartbeats(log, 0)
    pod = of(chart, "Pod", "test")["spec"]
    [container] = pod["containers"]
    [script] = container["args"]

    def run(files: dict[str, str]) -> subprocess.CompletedProcess[str]:
        own = script
        for path, here in files.items():
            assert path in own
            own = own.replace(path, here)
        return subprocess.run(
            [sys.executable, "-c", own], env={}, capture_output=True, text=True, timeout=60, check=False
        )

    files = mounted(api, pod, container)
    done = run(files)
    assert (done.returncode, '"ready":true' in done.stdout) == (0, True), done.stderr
    untrusted = run(dict.fromkeys(files, str(services.certificates().other_ca)))
    assert (untrusted.returncode, "CERTIFICATE_VERIFY_FAILED" in untrusted.stderr) == (1, True)


def test_spark_posts_by_https(api: SecureApi, chart: list[Object], log: Database) -> None:
    pod = of(chart, "Deployment", "spark")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    files = mounted(api, pod, container)
    environment = {each["name"]: files.get(each["value"], each["value"]) for each in container["env"]}
    environment["BUCKETWIRE_TOKEN"] = token(log, "admin")["Authorization"].removeprefix("Bearer ")
    done = subprocess.run(
        [BUCKETWIRE, "target", "ls"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_scrapes_by_https(chart: list[Object]) -> None:
    [endpoint] = of(chart, "ServiceMonitor", "api")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", "localhost")
    assert endpoint["tlsConfig"]["ca"] == {"secret": {"name": "api-tls", "key": "ca.crt"}}
    [workers] = of(chart, "ServiceMonitor", "workers")["spec"]["endpoints"]
    assert "scheme" not in workers
