"""The pods of the Helm chart do what they are for, with their user and their mounts, and nothing else to write to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet

from tests import services
from tests.services import until
from tests.services.pod import OPENSHIFTS, Pod, here, share
from tests.support.builders import body, event
from tests.support.chart import Object, objects
from tests.support.service_processes import start_all, stop_all

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly("what the chart says of its pods, in test_helm.py, and the processes, by everything else here"),
]

PATIENCE = 240
TOKEN = "of-the-pods-and-long-enough-for-a-token"
BUCKET = "photos"
API = 8730
SPOOL = "/var/lib/bucketwire/spool"
DATA = "/var/lib/bucketwire/var"


def variables(every: list[Object], container: Object) -> dict[str, str]:
    """What Kubernetes gives to a container: of the objects that it names, and its own."""
    stored = {(each["kind"], each["metadata"]["name"]): each for each in every}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        [(kind, named)] = source.items()
        each = stored[("Secret" if kind == "secretRef" else "ConfigMap", named["name"])]
        found |= each.get("stringData") or each.get("data") or {}
    return found | {one["name"]: one["value"] for one in container.get("env", [])}


@dataclass
class Cluster:
    """What the chart makes, of which each pod can be run."""

    every: list[Object]
    port: int = field(default_factory=services.free_port)
    pods: dict[str, Pod] = field(default_factory=dict)

    def pod(self, component: str) -> Pod:
        """A pod of a component, which is not started yet; its claims are folders."""
        [owner] = [
            one
            for one in self.every
            if one["kind"] in ("Deployment", "StatefulSet", "Job")
            and one["metadata"]["labels"]["app.kubernetes.io/component"] == component
        ]
        spec = owner["spec"]["template"]["spec"]
        [container] = spec["containers"]
        given = variables(self.every, container)
        ports = [each["containerPort"] for each in container.get("ports", [])]
        given, mapped = here(given, [port for port in ports if port != API])
        if API in ports:
            mapped[API] = self.port
        for asked in (f"0.0.0.0:{API}", f"bw-bucketwire-api.events.svc:{API}"):
            given = {key: value.replace(asked, f"{services.LOOPBACK}:{self.port}") for key, value in given.items()}
        claims = {}
        for claim in owner["spec"].get("volumeClaimTemplates", []):
            [place] = [
                one["mountPath"] for one in container["volumeMounts"] if one["name"] == claim["metadata"]["name"]
            ]
            claims[place] = services.new_folder("claim")
        self.pods[component] = Pod(spec, given, mapped, claims)
        for folder in claims.values():
            share(folder, self.pods[component].context["fsGroup"])
        return self.pods[component]

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """The answer of the API."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"http://{services.LOOPBACK}:{self.port}{path}"
        answer = httpx.request(method, url, headers=headers, timeout=60, trust_env=False, **options)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def post(self, *keys: str) -> Mapping[str, int]:
        """Post an event for each key; the receipt."""
        answer: Mapping[str, int] = self.ask(
            "POST", "/v1/events", content=body(*(event(key, bucket=BUCKET) for key in keys))
        )
        return answer


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize(("openshift", "user"), [("disabled", 10001), ("force", OPENSHIFTS)])
def test_every_pod_does_what_it_is_for(openshift: str, user: int, stack: ExitStack) -> None:
    outbox, broker, store = (stack.enter_context(one()) for one in (services.postgres, services.redis, services.redis))
    minio = stack.enter_context(services.minio())
    spark = {
        "AWS_ENDPOINT_URL_S3": minio.url, "AWS_ACCESS_KEY_ID": minio.access_key,
        "AWS_SECRET_ACCESS_KEY": minio.secret_key, "BUCKETWIRE_TOKEN": TOKEN, "SPARK_LOCAL_IP": services.LOOPBACK,
    }  # fmt: skip
    values = {
        "secrets": {
            "BUCKETWIRE_DATABASE_URL": outbox.create_database("pods"), "BUCKETWIRE_BROKER_URL": broker.url,
            "BUCKETWIRE_SECRET_KEYS": Fernet.generate_key().decode(),
            "BUCKETWIRE_API_TOKENS": f"pods:ingest+read+admin:{TOKEN}",
        },
        "openshift": openshift,
        "settings": {"BUCKETWIRE_ALLOW_PRIVATE": "on"},  # the targets of the test are on this machine
        "api": {"spool": {"enabled": True}, "workers": 1},
        "spark": {
            "enabled": True, "master": "local[1]", "memory": "512m",
            "extraEnv": [{"name": name, "value": value} for name, value in spark.items()],
        },
    }  # fmt: skip
    cluster = Cluster(objects(values))
    migration = stack.enter_context(cluster.pod("migrate").start())
    until(lambda: not migration.running, PATIENCE, what="the end of the migration")
    assert "other users may read" not in migration.tail(), "nobody could change that"
    running = [cluster.pod(component) for component in ("api", "beat", "drain", "pool-all", "spark")]
    stack.callback(stop_all, running)
    start_all(running)

    # Nothing can be written but the volumes, and that as the pod's user.
    api = cluster.pods["api"]
    for pod in running:
        process = Path(f"/proc/{pod.pid}")
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
        assert status["Uid"].split()[0] == str(user)
        assert (int(status["CapEff"], 16), status["NoNewPrivs"]) == (0, "1")
        flags = dict(line.split()[1:4:2] for line in (process / "mounts").read_text().splitlines())
        read_only = {place for place, options in flags.items() if "ro" in options.split(",")}
        assert {"/", "/opt", "/opt/bucketwire", "/var/lib"} <= read_only
        assert not read_only & {"/tmp", DATA, SPOOL}

    # Post and deliver.
    address = f"{services.LOOPBACK}:{store.port}"
    cluster.ask("PUT", "/v1/targets/redis/mirror", json={"address": address, "key": "mirror"})
    cluster.ask("POST", "/v1/rules", json={"bucket": BUCKET, "events": ["*"], "target": "redis:mirror"})
    assert cluster.post("a", "b")["recorded"] == 2

    def mirrored() -> set[str]:
        with store.client() as client:
            return {path.decode().partition("/")[2] for path in client.hkeys("mirror")}

    until(lambda: mirrored() == {"a", "b"}, PATIENCE, what="both events delivered")

    # Spool, on the claim, and feed.
    outbox.stop()
    assert cluster.post("c")["spooled"] == 1
    [kept] = (api.volumes[SPOOL] / "events").glob("[0-9]*")
    assert kept.stat().st_uid == user
    outbox.start()
    until(lambda: mirrored() == {"a", "b", "c"}, PATIENCE, what="the spooled event delivered")

    # Reconcile, and write the report into the data folder.
    s3 = minio.boto3()
    s3.meta.events.register("before-sign.s3.PutObject", _long_ago)
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="missing", Body=b"of which there was no event")
    s3.close()
    run = cluster.ask("POST", "/v1/reconciliations", json={"bucket": BUCKET, "target": "redis:mirror"})["id"]
    until(lambda: ended(cluster, run) != "", PATIENCE, what="the reconciliation")
    found = cluster.ask("GET", f"/v1/reconciliations/{run}")
    assert (found["state"], found["missing"]) == ("drift", 1), found["problem"]
    reports = list((cluster.pods["spark"].volume(DATA) / "reconciliations").rglob("*.html"))
    assert reports, found


def _long_ago(request: Any, **_: Any) -> None:
    request.headers["X-Minio-Source-Mtime"] = "2026-01-01T00:00:00Z"


def ended(cluster: Cluster, run: str) -> str:
    state = cluster.ask("GET", f"/v1/reconciliations/{run}")["state"]
    return "" if state in ("waiting", "running") else state
