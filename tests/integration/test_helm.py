"""The Helm chart as helm renders it: valid for Kubernetes, hardened, and with commands and settings that there are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from app.config.settings import Settings
from app.outbox.delivery.counters import read_counters
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests import provision, services
from tests.support.builders import add_target, event, migrated
from tests.support.chart import CHART, LEAST, ROOT, SECRETS, Object, helm, objects, pods, rendered
from tests.support.procfile import parses

SCALED = {"enabled": True, "maxReplicas": 16, "backlog": 1000000}
PEER = {"namespaceSelector": {"matchLabels": {"name": "there"}}}
MOST: dict[str, Any] = {
    "existingSecret": "more", "targetSecrets": "targets", "imagePullSecrets": [{"name": "registry"}],
    "settings": {"BUCKETWIRE_PARTITIONS": 32, "MINIO_NOTIFY_WEBHOOK_ENABLE_audit": "on"},
    "api": {
        "tls": {"existingSecret": "tls"}, "spool": {"enabled": True, "storageClass": "ssd"},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    },
    "pools": {
        "all": None,
        "webhooks": {
            "targets": ["webhook:audit", "webhook:x"], "replicas": 0, "concurrency": 1,
            "podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"}, "autoscaling": SCALED,
        },
        "rest": {"targets": ["kafka", "redis"], "replicas": 3, "concurrency": 8},
    },
    "spark": {
        "enabled": True, "master": "k8s://https://kubernetes.default.svc", "rbac": {"create": True},
        "defaults": {"spark.kubernetes.container.image": "executor:1", "spark.driver.port": "9999"},
        "existingSecret": "buckets", "reports": {"existingClaim": "reports"},
    },
    "sources": {"enabled": True, "replicas": 2}, "flower": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "tokenSecret": {"name": "token"}},
    "networkPolicy": {"api": [PEER], "metrics": [PEER], "flower": [PEER], "egress": [{"to": [PEER]}]},
    "serviceAccount": {"annotations": {"a": "b"}}, "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"},
    "nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}}, "priorityClassName": "high",
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
    "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls"}],
}  # fmt: skip
LOCAL_SPARK: dict[str, Any] = {**LEAST, "spark": {"enabled": True}, "networkPolicy": {"enabled": False}}
CASES = pytest.mark.parametrize("values", [LEAST, MOST, LOCAL_SPARK], ids=["least", "most", "local Spark"])


@CASES
def test_helm_finds_nothing_to_complain_of(values: Object, tmp_path: Path) -> None:
    done = helm(tmp_path, values, "lint", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


@CASES
def test_every_object_is_one_that_kubernetes_takes(values: Object) -> None:
    """But for those of Prometheus' operator and KEDA, whose schemas are not in Kubernetes' module."""
    for needed in ("kubeconform", "kubernetes_schemas"):
        services.need(needed)
    place = f"{provision.KUBERNETES_SCHEMAS}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [provision.KUBECONFORM / "kubeconform", "-strict", "-summary", "-schema-location", place]
    done = subprocess.run(
        [*command, "-skip", "ServiceMonitor,ScaledObject"], input=rendered(values), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Valid: 0" not in done.stdout


@CASES
def test_every_pod_keeps_to_the_restricted_standard_and_writes_nothing_of_its_image(values: Object) -> None:
    names = []
    for name, _, spec in pods(objects(values)):
        names.append(name)
        context = spec["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001), name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["enableServiceLinks"] is False, f"{name}: BUCKETWIRE_… of a service would be unknown settings"
        assert spec["automountServiceAccountToken"] is (name == "bw-bucketwire-spark" and values is MOST), name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }, name  # fmt: skip
    assert {"bw-bucketwire-api", "bw-bucketwire-beat", "bw-bucketwire-drain", "bw-bucketwire-migrate"} <= set(names)


@CASES
def test_every_pod_runs_a_command_that_there_is_with_settings_that_are_accepted(values: Object) -> None:
    every = objects(values)
    settings = {each["metadata"]["name"]: each for each in every if each["kind"] in ("ConfigMap", "Secret")}
    for name, _, spec in pods(every):
        for container in spec["containers"]:
            if "command" in container:  # the test's own
                continue
            assert parses(container["args"]), name
            environment = dict(SECRETS)
            for source in container["envFrom"]:
                [reference] = source.values()
                stored = settings.get(reference["name"], {})  # not one that exists already
                environment |= stored.get("data", {}) | stored.get("stringData", {})
            environment |= {each["name"]: each["value"] for each in container.get("env", [])}
            assert not Settings.from_environ(environment).embedded_database


@CASES
def test_every_process_has_a_readiness_probe_that_asks_where_it_answers(values: Object) -> None:
    for each in objects(values):
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        [container] = each["spec"]["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        asked = container["readinessProbe"]["httpGet"]
        listens = {value["value"] for value in container.get("env", []) if value["name"].endswith("_LISTEN")}
        listens |= {word for word in container["args"] if word.startswith("0.0.0.0:")}  # Flower's
        assert f"0.0.0.0:{ports[asked['port']]}" in listens, each["metadata"]["name"]
        if container["args"][0] in ("worker", "beat"):
            assert (asked["path"], asked["port"]) == ("/readyz", "probe"), each["metadata"]["name"]


@CASES
def test_every_container_requests_what_it_needs_and_has_a_limit_of_memory(values: Object) -> None:
    for name, _, spec in pods(objects(values)):
        for container in spec["containers"]:
            resources = container["resources"]
            assert resources["requests"].keys() == {"cpu", "memory"}, name
            assert resources["limits"].keys() == {"memory"}, name


def page_values() -> Object:
    """The values that the page gives as an example."""
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    found: Object = yaml.safe_load(re.findall(r"```yaml\n(image: .*?)```", page, re.DOTALL)[0])
    return found


def test_every_pool_of_the_documented_example_is_kept_available() -> None:
    every = objects(page_values())
    names = {each["metadata"]["name"] for each in every if each["kind"] == "Deployment" and "-pool-" in str(each)}
    assert names == {"bw-bucketwire-pool-webhooks", "bw-bucketwire-pool-rest"}
    assert names <= {each["metadata"]["name"] for each in every if each["kind"] == "PodDisruptionBudget"}


def test_a_pool_has_the_defaults_but_for_what_it_says_itself() -> None:
    own = {
        "replicas": 0, "concurrency": 8, "podDisruptionBudget": {"enabled": False},
        "resources": {"requests": {"cpu": "2"}, "limits": {"memory": None, "cpu": "3"}},
    }  # fmt: skip
    defaults = {"targets": ["kafka"], "concurrency": 2, "autoscaling": {"maxReplicas": 9}}
    pools = {"own": own, "all": {"autoscaling": {"enabled": True}}}
    every = objects(LEAST | {"poolDefaults": defaults, "pools": pools})
    found = {(each["kind"], each["metadata"]["name"].rpartition("-")[2]): each.get("spec") for each in every}
    assert found["Deployment", "own"]["replicas"] == 0
    [container] = found["Deployment", "own"]["template"]["spec"]["containers"]
    assert container["args"] == ["worker", "--only", "targets", "--concurrency", "8", "--targets", "kafka"]
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "640Mi"}, "limits": {"cpu": "3"}}
    assert ("PodDisruptionBudget", "own") not in found
    assert ("PodDisruptionBudget", "all") in found
    assert (found["ScaledObject", "all"]["minReplicaCount"], found["ScaledObject", "all"]["maxReplicaCount"]) == (1, 9)
    [container] = found["Deployment", "all"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "150m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def test_what_the_api_has_answered_stays_when_its_pod_goes() -> None:
    every = objects(LEAST | {"api": {"spool": {"enabled": True, "size": "20Gi"}}})
    assert not any(each["metadata"]["name"] == "bw-bucketwire-api" for each in every if each["kind"] == "Deployment")
    [api] = [each for each in every if each["kind"] == "StatefulSet"]
    [claim] = api["spec"]["volumeClaimTemplates"]
    [container] = api["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == claim["metadata"]["name"]]
    # A folder in it, which the service makes and keeps to itself: the volume's own may have a lost+found of root's.
    assert Path(environment["BUCKETWIRE_SPOOL_DIR"]).parent == Path(mount["mountPath"])
    assert claim["spec"]["resources"]["requests"] == {"storage": "20Gi"}


@CASES
def test_every_selector_finds_the_pods_that_it_is_for(values: Object) -> None:
    every = objects(values)
    labels = {name: found for name, found, _ in pods(every)}
    selected: dict[str, set[str]] = {}
    for each in every:
        selector = each.get("spec", {}).get("selector")
        if each["kind"] in ("Service", "PodDisruptionBudget", "Deployment", "StatefulSet"):
            wanted = (selector.get("matchLabels") or selector).items()
            matches = {name for name, found in labels.items() if wanted <= found.items()}
            selected[f"{each['kind']} {each['metadata']['name']}"] = matches
    workers = {name for name in labels if "-pool-" in name}
    assert workers
    assert selected.pop("Service bw-bucketwire-workers") == workers
    assert {name: found for name, found in selected.items() if found != {name.split()[1]}} == {}


def test_monitors_find_the_services_and_their_ports() -> None:
    every = objects(MOST)
    found = 0
    for monitor in (each for each in every if each["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        [service] = [e for e in every if e["kind"] == "Service" and wanted <= e["metadata"]["labels"].items()]
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        found += 1
    assert found == 2


def test_the_migration_comes_first_and_needs_nothing_that_comes_later() -> None:
    hooks = {
        (each["kind"], each["metadata"]["name"]): each
        for each in objects(LEAST)
        if "pre-install" in each["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    }
    job = hooks["Job", "bw-bucketwire-migrate"]["spec"]["template"]["spec"]
    for source in job["containers"][0]["envFrom"]:
        assert ("Secret", source["secretRef"]["name"]) in hooks
    assert "serviceAccountName" not in job


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "set secrets.BUCKETWIRE_DATABASE_URL"),
        ({**LEAST, "replicas": 3}, "replicas"),
        ({**LEAST, "pools": {"all": {"targets": ["webhook:a' OR 'b"], "replicas": 1, "concurrency": 1}}}, "targets"),
        ({**LEAST, "api": {"replicas": "many"}}, "replicas"),
        ({**LEAST, "settings": {"lower": "x"}}, "lower"),
        ({**LEAST, "settings": {"BUCKETWIRE_TLS_CERT": "/tls/tls.crt"}}, "set api.tls.existingSecret"),
        ({**LEAST, "settings": {"BUCKETWIRE_SPOOL_DIR": "/var/lib/bucketwire/var/spool"}}, "set api.spool.enabled"),
        ({"secrets": SECRETS | {"BUCKETWIRE_STOP_DELAY": "1m"}}, "set api.stopDelaySeconds"),
    ],
)
def test_values_that_cannot_work_are_refused(values: Object, complaint: str, tmp_path: Path) -> None:
    done = helm(tmp_path, values, "template", "bw")
    assert done.returncode != 0
    assert complaint in done.stderr


def test_every_value_is_in_the_documented_file() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(described: Object, given: Any, path: str) -> None:
        described = schema["definitions"][described["$ref"].rpartition("/")[2]] if "$ref" in described else described
        for name, member in described.get("properties", {}).items():
            if f"{path}.{name}" != ".global":
                assert name in given, f"{path}.{name}"
                compare(member, given[name], f"{path}.{name}")

    compare(schema, values, "")


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert chart["appVersion"] == version
    assert chart["version"] == version.replace(".dev", "-dev")  # a chart's version is semantic


@pytest.fixture
def log(postgres_outbox: str) -> Iterator[Database]:
    opened = migrated(postgres_outbox)
    yield opened
    opened.close()


def test_the_autoscaler_counts_what_is_pending_for_the_pools_targets(log: Database) -> None:
    [scaled] = [each for each in objects(MOST) if each["kind"] == "ScaledObject"]
    [trigger] = scaled["spec"]["triggers"]
    query = sa.text(trigger["metadata"]["query"])
    with log.reading() as connection:
        assert connection.execute(query).scalar_one() == 0
    for name in ("x", "y"):  # the pool serves only the first
        add_target(log, name)
    Log(log).append([[event("a"), event("b")]])
    with log.reading() as connection:
        assert [entry.pending for entry in read_counters(connection)] == [2, 2]
        assert connection.execute(query).scalar_one() == 2
