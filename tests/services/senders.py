"""Frontends other than MinIO that send events by themselves: SeaweedFS, Versity's S3 gateway and Ceph RGW.

Each posts all its events to `endpoint`, which has to answer before it starts. They belong to `make test-all`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

import boto3  # type: ignore[import-untyped]  # ships no types
import botocore.config  # type: ignore[import-untyped]

from tests import provision
from tests.services.server_process import LOOPBACK, Server, accepting, free_port

ACCESS_KEY = "bucketwire"
SECRET_KEY = "bucketwire-secret"


class Login(NamedTuple):
    """Who asks a frontend."""

    access_key: str
    secret_key: str


LOGIN = Login(ACCESS_KEY, SECRET_KEY)


@dataclass(eq=False)
class S3Server(Server):
    """A store with an S3 API at `port`."""

    patience: ClassVar[float] = 120
    access_key: ClassVar[str] = ACCESS_KEY
    secret_key: ClassVar[str] = SECRET_KEY

    @property
    def url(self) -> str:
        """The address of its S3 API."""
        return f"http://{LOOPBACK}:{self.port}"

    def boto3(self, service: str = "s3", login: Login = LOGIN) -> Any:
        """A boto3 client by path and Signature Version 4; to be closed by the caller."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            aws_access_key_id=login.access_key,
            aws_secret_access_key=login.secret_key,
            region_name="us-east-1",
            config=botocore.config.Config(
                signature_version="s3v4" if service == "s3" else None,
                s3={"addressing_style": "path"},
                retries={"max_attempts": 1},
            ),
        )

    def notify_of(self, bucket: str) -> None:
        """Have the events of an existing bucket sent, where that is not done for all of them."""

    def restart(self) -> None:
        """Stop it and start it again, with the same objects."""
        self.stop()
        self.start()

    def ping(self) -> None:
        accepting(self.port)
        client = self.boto3()
        try:
            client.list_buckets()
        finally:
            client.close()


@dataclass(eq=False)
class Sender(S3Server):
    """A frontend that posts its events to `endpoint` with `token`."""

    endpoint: str
    token: str

    @property
    def endpoint_with_token(self) -> str:
        """The endpoint for frontends that have no other place for a token."""
        return self.endpoint_with(self.token)

    def endpoint_with(self, token: str) -> str:
        """The same with another token."""
        return self.endpoint.replace("://", f"://bw:{token}@", 1)


@dataclass(eq=False)
class SeaweedFS(Sender):
    """Master, volume server, filer and S3 API in one process, with the filer's webhook.

    `store` is what the filer keeps its entries in; without it, it has its own default.
    """

    name: ClassVar[str] = "seaweedfs"
    store: str = ""
    filer_port: int = field(init=False)
    _ports: Mapping[str, int] = field(init=False)

    def prepare(self) -> None:
        self.filer_port = free_port()
        ports = {name: free_port() for name in ("master.port", "volume.port")}
        ports |= {f"{name}.port.grpc": free_port() for name in ("master", "volume", "filer", "s3")}
        self._ports = ports | {"filer.port": self.filer_port, "s3.port": self.port}
        (self.folder / "data").mkdir()
        login = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        identity = {"name": "admin", "credentials": [login], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "notification.toml").write_text(
            f'[notification.webhook]\nenabled = true\nendpoint = "{self.endpoint}"\n'
            f'bearer_token = "{self.token}"\n'
            "max_retries = 10\nmax_backoff_seconds = 300\n"
        )
        if self.store:
            (self.folder / "filer.toml").write_text(f'[{self.store}]\nenabled = true\ndir = "{self.folder}/entries"\n')

    def shell(self, command: str) -> None:
        """Run a command of `weed shell`, under the lock that it asks for."""
        master, filer = (
            f"{LOOPBACK}:{self._ports[f'{name}.port']}.{self._ports[f'{name}.port.grpc']}"
            for name in ("master", "filer")
        )
        argv = [provision.SEAWEEDFS_FOLDER / "weed", "shell", f"-master={master}", f"-filer={filer}"]
        typed = f"lock\n{command}\nunlock\nexit\n"
        done = subprocess.run(argv, input=typed, capture_output=True, text=True, timeout=100, check=True)
        assert "error" not in done.stdout, done.stdout

    def argv(self) -> Sequence[str | Path]:
        options = [f"-dir={self.folder}/data", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", "-filer", "-s3"]
        options += [f"-s3.config={self.folder}/s3.json", "-master.volumeSizeLimitMB=64", "-volume.max=600"]
        options += [f"-{name}={port}" for name, port in self._ports.items()]
        return [provision.SEAWEEDFS_FOLDER / "weed", "-logtostderr=true", "server", *options]


@dataclass(eq=False)
class Versity(Sender):
    """Versity's gateway over a folder, with versions in another; it sends a test event before it is ready."""

    name: ClassVar[str] = "versity"

    def prepare(self) -> None:
        for name in ("data", "versions"):
            (self.folder / name).mkdir()

    def argv(self) -> Sequence[str | Path]:
        options = ["--port", f"{LOOPBACK}:{self.port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY]
        backend: list[str | Path] = ["posix", "--versioning-dir", self.folder / "versions", self.folder / "data"]
        options += ["--event-webhook-url", self.endpoint_with_token]
        return [provision.VERSITY_FOLDER / "versitygw", *options, *backend]


@dataclass(eq=False)
class CephDaemon(Server):
    """One daemon of a Ceph cluster, in the folder of that cluster."""

    name: ClassVar[str] = "ceph"
    command: Sequence[str | Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def argv(self) -> Sequence[str | Path]:
        return self.command

    def ping(self) -> None:
        """Whether it works is seen by the gateway."""


@dataclass(eq=False)
class Ceph(Sender):
    """Ceph's gateway with a cluster of one monitor, manager and disk; its topics are persistent."""

    name: ClassVar[str] = "ceph"
    _daemons: list[CephDaemon] = field(init=False, default_factory=list)
    _topic: str = field(init=False, default="")

    def prepare(self) -> None:
        for name in ("mon", "mgr", "osd", "rgw"):
            (self.folder / name).mkdir()
        self.config = self.folder / "ceph.conf"
        cluster, disk, monitor = uuid4(), uuid4(), free_port()
        monitors = f"[v2:{LOOPBACK}:{monitor},v1:{LOOPBACK}:{free_port()}]"
        settings = {
            "fsid": cluster,
            "mon host": monitors,
            "public network": f"{LOOPBACK}/32",
            "auth cluster required": "none",
            "auth service required": "none",
            "auth client required": "none",
            "mon data": self.folder / "mon",
            "mgr data": self.folder / "mgr",
            "osd data": self.folder / "osd",
            "rgw data": self.folder / "rgw",
            "run dir": self.folder,
            "admin socket": f"{self.folder}/$name.asok",
            "ms mon client mode": "crc",  # the gateway would ask for encryption, which needs keys
            "log file": "",
            "log to stderr": "true",
            "osd pool default size": 1,
            "osd pool default min size": 1,
            "mon allow pool size one": "true",
            "mon allow pool delete": "true",
            "mon max pg per osd": 1000,
            "osd crush chooseleaf type": 0,
            "osd pool default pg num": 8,
            "osd memory target": 1_000_000_000,
            "bluestore block size": 8 << 30,
            "rgw frontends": f"beast endpoint={LOOPBACK}:{self.port}",
            "rgw trust forwarded https": "true",
            "rgw lc debug interval": 10,
        }
        self.config.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        monmap = self.folder / "monmap"
        self.set_up(["monmaptool", "--create", "--fsid", str(cluster), "--addv", "a", monitors, monmap])
        self.set_up(["ceph-mon", *self._as("a"), "--mkfs", "--monmap", monmap])
        self._start("ceph-mon", "-f", *self._as("a"))
        self._start("ceph-mgr", "-f", *self._as("x"))
        self.set_up([*self._ceph, "osd", "new", str(disk)])
        self.set_up(["ceph-osd", *self._as("0"), "--mkfs", "--osd-uuid", str(disk)])
        self._start("ceph-osd", "-f", *self._as("0"))
        self._make_user(LOGIN, "--uid=admin")

    def _as(self, identity: str) -> list[str | Path]:
        return ["-i", identity, "-c", self.config]

    @property
    def _ceph(self) -> list[str | Path]:
        return ["ceph", "-c", self.config]

    def _start(self, *command: str | Path) -> None:
        self._daemons.append(CephDaemon(command).start())

    def argv(self) -> Sequence[str | Path]:
        return ["radosgw", "-f", "-n", "client.rgw", "-c", self.config]

    def administer(self, *words: str) -> None:
        """Run radosgw-admin."""
        self.set_up(["radosgw-admin", "-c", self.config, *words])

    def _make_user(self, login: Login, *options: str) -> None:
        keys = (f"--access-key={login.access_key}", f"--secret={login.secret_key}")
        self.administer("user", "create", "--display-name=someone", *keys, *options)

    def tenant(self, name: str) -> Login:
        """Make a tenant with one user."""
        login = Login(name, f"{name}-{SECRET_KEY}")
        self._make_user(login, f"--tenant={name}", "--uid=someone")
        return login

    def overseer(self) -> Login:
        """Make a user who may do everything, as those that sites of one realm use."""
        login = Login("overseer", f"overseer-{SECRET_KEY}")
        self._make_user(login, "--uid=overseer", "--system")
        return login

    def topic(self, name: str, endpoint: str, login: Login = LOGIN) -> str:
        """Make a persistent topic, which keeps events while the receiver is away; its ARN."""
        sns = self.boto3("sns", login)
        sns.meta.events.register("before-sign", _as_over_https)
        made: str = sns.create_topic(Name=name, Attributes={"push-endpoint": endpoint, "persistent": "true"})[
            "TopicArn"
        ]
        sns.close()
        return made

    def notify(self, bucket: str, topic: str, login: Login = LOGIN) -> None:
        """Send the bucket's events to a topic."""
        events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        sent = {"Id": "bucketwire", "TopicArn": topic, "Events": events}
        client = self.boto3(login=login)
        client.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [sent]}
        )
        client.close()

    def notify_of(self, bucket: str) -> None:
        self._topic = self._topic or self.topic("bucketwire", self.endpoint_with_token)
        self.notify(bucket, self._topic)

    def restart(self) -> None:
        """Stop the gateway and start it again; the cluster, which holds the queues of its topics, goes on."""
        super().stop()
        self.start()

    def stop(self) -> None:
        super().stop()
        for daemon in reversed(self._daemons):
            daemon.kill()  # its disk ends with it
        self._daemons.clear()


SENDERS: Mapping[str, type[Sender]] = {"seaweedfs": SeaweedFS, "versity": Versity, "ceph": Ceph}


def _as_over_https(request: Any, **_: Any) -> None:
    """RGW takes an endpoint with a token over HTTPS only, or from a proxy that says so."""
    request.headers["X-Forwarded-Proto"] = "https"
