"""Kubernetes' API server with its etcd: it stores, defaults, validates and admits objects. Nothing runs any pods."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import requests
import yaml

from tests import provision
from tests.services.certificates import Certificates, certificates
from tests.services.server_process import LOOPBACK, Server, accepting, free_port, need

_TOKEN = "of-the-tests"


@dataclass(eq=False)
class Etcd(Server):
    """The API server's database, which forgets everything with its folder."""

    name: ClassVar[str] = "etcd"

    def check(self) -> None:
        need("kubernetes")

    def argv(self) -> Sequence[str | Path]:
        peers = f"http://{LOOPBACK}:{free_port()}"
        return [
            provision.KUBERNETES / "etcd", f"--data-dir={self.folder / 'data'}", "--unsafe-no-fsync",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]  # fmt: skip

    def ping(self) -> None:
        accepting(self.port)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


@dataclass(eq=False)
class KubernetesApi(Server):
    """An API server whose one user may do everything."""

    name: ClassVar[str] = "kube-apiserver"
    patience: ClassVar[float] = 60
    etcd: Etcd
    tls: Certificates

    def check(self) -> None:
        need("kubernetes")

    def prepare(self) -> None:
        (self.folder / "tokens").write_text(f'{_TOKEN},tests,tests,"system:masters"\n')
        user, cluster = {"token": _TOKEN}, {"server": self.url, "certificate-authority": str(self.tls.ca)}
        entry = {"cluster": "here", "user": "tests"}
        self.config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "here",
                    "clusters": [{"name": "here", "cluster": cluster}], "users": [{"name": "tests", "user": user}],
                    "contexts": [{"name": "here", "context": entry}],
                }
            )
        )  # fmt: skip

    def argv(self) -> Sequence[str | Path]:
        return [
            provision.KUBERNETES / "kube-apiserver", f"--etcd-servers={self.etcd.url}",
            f"--bind-address={LOOPBACK}", f"--secure-port={self.port}", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={self.tls.cert}", f"--tls-private-key-file={self.tls.key}",
            f"--cert-dir={self.folder}", f"--token-auth-file={self.folder / 'tokens'}", "--authorization-mode=RBAC",
            # No controller makes accounts for namespaces, and pods without one would be refused.
            "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.tls.key}", f"--service-account-signing-key-file={self.tls.key}",
        ]  # fmt: skip

    def ping(self) -> None:
        self.call("GET", "/readyz")

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def config(self) -> Path:
        """The value of `KUBECONFIG`."""
        return self.folder / "config"

    def ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> requests.Response:
        """Make a request, whatever the answer is."""
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": kind}
        return requests.request(
            method, f"{self.url}{path}", json=body, headers=headers, verify=str(self.tls.ca), timeout=30
        )

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Make a request that must succeed, and return the object in its answer, or its text."""
        answer = self.ask(method, path, body, kind)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if "json" in answer.headers["Content-Type"] else answer.text


def kubernetes(stack: ExitStack) -> KubernetesApi:
    """A running API server, which is stopped before its etcd."""
    etcd = stack.enter_context(Etcd().start())
    return stack.enter_context(KubernetesApi(etcd, certificates()).start())
