"""The Helm chart as helm renders it: valid for Kubernetes, hardened, and with commands and settings that there are."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from app.config.settings import Settings
from app.outbox.admin.counters import read_counters
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests import provision, services
from tests.support.builders import add_target, event, migrated
from tests.support.chart import CHART, LEAST, ROOT, SECRETS, Object, helm, objects, pods, rendered
from tests.support.chart_values import DIGEST, EVERY, OFF, OTHERS
from tests.support.procfile import parses

CASES = pytest.mark.parametrize("values", [LEAST, EVERY, OTHERS, OFF], ids=["least", "every", "others", "off"])
TRIED = (OFF, OTHERS, EVERY)  # what is the least to render first
OPERATORS = "ServiceMonitor,PrometheusRule,ScaledObject,HTTPRoute"


@CASES
def test_helm_finds_nothing_to_complain_of(values: Object, tmp_path: Path) -> None:
    done = helm(tmp_path, values, "lint", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


@CASES
def test_every_object_is_one_that_kubernetes_takes(values: Object) -> None:
    """But for those of operators, whose schemas are not in Kubernetes' module."""
    for needed in ("kubeconform", "kubernetes_schemas"):
        services.need(needed)
    place = f"{provision.KUBERNETES_SCHEMAS}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [provision.KUBECONFORM / "kubeconform", "-strict", "-summary", "-schema-location", place]
    done = subprocess.run(
        [*command, "-skip", OPERATORS], input=rendered(values), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Valid: 0" not in done.stdout


@CASES
def test_every_pod_keeps_to_the_restricted_standard_and_writes_nothing_of_its_image(values: Object) -> None:
    """Also the containers that the values add, which need not say so."""
    names = []
    for name, _, spec in pods(objects(values)):
        names.append(name)
        context = spec["securityContext"]
        assert (context["runAsNonRoot"], context.get("runAsUser") == 0) == (True, False), name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["enableServiceLinks"] is False, f"{name}: BUCKETWIRE_… of a service would be unknown settings"
        needs_token = name == "bw-bucketwire-spark" and values is EVERY
        assert spec["automountServiceAccountToken"] is needs_token or values in (EVERY, OTHERS), name
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            tried = {"privileged": False, "procMount": "Default", "runAsNonRoot": True}
            assert container["securityContext"] | tried == tried | {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }, name  # fmt: skip
    assert {"bw-bucketwire-api", "bw-bucketwire-beat", "bw-bucketwire-drain"} <= set(names)


def ours(spec: Object) -> Object:
    """The container of a pod that runs the image."""
    container: Object = spec["containers"][0]
    assert container["name"] in ("bucketwire", "ready")
    return container


@CASES
def test_every_pod_runs_a_command_that_there_is_with_settings_that_are_accepted(values: Object) -> None:
    every = objects(values)
    settings = {each["metadata"]["name"]: each for each in every if each["kind"] in ("ConfigMap", "Secret")}
    for name, _, spec in pods(every):
        container = ours(spec)
        if "command" in container:  # the test's own
            continue
        assert parses(container["args"]), name
        environment = dict(SECRETS)
        for source in container["envFrom"]:
            [reference] = source.values()
            stored = settings.get(reference["name"], {})  # not one that exists already
            environment |= stored.get("data", {}) | stored.get("stringData", {})
        environment |= {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
        assert not Settings.from_environ(environment).embedded_database


@CASES
def test_every_process_has_a_readiness_probe_that_asks_where_it_answers(values: Object) -> None:
    for each in objects(values):
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        container = ours(each["spec"]["template"]["spec"])
        if "exec" in container["readinessProbe"]:  # of one's own
            assert values is EVERY
            continue
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        asked = container["readinessProbe"]["httpGet"]
        listens = {value["value"] for value in container.get("env", []) if value["name"].endswith("_LISTEN")}
        listens |= {word for word in container["args"] if word.startswith("0.0.0.0:")}  # Flower's
        assert f"0.0.0.0:{ports[asked['port']]}" in listens, each["metadata"]["name"]
        if container["args"][0] in ("worker", "beat"):
            assert (asked["path"], asked["port"]) == ("/readyz", "probe"), each["metadata"]["name"]


@CASES
def test_every_probe_asks_something(values: Object) -> None:
    """A cluster refuses one that only says how often."""
    for name, _, spec in pods(objects(values)):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert {"exec", "httpGet"} & ours(spec).get(probe, {"exec": "there is none"}).keys(), f"{name}: {probe}"


@CASES
def test_every_container_requests_what_it_needs_and_has_a_limit_of_memory(values: Object) -> None:
    for name, _, spec in pods(objects(values)):
        resources = ours(spec)["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}, name
        assert resources["limits"].keys() - {"cpu"} == {"memory"}, name


PAGE = (ROOT / "docs/how-to/kubernetes.md").read_text()


def page_values() -> Object:
    """The values that the page gives as an example."""
    found: Object = yaml.safe_load(re.findall(r"```yaml\n(image: .*?)```", PAGE, re.DOTALL)[0])
    return found


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_of_the_page_is_accepted(example: str) -> None:
    assert objects(LEAST | yaml.safe_load(example))


def test_every_pool_of_the_documented_example_is_kept_available() -> None:
    every = objects(page_values())
    names = {each["metadata"]["name"] for each in every if each["kind"] == "Deployment" and "-pool-" in str(each)}
    assert names == {"bw-bucketwire-pool-webhooks", "bw-bucketwire-pool-rest"}
    assert names <= {each["metadata"]["name"] for each in every if each["kind"] == "PodDisruptionBudget"}


@pytest.mark.parametrize(("budget", "least"), [({}, None), ({"minAvailable": "50%"}, "50%"), ({"minAvailable": 0}, 0)])
def test_a_node_can_be_drained_while_no_worker_is_ready(budget: Object, least: str | int | None) -> None:
    """As while the broker is away; a disruption budget would keep even pods that serve nothing, unless it says so."""
    of = {part: {"podDisruptionBudget": budget} for part in ("api", "drain", "poolDefaults")}
    budgets = [each for each in objects(LEAST | of) if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == 3
    for each in budgets:
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert each["spec"].get("minAvailable") == least
        assert each["spec"].get("maxUnavailable") == (1 if least is None else None)


def test_a_pool_has_the_defaults_but_for_what_it_says_itself() -> None:
    own = {
        "replicas": 0, "concurrency": 8, "podDisruptionBudget": {"enabled": False},
        "resources": {"requests": {"cpu": "2"}, "limits": {"memory": None, "cpu": "3"}},
    }  # fmt: skip
    defaults = {"targets": ["kafka"], "concurrency": 2, "keda": {"maxReplicas": 9}}
    pools = {"own": own, "all": {"keda": {"enabled": True}}}
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
    workers.add("bw-bucketwire-drain")
    assert selected.pop("Service bw-bucketwire-workers") == workers
    assert {name: found for name, found in selected.items() if found != {name.split()[1]}} == {}


def test_monitors_find_the_services_and_their_ports() -> None:
    every, jobs = objects(EVERY), []
    for monitor in (each for each in every if each["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        [service] = [e for e in every if e["kind"] == "Service" and wanted <= e["metadata"]["labels"].items()]
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        jobs += [each["replacement"] for each in endpoint["relabelings"] if each.get("targetLabel") == "job"]
        assert len(endpoint["relabelings"]) > 1, "the values' own follow"
    assert jobs == ["bucketwire-api", "bucketwire-workers"], "by which an alert knows the processes"
    pods = {each["metadata"]["name"]: each["spec"]["template"] for each in every if each["kind"] == "Deployment"}
    measured = {name for name, pod in pods.items() if "bucketwire/metrics" in pod["metadata"]["labels"]}
    assert {"bw-bucketwire-drain"} < measured
    for name in measured:
        container, *_ = pods[name]["spec"]["containers"]
        assert {"name": "metrics", "containerPort": 9100} in container["ports"]
        assert {"name": "BUCKETWIRE_METRICS_LISTEN", "value": "0.0.0.0:9100"} in container["env"]


def test_the_migration_comes_first_and_needs_nothing_that_comes_later() -> None:
    hooks = {
        (each["kind"], each["metadata"]["name"]): each
        for each in objects(LEAST)
        if "pre-install" in each["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    }
    job = hooks["Job", "bw-bucketwire-migrate"]["spec"]["template"]["spec"]
    for source in job["containers"][0]["envFrom"]:
        assert ("Secret", source["secretRef"]["name"]) in hooks
    assert ("ServiceAccount", job["serviceAccountName"]) in hooks
    weights = {kind: int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for (kind, _), each in hooks.items()}
    assert weights["Job"] > max(weights["Secret"], weights["ServiceAccount"])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "set secrets.BUCKETWIRE_DATABASE_URL"),
        ({**LEAST, "replicas": 3}, "replicas"),
        ({**LEAST, "pools": {"all": {"targets": ["webhook:a' OR 'b"], "replicas": 1, "concurrency": 1}}}, "targets"),
        ({**LEAST, "api": {"replicas": "many"}}, "replicas"),
        ({**LEAST, "settings": {"lower": "x"}}, "lower"),
        ({**LEAST, "settings": {"BUCKETWIRE_TLS_CERT": "/tls/tls.crt"}}, "set api.tls.existingSecret"),
        ({**LEAST, "api": {"hpa": {"enabled": True}, "spool": {"enabled": True}}}, "api.hpa and api.spool"),
        ({**LEAST, "pools": {"x": {"hpa": {"enabled": True}, "keda": {"enabled": True}}}}, "pools.x has hpa and keda"),
        ({**LEAST, "ingress": {"enabled": True}}, "ingress.hosts is empty"),
        ({**LEAST, "httpRoute": {"enabled": True}}, "httpRoute.parentRefs is empty"),
        ({**LEAST, "prometheusRule": {"enabled": True, "disabled": ["Nothing"]}}, "there is no alert Nothing"),
        ({**LEAST, "beat": {"nodeSelektor": {}}}, "nodeSelektor"),
        ({**LEAST, "image": {"digest": "sha256:1234"}}, "digest"),
        (
            {**LEAST, "drain": {"extraEnv": [{"name": "BUCKETWIRE_PROBE_LISTEN", "value": ":1"}]}},
            "BUCKETWIRE_PROBE_LISTEN cannot be set as a variable",
        ),
        ({**LEAST, "settings": {"BUCKETWIRE_SPOOL_DIR": "/var/lib/bucketwire/var/spool"}}, "set api.spool.enabled"),
        ({"secrets": SECRETS | {"BUCKETWIRE_STOP_DELAY": "1m"}}, "set api.stopDelaySeconds"),
    ],
)
def test_values_that_cannot_work_are_refused(values: Object, complaint: str, tmp_path: Path) -> None:
    done = helm(tmp_path, values, "template", "bw")
    assert done.returncode != 0
    assert complaint in done.stderr


SCHEMA = yaml.safe_load((CHART / "values.schema.json").read_text())


def described(schema: Object, path: str = "") -> Iterator[str]:
    """The path of each value that the schema knows, but what a user names."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    properties = schema.get("properties")
    if properties is None or path.count(".") > 4:
        yield path
        return
    for name, member in properties.items():
        yield from described({} if member is True else member, f"{path}.{name}")


def given(values: Any, path: str) -> bool:
    for name in path[1:].split("."):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def test_every_value_is_in_the_documented_file() -> None:
    documented = yaml.safe_load((CHART / "values.yaml").read_text())
    of_pods = SCHEMA["definitions"]["pod"]["properties"].keys()
    for path in described(SCHEMA):
        _, part, *rest = path.split(".")
        if not (rest and rest[0] in of_pods and part != "podDefaults"):  # what every component may have
            assert given(documented, path), path


def every_path() -> Iterator[str]:
    """The path of each value; those of a pool also in one that has its own."""
    for path in described(SCHEMA):
        if path != ".pools":
            yield path
        if path.startswith(".poolDefaults."):
            yield path.replace(".poolDefaults.", ".pools.webhooks.")


def test_every_value_is_among_those_that_are_tried() -> None:
    assert [path for path in every_path() if not any(given(values, path) for values in TRIED)] == []


def without(values: Object, path: str) -> Object:
    left: Object = deepcopy(values)
    *folders, name = path[1:].split(".")
    del reduce(dict.__getitem__, folders, left)[name]
    return left


@pytest.mark.slow
@pytest.mark.nightly("that each value is among those that are tried")
def test_every_value_that_is_tried_makes_a_difference(tmp_path: Path) -> None:
    """What is accepted and changes nothing would be a mistake of the chart, or is not tried really."""

    def makes_a_difference(path: str) -> bool:
        for values in TRIED:
            if given(values, path):
                done = helm(tmp_path, without(values, path), "template", "bw")
                if done.stdout != rendered(values):  # also where helm refuses what is left
                    return True
        return False

    no_option_of_every_command = ".podDefaults.extraArgs"
    assert [path for path in every_path() if not makes_a_difference(path)] == [no_option_of_every_command]


def specs(values: Object) -> dict[str, Object]:
    """The specification of each pod, by its component."""
    return {name.removeprefix("bw-bucketwire-"): spec for name, _, spec in pods(objects(values))}


def test_pods_of_a_component_avoid_each_others_node_unless_told_otherwise() -> None:
    own = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    values = LEAST | {
        "podDefaults": {"affinity": {"nodeAffinity": {}}},
        "api": {"podAntiAffinityPreset": "hard"}, "beat": {"podAntiAffinityPreset": "none"}, "drain": {"affinity": own},
    }  # fmt: skip
    found = {name: spec["affinity"] for name, spec in specs(values).items()}
    assert found["beat"] == {"nodeAffinity": {}}
    assert found["drain"] == {"nodeAffinity": {}, **own}
    [weighted] = found["pool-all"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    [term] = found["api"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for component, affinity in (("pool-all", weighted["podAffinityTerm"]), ("api", term)):
        assert affinity["topologyKey"] == "kubernetes.io/hostname"
        assert affinity["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == component


def test_a_component_adds_to_what_every_pod_has_or_replaces_it() -> None:
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    values = LEAST | {
        "podDefaults": {"extraEnv": [node], "nodeSelector": {"disk": "ssd"}, "podAnnotations": {"a": "1", "b": "1"}},
        "poolDefaults": {"extraEnv": [{"name": "POOLS", "value": "1"}], "extraArgs": ["--log-level", "DEBUG"]},
        "pools": {"all": {"extraEnv": [{"name": "ALL", "value": "1"}], "nodeSelector": {"disk": None, "cpu": "fast"}}},
        "drain": {"podAnnotations": {"b": "2"}, "terminationGracePeriodSeconds": 90},
    }  # fmt: skip
    found = specs(values)
    assert [each["name"] for each in ours(found["pool-all"])["env"]][-3:] == ["NODE", "POOLS", "ALL"]
    assert ours(found["pool-all"])["args"][-2:] == ["--log-level", "DEBUG"]
    assert found["pool-all"]["nodeSelector"] == {"cpu": "fast"}
    for name in ("api", "beat", "drain", "migrate"):
        assert node in ours(found[name])["env"], name
        assert found[name]["nodeSelector"] == {"disk": "ssd"}, name
    assert [found[name]["terminationGracePeriodSeconds"] for name in ("drain", "beat")] == [90, 45]
    found = {each["metadata"]["name"]: each for each in objects(values) if each["kind"] == "Deployment"}
    annotations = found["bw-bucketwire-drain"]["spec"]["template"]["metadata"]["annotations"]
    assert {"a": "1", "b": "2"}.items() <= annotations.items()


@pytest.mark.parametrize(
    ("openshift", "api_versions", "chosen"),
    [("auto", [], 10001), ("auto", ["security.openshift.io/v1"], None), ("force", [], None),
     ("disabled", ["security.openshift.io/v1"], 10001)],
)  # fmt: skip
def test_on_openshift_the_cluster_chooses_user_and_groups(
    openshift: str, api_versions: list[str], chosen: int | None, tmp_path: Path
) -> None:
    options = [word for version in api_versions for word in ("--api-versions", version)]
    done = helm(tmp_path, LEAST | {"openshift": openshift}, "template", "bw", *options)
    assert done.returncode == 0, done.stderr
    for name, _, spec in pods([each for each in yaml.safe_load_all(done.stdout) if each]):
        context = spec["securityContext"]
        assert [context.get(key) for key in ("runAsUser", "runAsGroup", "fsGroup")] == [chosen] * 3, name
        assert context["runAsNonRoot"], name


@pytest.mark.parametrize("user", [5, None])
def test_a_user_of_ones_own_or_none(user: int | None) -> None:
    found = specs(LEAST | {"podDefaults": {"podSecurityContext": {"runAsUser": user}}})
    assert {spec["securityContext"].get("runAsUser") for spec in found.values()} == {user}


def test_an_image_by_its_digest_from_a_registry_of_all_charts() -> None:
    values = LEAST | {"image": {"digest": DIGEST}, "global": {"imageRegistry": "registry.example:5000"}}
    assert {ours(spec)["image"] for spec in specs(values).values()} == {f"registry.example:5000/bucketwire@{DIGEST}"}


def test_variables_from_keys_of_existing_secrets_reach_every_process() -> None:
    names = ("BUCKETWIRE_DATABASE_URL", "BUCKETWIRE_BROKER_URL", "BUCKETWIRE_SECRET_KEYS")
    found = specs({"secretKeyRefs": {name: {"name": "operators", "key": f"{name}-key"} for name in names}})
    del found["test"]
    for name, spec in found.items():
        refs = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in ours(spec)["env"] if "valueFrom" in each}
        assert refs == {name: {"name": "operators", "key": f"{name}-key"} for name in names}, name


def test_the_alerts_and_the_dashboard_are_those_of_the_repository() -> None:
    file = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    values = {"prometheusRule": {"enabled": True}, "grafanaDashboard": {"enabled": True}}
    every = {(each["kind"], each["metadata"]["name"]): each for each in objects(LEAST | values)}
    assert every["PrometheusRule", "bw-bucketwire"]["spec"] == file
    dashboard = every["ConfigMap", "bw-bucketwire-dashboard"]
    assert json.loads(dashboard["data"]["bw-bucketwire.json"]) == json.loads(
        (ROOT / "deploy/grafana/bucketwire.json").read_text()
    )
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"

    [changed] = [each for each in objects(EVERY) if each["kind"] == "PrometheusRule"]
    rules = changed["spec"]["groups"][0]["rules"]
    assert {each["alert"] for each in file["groups"][0]["rules"]} - {each["alert"] for each in rules} == {
        "BucketwireProcessDown"
    }
    runbook = "https://git.example.com/bw/docs/how-to/alerts.md#"
    assert {each["annotations"]["runbook_url"].partition("#")[0] + "#" for each in rules} == {runbook}


def test_requests_from_outside_reach_the_service() -> None:
    every = {each["kind"]: each for each in objects(EVERY) if each["metadata"]["name"] == "bw-bucketwire-api"}
    [port] = every["Service"]["spec"]["ports"]
    for rule in every["Ingress"]["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            assert path["backend"]["service"] == {"name": "bw-bucketwire-api", "port": {"name": port["name"]}}
    [route] = every["HTTPRoute"]["spec"]["rules"]
    assert route["backendRefs"] == [{"name": "bw-bucketwire-api", "port": port["port"]}]


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
    pool = {"targets": ["webhook:audit", "webhook:x"], "keda": {"enabled": True}}
    every = objects(LEAST | {"pools": {"all": None, "webhooks": pool}})
    [scaled] = [each for each in every if each["kind"] == "ScaledObject"]
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
