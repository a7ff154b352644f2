"""The Helm chart, as helm renders it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests import provision, services

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/bucketwire"
SECRETS = {
    "BUCKETWIRE_DATABASE_URL": "postgresql://bucketwire:x@database/bucketwire",
    "BUCKETWIRE_BROKER_URL": "amqp://bucketwire:x@rabbitmq//",
    "BUCKETWIRE_SECRET_KEYS": "u9Qe0xkqDqk0yXH3p2o0hQ0XcX1m8o6v6fJm1pWcQ2A=",
    "BUCKETWIRE_API_TOKENS": f"minio:ingest:{'x' * 32}",
}
Object = dict[str, Any]
LEAST: Object = {"secrets": SECRETS}


def helm(folder: Path, values: Object, *words: str) -> subprocess.CompletedProcess[str]:
    services.need("helm")
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    home = {f"HELM_{name}_HOME": str(folder) for name in ("CACHE", "CONFIG", "DATA")}
    command = [provision.HELM / "helm", *words, CHART, "--values", folder / "values.yaml", "--namespace", "events"]
    command += ["--kube-version", provision.KUBERNETES_VERSION]  # as it was built it takes it for 1.20
    return subprocess.run(command, env=home, capture_output=True, text=True, timeout=60, check=False)


def rendered(values: Object) -> str:
    return _rendered(json.dumps(values))


@cache
def _rendered(values: str) -> str:
    done = helm(services.new_folder("helm"), json.loads(values), "template", "bw")
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(values: Object) -> list[Object]:
    return [each for each in yaml.load_all(rendered(values), yaml.CSafeLoader) if each]


def pods(every: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """The name, labels and specification of each pod that is made."""
    for each in every:
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = each["spec"]["template"]
            yield each["metadata"]["name"], template["metadata"]["labels"], template["spec"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], each["metadata"]["labels"], each["spec"]
