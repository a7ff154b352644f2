"""The Helm chart in a real Kubernetes API: installed, upgraded, removed, and its pods admitted by Pod Security.

The tests do what the cluster's own processes would do: they run the Job of the migration. Pods are not run; the API
server is asked whether it would admit them.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.outbox import schema_version
from app.outbox.engine.database import Database
from tests import provision, services
from tests.services.kubernetes import KubernetesApi, kubernetes
from tests.support.chart_values import EVERY, OFF, OTHERS
from tests.support.service_processes import BUCKETWIRE

CHART = Path(__file__).parents[2] / "deploy/helm/bucketwire"
NAMESPACE = "events"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
KINDS = {
    kind: f"{group}/namespaces/{NAMESPACE}/{kind}"
    for group, kinds in {
        "/api/v1": ("configmaps", "secrets", "services", "serviceaccounts"),
        "/apis/apps/v1": ("deployments", "statefulsets"),
        "/apis/batch/v1": ("jobs",),
        "/apis/policy/v1": ("poddisruptionbudgets",),
        "/apis/networking.k8s.io/v1": ("networkpolicies", "ingresses"),
        "/apis/rbac.authorization.k8s.io/v1": ("roles", "rolebindings"),
        "/apis/autoscaling/v2": ("horizontalpodautoscalers",),
        "/apis/monitoring.coreos.com/v1": ("servicemonitors", "prometheusrules"),
        "/apis/gateway.networking.k8s.io/v1": ("httproutes",),
        "/apis/keda.sh/v1alpha1": ("scaledobjects",),
    }.items()
    for kind in kinds
}
OPERATORS = {
    "ServiceMonitor": "monitoring.coreos.com/v1", "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1", "HTTPRoute": "gateway.networking.k8s.io/v1",
}  # fmt: skip
Object = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesApi]:
    """An API server with the types of Prometheus' operator, KEDA and gateways, but not their schemas."""
    services.need("helm")
    with ExitStack() as stack:
        api = kubernetes(stack)
        for kind, of in OPERATORS.items():
            group, version = of.split("/")
            names = {"kind": kind, "singular": kind.lower(), "plural": f"{kind.lower()}s"}
            schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
            served = {"name": version, "served": True, "storage": True, "schema": schema}
            made = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
            kept = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": made}
            name: Object = {"metadata": {"name": f"{names['plural']}.{group}"}}
            if group.endswith(".k8s.io"):  # Kubernetes' own, which it lets nobody make without a word
                name["metadata"]["annotations"] = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs"}
            api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kept | name)
            services.until(lambda: api.ask("GET", KINDS[names["plural"]]).ok, 30)  # noqa: B023 - called at once
        yield api


class Jobs:
    """Runs the Jobs of the namespace, as Kubernetes would, with this checkout's command in place of the image."""

    def __init__(self, cluster: KubernetesApi) -> None:
        self.run: list[str] = []  # the commands that were run
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Jobs:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            for job in self._cluster.call("GET", KINDS["jobs"])["items"]:
                if not job["status"].get("conditions"):
                    self._finish(job)

    def _secret(self, name: str) -> dict[str, str]:
        found = self._cluster.ask("GET", f"{KINDS['secrets']}/{name}")
        stored = found.json()["data"] if found.ok else {}
        return {key: base64.b64decode(value).decode() for key, value in stored.items()}

    def _finish(self, job: Object) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        container = job["spec"]["template"]["spec"]["containers"][0]
        environment = {"PATH": os.environ["PATH"]}
        for source in container["envFrom"]:
            environment |= self._secret(source["secretRef"]["name"])
        for variable in container.get("env", []):
            if (key := variable.get("valueFrom", {}).get("secretKeyRef")) is not None:
                environment[variable["name"]] = self._secret(key["name"])[key["key"]]
        self.run.append(" ".join(container["args"]))
        done = subprocess.run([BUCKETWIRE, *container["args"]], env=environment, capture_output=True, check=False)
        if done.returncode:
            steps: list[tuple[str, Object]] = [("FailureTarget", {"failed": 1}), ("Failed", {})]
        else:
            steps = [("SuccessCriteriaMet", {"succeeded": 1}), ("Complete", {"completionTime": now})]
        path, conditions = f"{KINDS['jobs']}/{job['metadata']['name']}/status", []
        for reason, found in steps:
            conditions.append({"type": reason, "status": "True", "lastTransitionTime": now, "reason": "Ended"})
            status = {"status": {"startTime": now, "conditions": conditions, **found}}
            self._cluster.call("PATCH", path, status, "application/merge-patch+json")


@pytest.fixture
def namespace(cluster: KubernetesApi) -> Iterator[KubernetesApi]:
    """The cluster with a namespace in which only pods of the standard `restricted` are admitted."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    if not cluster.ask("GET", CORE).ok:
        cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    with Jobs(cluster):
        yield cluster
        helm(cluster, cluster.folder, "uninstall", "bw", "--ignore-not-found")


@pytest.fixture
def values(postgres_database: str) -> Object:
    return {
        "secrets": {
            "BUCKETWIRE_DATABASE_URL": postgres_database,
            "BUCKETWIRE_BROKER_URL": "amqp://bucketwire:x@rabbitmq//",
            "BUCKETWIRE_SECRET_KEYS": "u9Qe0xkqDqk0yXH3p2o0hQ0XcX1m8o6v6fJm1pWcQ2A=",
            "BUCKETWIRE_API_TOKENS": f"minio:ingest:{'x' * 32}",
        },
        "pools": {"rest": {"targets": ["kafka", "redis"], "replicas": 3}},
        "spark": {"enabled": True, "rbac": {"create": True}},
        "sources": {"enabled": True},
        "flower": {"enabled": True},
        "serviceMonitor": {"enabled": True, "tokenSecret": {"name": "token"}},
    }


def helm(
    cluster: KubernetesApi, folder: Path, *words: str, values: Object | None = None, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [provision.HELM / "helm", *words, "--namespace", NAMESPACE]
    if values is not None:
        (folder / "values.yaml").write_text(yaml.safe_dump(values))
        command += [chart, "--values", folder / "values.yaml", "--timeout", "60s"]
    home = {f"HELM_{name}_HOME": str(folder / "helm") for name in ("CACHE", "CONFIG", "DATA")}
    environment = {"KUBECONFIG": str(cluster.config), "HOME": str(folder), **home}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def succeeds(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def of_the_chart(cluster: KubernetesApi, kind: str) -> dict[str, Object]:
    """The objects of a kind that the release has, by name."""
    found = cluster.call("GET", f"{KINDS[kind]}?labelSelector=app.kubernetes.io/instance%3Dbw")["items"]
    return {each["metadata"]["name"]: each for each in found}


def admit_all(cluster: KubernetesApi) -> dict[str, Object]:
    """Have the API server admit a pod of each Deployment, StatefulSet and test; what it would run, by their names."""
    workloads = of_the_chart(cluster, "deployments") | of_the_chart(cluster, "statefulsets")
    for name, workload in workloads.items():
        pod = workload["spec"]["template"] | {"metadata": {"name": name}}
        for claim in workload["spec"].get("volumeClaimTemplates", ()):  # as the controller of StatefulSets does it
            volume = {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": f"{name}-0"}}
            pod["spec"]["volumes"].append(volume)
        cluster.call("POST", f"{CORE}/pods?dryRun=All", pod)
    return {name: workload["spec"]["template"] for name, workload in workloads.items()}


def is_migrated(url: str) -> bool:
    database = Database(url)
    try:
        return schema_version.current(database) == schema_version.head()
    finally:
        database.close()


def test_it_is_installed_upgraded_and_removed(
    namespace: KubernetesApi, values: Object, postgres_database: str, tmp_path: Path
) -> None:
    assert not is_migrated(postgres_database)
    succeeds(helm(namespace, tmp_path, "install", "bw", values=values))
    assert is_migrated(postgres_database)
    roles = {"api", "beat", "drain", "sources", "flower", "spark"}
    assert set(of_the_chart(namespace, "deployments")) == {
        f"bw-bucketwire-{each}" for each in {*roles, "pool-all", "pool-rest"}
    }
    assert of_the_chart(namespace, "servicemonitors")

    values["pools"] = {"all": None, "mq": {"targets": ["amqp"], "keda": {"enabled": True}}}
    values["settings"] = {"BUCKETWIRE_PARTITIONS": 16}
    succeeds(helm(namespace, tmp_path, "upgrade", "bw", values=values))
    assert set(of_the_chart(namespace, "deployments")) == {f"bw-bucketwire-{each}" for each in {*roles, "pool-mq"}}
    assert list(of_the_chart(namespace, "scaledobjects")) == ["bw-bucketwire-pool-mq"]
    assert not of_the_chart(namespace, "jobs"), "a finished migration stays"

    succeeds(helm(namespace, tmp_path, "uninstall", "bw"))
    assert {kind: list(found) for kind in KINDS if (found := of_the_chart(namespace, kind))} == {}


def test_an_api_with_a_spool_folder_is_upgraded(namespace: KubernetesApi, values: Object, tmp_path: Path) -> None:
    """Of a StatefulSet most cannot be changed, the templates of its claims with their labels least of all."""
    values["api"] = {"spool": {"enabled": True}}
    succeeds(helm(namespace, tmp_path, "install", "bw", values=values))
    before = of_the_chart(namespace, "statefulsets")["bw-bucketwire-api"]
    newer = tmp_path / "newer"
    shutil.copytree(CHART, newer)
    chart = newer / "Chart.yaml"
    chart.write_text(re.sub(r"(?m)^(version|appVersion): .*", r"\1: 9.9.9", chart.read_text()))
    succeeds(
        helm(
            namespace,
            tmp_path,
            "upgrade",
            "bw",
            values=values | {"podDefaults": {"podLabels": {"a": "b"}}},
            chart=newer,
        )
    )
    after = of_the_chart(namespace, "statefulsets")["bw-bucketwire-api"]
    [old], [new] = (each["spec"]["template"]["spec"]["containers"] for each in (before, after))
    assert old["image"] != new["image"]
    assert before["spec"]["volumeClaimTemplates"] == after["spec"]["volumeClaimTemplates"]


def make(cluster: KubernetesApi, path: str, made: Object) -> None:
    """Make an object, unless it is there."""
    if not cluster.ask("GET", f"{path}/{made['metadata']['name']}").ok:
        cluster.call("POST", path, made)


def test_every_value_is_accepted(
    namespace: KubernetesApi, values: Object, postgres_database: str, tmp_path: Path
) -> None:
    """Installed with every value, upgraded to those that these exclude, and each pod admitted as restricted."""
    for value, name in enumerate(("low", "high")):
        make(namespace, "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
    for name in ("plain", "sandboxed"):
        make(namespace, "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": name}, "handler": name})
    make_secret(namespace, "outbox-app", {"uri": postgres_database})
    make_secret(
        namespace,
        "more",
        {name: values["secrets"][name] for name in ("BUCKETWIRE_BROKER_URL", "BUCKETWIRE_SECRET_KEYS")},
    )
    warned = succeeds(helm(namespace, tmp_path, "install", "bw", values=EVERY))
    assert "PodSecurity" not in warned
    assert is_migrated(postgres_database)
    found = {kind: len(of_the_chart(namespace, kind)) for kind in KINDS}
    assert {kind for kind, number in found.items() if not number} == {"jobs"}
    assert set(admit_all(namespace)) == {
        f"bw-bucketwire-{name}"
        for name in ("api", "beat", "drain", "flower", "pool-rest", "pool-webhooks", "sources", "spark")
    }
    kept = {"secrets": values["secrets"], "nameOverride": EVERY["nameOverride"]}  # a selector cannot be changed
    succeeds(helm(namespace, tmp_path, "upgrade", "bw", values=OTHERS | kept))
    admit_all(namespace)
    scaled = of_the_chart(namespace, "horizontalpodautoscalers")
    assert {name: each["spec"]["maxReplicas"] for name, each in scaled.items()} == dict.fromkeys(
        ("bw-events-api", "bw-events-pool-all", "bw-events-pool-rest"), 30
    )
    succeeds(helm(namespace, tmp_path, "upgrade", "bw", values=OFF | kept))
    admit_all(namespace)
    assert not of_the_chart(namespace, "horizontalpodautoscalers")


def make_secret(cluster: KubernetesApi, name: str, data: dict[str, str]) -> None:
    secret = {"metadata": {"name": name}, "stringData": data}
    if cluster.ask("GET", f"{KINDS['secrets']}/{name}").ok:
        cluster.call("PATCH", f"{KINDS['secrets']}/{name}", secret, "application/merge-patch+json")
    else:
        cluster.call("POST", KINDS["secrets"], secret)


def test_pods_are_replaced_when_a_secret_of_theirs_has_changed(
    namespace: KubernetesApi, values: Object, tmp_path: Path
) -> None:
    secrets = values.pop("secrets")
    make_secret(namespace, "rotated", secrets)
    make_secret(namespace, "buckets", {"AWS_SECRET_ACCESS_KEY": "first"})
    values |= {"existingSecret": "rotated", "spark": {"enabled": True, "existingSecret": "buckets"}}

    def upgraded(command: str = "upgrade") -> dict[str, Object]:
        succeeds(helm(namespace, tmp_path, command, "bw", values=values))
        return {name: each["spec"]["template"] for name, each in of_the_chart(namespace, "deployments").items()}

    first = upgraded("install")
    assert upgraded() == first
    make_secret(namespace, "buckets", {"AWS_SECRET_ACCESS_KEY": "second"})
    second = upgraded()
    assert {name for name in first if first[name] != second[name]} == {"bw-bucketwire-spark"}
    make_secret(namespace, "rotated", {"BUCKETWIRE_API_TOKENS": f"minio:ingest:{'y' * 32}"})
    third = upgraded()
    assert {name for name in first if second[name] != third[name]} == set(first)
    values["restartOnChangedSecrets"] = False
    make_secret(namespace, "rotated", {"BUCKETWIRE_API_TOKENS": f"minio:ingest:{'z' * 32}"})
    assert all("checksum/secrets" not in each["metadata"]["annotations"] for each in upgraded().values())


def test_a_failed_migration_leaves_the_running_version_as_it_is(
    namespace: KubernetesApi, values: Object, tmp_path: Path
) -> None:
    succeeds(helm(namespace, tmp_path, "install", "bw", values=values))
    before = of_the_chart(namespace, "deployments")
    values["secrets"]["BUCKETWIRE_DATABASE_URL"] = f"postgresql://nobody@127.0.0.1:{services.free_port()}/none"
    values["pools"] = {"all": None, "other": {"targets": ["mqtt"]}}
    done = helm(namespace, tmp_path, "upgrade", "bw", values=values)
    assert done.returncode != 0
    assert "pre-upgrade hooks failed" in done.stderr
    assert of_the_chart(namespace, "deployments") == before


def test_pod_security_admits_every_pod(namespace: KubernetesApi, values: Object, tmp_path: Path) -> None:
    warned = succeeds(helm(namespace, tmp_path, "install", "bw", values=values))
    assert "PodSecurity" not in warned
    deployments = of_the_chart(namespace, "deployments")
    assert len(deployments) == 8
    for name, deployment in deployments.items():
        pod = deployment["spec"]["template"] | {"metadata": {"name": name}}
        namespace.call("POST", f"{CORE}/pods?dryRun=All", pod)
        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        refused = namespace.ask("POST", f"{CORE}/pods?dryRun=All", pod)
        assert refused.status_code == 403
        assert "violates PodSecurity" in refused.json()["message"]


def test_a_quota_admits_every_pod(namespace: KubernetesApi, values: Object, tmp_path: Path) -> None:
    """Those of pools of one's own, too: a quota refuses what does not say how much it takes."""
    quotas = f"{CORE}/resourcequotas"
    hard = {"requests.cpu": "100", "requests.memory": "100Gi", "limits.memory": "100Gi"}
    namespace.call("POST", quotas, {"metadata": {"name": "quota"}, "spec": {"hard": hard}})
    try:
        # As the cluster's controller does it.
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        namespace.call("PATCH", f"{quotas}/quota/status", status, "application/merge-patch+json")
        succeeds(helm(namespace, tmp_path, "install", "bw", values=values))
        for name, deployment in of_the_chart(namespace, "deployments").items():
            pod = deployment["spec"]["template"] | {"metadata": {"name": name}}
            namespace.call("POST", f"{CORE}/pods?dryRun=All", pod)
            del pod["spec"]["containers"][0]["resources"]
            refused = namespace.ask("POST", f"{CORE}/pods?dryRun=All", pod)
            assert (refused.status_code, "must specify" in refused.json()["message"]) == (403, True)
    finally:
        namespace.call("DELETE", f"{quotas}/quota")
