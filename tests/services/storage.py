"""MinIO, the storage whose notifications the product understands and whose clients it has to please."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import boto3  # type: ignore[import-untyped]  # ships no types
import botocore.config  # type: ignore[import-untyped]
import minio as minio_py

from tests import provision
from tests.services.certificates import certificates
from tests.services.server_process import LOOPBACK, Server, accepting, need

ACCESS_KEY = "minioadmin"
SECRET_KEY = "minioadmin"  # MinIO's own default; it listens on loopback only


@dataclass(eq=False)
class MinIO(Server):
    """A MinIO server of one folder. Objects, rules and users survive kill and start.

    `webhooks` maps a target's name to its (endpoint, token); the session's authority is trusted, and its client
    certificate shown, where an endpoint is https. `extra_env` goes to MinIO as it is.
    """

    name: ClassVar[str] = "minio"
    webhooks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    region: str = ""
    extra_env: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False

    access_key: ClassVar[str] = ACCESS_KEY
    secret_key: ClassVar[str] = SECRET_KEY

    def prepare(self) -> None:
        certs, folder = certificates(), self.folder / "certs"
        (folder / "CAs").mkdir(parents=True)
        shutil.copy(certs.ca, folder / "CAs/ca.crt")
        if self.tls:
            shutil.copy(certs.cert, folder / "public.crt")
            shutil.copy(certs.key, folder / "private.key")

    def argv(self) -> Sequence[str | Path]:
        options: list[str | Path] = ["--address", f"{LOOPBACK}:{self.port}", "--certs-dir", self.folder / "certs"]
        return [provision.MINIO / "minio", "server", *options, self.folder / "data"]

    def env(self) -> Mapping[str, str]:
        settings = {
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_BROWSER": "off",  # the console would listen on every interface
            "MINIO_UPDATE": "off",
        }
        if self.region:
            settings["MINIO_SITE_REGION"] = self.region
        certs = certificates()
        for name, (endpoint, token) in self.webhooks.items():
            target = {"ENABLE": "on", "ENDPOINT": endpoint, "AUTH_TOKEN": token}
            if endpoint.startswith("https:"):
                target |= {"CLIENT_CERT": str(certs.client_cert), "CLIENT_KEY": str(certs.client_key)}
            settings |= {f"MINIO_NOTIFY_WEBHOOK_{key}_{name}": value for key, value in target.items()}
        return {**settings, **self.extra_env}

    def ping(self) -> None:
        accepting(self.port)
        self.client().list_buckets()

    @property
    def endpoint(self) -> str:
        """Host and port, as minio-py wants it."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """The endpoint with its scheme, as boto3 and mc want it."""
        return f"{'https' if self.tls else 'http'}://{self.endpoint}"

    def arn(self, name: str) -> str:
        """The ARN of the webhook called `name`."""
        return f"arn:minio:sqs:{self.region}:{name}:webhook"

    def notify_of(self, bucket: str) -> None:
        """Have each webhook get what is created in a bucket, and what is removed from it."""
        events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        targets = [{"QueueArn": self.arn(name), "Events": events} for name in self.webhooks]
        with closing(self.boto3()) as client:
            client.put_bucket_notification_configuration(
                Bucket=bucket, NotificationConfiguration={"QueueConfigurations": targets}
            )

    def restart(self) -> None:
        """Stop it and start it again, with the same objects."""
        self.stop()
        self.start()

    def client(self) -> minio_py.Minio:
        """A minio-py client as the root user."""
        return minio_py.Minio(
            self.endpoint,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            secure=self.tls,
            region=self.region or "us-east-1",
            http_client=_pool(str(certificates().ca)),
        )

    def boto3(self, **settings: Any) -> Any:
        """A boto3 S3 client as the root user, by path and Signature Version 4; to be closed by the caller."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=self.region or "us-east-1",
            verify=str(certificates().ca) if self.tls else None,
            config=botocore.config.Config(s3={"addressing_style": "path"}, **settings),
        )

    def mc(self, *arguments: str) -> list[Any]:
        """Run `mc` with this server as the alias `m`; returns its output's JSON lines, RuntimeError when it fails."""
        need("mc")
        argv: list[str | Path] = [provision.MC / "mc", "--config-dir", self.folder / "mc", "--json", *arguments]
        host = f"{self.url.split('//')[0]}//{ACCESS_KEY}:{SECRET_KEY}@{self.endpoint}"
        env = {
            "MC_HOST_m": host,
            "HOME": str(self.folder),
            "PATH": "/usr/bin:/bin",
            "SSL_CERT_FILE": str(certificates().ca),
        }
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise RuntimeError(f"mc {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line]


def _pool(ca: str) -> Any:
    import urllib3

    # minio-py's own pool waits 5 minutes for an answer and repeats five times: a test wants to see the failure.
    return urllib3.PoolManager(timeout=urllib3.Timeout(connect=5, read=30), ca_certs=ca, retries=False)


def minio(
    *,
    webhooks: Mapping[str, tuple[str, str]] | None = None,
    region: str = "",
    extra_env: Mapping[str, str] | None = None,
    tls: bool = False,
) -> MinIO:
    """A running MinIO of its own."""
    return MinIO(webhooks or {}, region, extra_env or {}, tls).start()
