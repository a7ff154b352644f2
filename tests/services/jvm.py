"""Kafka and Elasticsearch: the two that need Java."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests import provision
from tests.services.certificates import certificates
from tests.services.java import JavaServer, as_file, fingerprint
from tests.services.server_process import LOOPBACK, PASSWORD, USER, accepting, free_port, need, run_to_end

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


@dataclass(eq=False)
class Kafka(JavaServer):
    """One Kafka broker in KRaft mode; topics are made by the first write and kept through kill and start.

    `port` is plaintext, `sasl_port` SASL over plaintext, `tls_port` TLS, `mtls_port` TLS with a client certificate,
    `sasl_tls_port` SASL over TLS. The one user may log in by PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512. `old` is the last
    3.x, which still speaks the message formats of 0.8 to 0.10.
    """

    name: ClassVar[str] = "kafka"
    patience: ClassVar[float] = 90
    old: bool = False

    def check(self) -> None:
        need("old_kafka" if self.old else "kafka")

    def prepare(self) -> None:
        self.sasl_port, self.tls_port, self.mtls_port, self.sasl_tls_port, controller = (free_port() for _ in range(5))
        certs = certificates()
        store = self.folder / "server.pem"
        store.write_text("".join(path.read_text() for path in (certs.key, certs.cert, certs.ca)))
        properties = self._properties(store, certs.ca, controller)
        (self.folder / "server.properties").write_text("".join(properties))
        self._format([line for line in properties if line.startswith(("node.id=", "process.roles="))])

    def _format(self, role: Sequence[str]) -> None:
        """Make its folder as Kafka's own tool does, which takes a Java of its own: so from what that made before."""
        scram = [f"--add-scram=SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)]
        kept = provision.CACHE / f"kafka-formatted-{fingerprint(self.jars(), *role, *scram)}"
        data = self.folder / "data"
        if not kept.exists():
            options = ["format", "-t", CLUSTER, "-c", f"{self.folder}/server.properties"]
            run_to_end(self.java("-Xmx128m", main="kafka.tools.StorageTool", arguments=[*options, *scram]), self.log)
            whole = kept.with_suffix(f".{os.getpid()}")
            shutil.copytree(data, whole)
            with suppress(OSError):  # another test process was sooner
                whole.rename(kept)
            shutil.rmtree(whole, ignore_errors=True)
            return
        shutil.copytree(kept, data)
        meta = data / "meta.properties"
        own = base64.urlsafe_b64encode(b"\0" + os.urandom(15)).decode().rstrip("=")  # two of a cluster differ
        meta.write_text(re.sub(r"(?m)^directory\.id=.*$", f"directory.id={own}", meta.read_text()))

    def _properties(self, store: Path, ca: Path, controller: int) -> list[str]:
        ports = {
            "PLAIN": self.port,
            "SASL": self.sasl_port,
            "TLS": self.tls_port,
            "MTLS": self.mtls_port,
            "SASLTLS": self.sasl_tls_port,
        }
        advertised = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
        protocols = "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,MTLS:SSL,SASLTLS:SASL_SSL"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{advertised},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": ca,
            "listener.name.mtls.ssl.client.auth": "required",
            "log.dirs": self.folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 4194304,
            # With the usual 9 s a broker that was killed takes 12 s to accept itself back.
            "broker.session.timeout.ms": 1500,
            "broker.heartbeat.interval.ms": 300,
            "num.network.threads": 1,
            "num.io.threads": 2,
            "background.threads": 2,
        }
        modules = "org.apache.kafka.common.security"
        for listener in ("sasl", "sasltls"):
            login = f'{modules}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = login
            for bits in (256, 512):
                login = f"{modules}.scram.ScramLoginModule required;"
                settings[f"listener.name.{listener}.scram-sha-{bits}.sasl.jaas.config"] = login
        return [f"{name}={value}\n" for name, value in settings.items()]

    def jars(self) -> Sequence[Path]:
        return sorted((provision.OLD_KAFKA if self.old else provision.KAFKA).glob("*.jar"))

    def argv(self) -> Sequence[str | Path]:
        return self.serving("-Xms256m", "-Xmx256m", main="kafka.Kafka", arguments=[self.folder / "server.properties"])

    def ping(self) -> None:
        # ApiVersions, the first request of every client: key 18, version 0, correlation 7, no client id.
        with socket.create_connection((LOOPBACK, self.port), timeout=5) as client:
            client.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff".replace(" ", "")))
            answer = client.recv(10)
            assert answer[4:] == bytes.fromhex("000000070000"), f"ApiVersions was answered {answer.hex()}"
        accepting(self.sasl_tls_port)

    @property
    def brokers(self) -> str:
        """Host and port of the plaintext listener."""
        return f"{LOOPBACK}:{self.port}"


@dataclass(eq=False)
class ZooKeeper(JavaServer):
    """What a Kafka of that time keeps its topics in."""

    name: ClassVar[str] = "first_kafka"

    def prepare(self) -> None:
        place = f"dataDir={self.folder}/data\nclientPort={self.port}\nclientPortAddress={LOOPBACK}\n"
        (self.folder / "zoo.cfg").write_text(f"{place}tickTime=500\n")

    def jars(self) -> Sequence[Path]:
        return sorted(provision.FIRST_KAFKA.glob("*.jar"))

    def argv(self) -> Sequence[str | Path]:
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return self.java("-Xmx64m", main=main, arguments=[self.folder / "zoo.cfg"])

    def ping(self) -> None:
        with socket.create_connection((LOOPBACK, self.port), timeout=5) as client:
            client.sendall(b"ruok")
            assert client.recv(4) == b"imok"


@dataclass(eq=False)
class FirstKafka(JavaServer):
    """Kafka 0.9, the older of the two that MinIO's guides name; it makes topics of six partitions when asked for."""

    name: ClassVar[str] = "first_kafka"
    zookeeper: ZooKeeper

    def prepare(self) -> None:
        settings = {
            "broker.id": 1,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "zookeeper.connect": f"{LOOPBACK}:{self.zookeeper.port}",
            "log.dirs": self.folder / "data",
            "num.partitions": 6,
            "num.network.threads": 1,
            "num.io.threads": 2,
            "background.threads": 1,
            "log.cleaner.enable": "false",
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "server.properties").write_text(lines)

    def jars(self) -> Sequence[Path]:
        return self.zookeeper.jars()

    def argv(self) -> Sequence[str | Path]:
        return self.serving("-Xmx256m", main="kafka.Kafka", arguments=[self.folder / "server.properties"])

    def ping(self) -> None:
        accepting(self.port)

    @property
    def brokers(self) -> str:
        """Host and port of its listener."""
        return f"{LOOPBACK}:{self.port}"

    def written(self, topic: str) -> bytes:
        """Everything that its partitions of a topic hold, as it is in their files."""
        files = sorted((self.folder / "data").glob(f"{topic}-*/*.log"))
        return b"".join(file.read_bytes() for file in files)


@dataclass(eq=False)
class Elasticsearch(JavaServer):
    """One Elasticsearch node, of version 8 or the newest, with its security: user `elastic`, API keys, roles.

    With `tls` it is over HTTPS. Indexed documents are kept through kill and start. Not there: `_delete_by_query`,
    scripts, language analyzers.
    """

    name: ClassVar[str] = "elasticsearch"
    newest: ClassVar[Path | None] = provision.NEWEST_JAVA
    patience: ClassVar[float] = 180
    user_name: ClassVar[str] = "elastic"
    password: ClassVar[str] = PASSWORD
    tls: bool = False

    def check(self) -> None:
        need("newest_elasticsearch" if self.tree else "elasticsearch")

    @property
    def version(self) -> str:
        """Its version in full."""
        return provision.NEW_ELASTICSEARCH_VERSION if self.tree else provision.ELASTICSEARCH_VERSION

    @property
    def home(self) -> Path:
        """Where its programs are."""
        return provision.NEW_ELASTICSEARCH if self.tree else provision.ELASTICSEARCH

    def prepare(self) -> None:
        self.transport_port = free_port()
        config = self.folder / "config"
        config.mkdir()
        (self.folder / "tmp").mkdir()
        for source in (certificates().ca, certificates().cert, certificates().key):
            shutil.copy(source, config)  # it reads no file outside its own configuration
        settings: dict[str, Any] = {
            "cluster.name": "peers",
            "node.name": "node-1",
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            "network.host": LOOPBACK,
            "http.port": self.port,
            "transport.port": self.transport_port,
            "discovery.type": "single-node",
            "cluster.routing.allocation.disk.threshold_enabled": False,
            "xpack.security.enabled": True,
            "xpack.security.transport.ssl.enabled": False,
            "xpack.license.self_generated.type": "basic",
            "xpack.security.http.ssl.enabled": self.tls,
        }
        if self.tls:
            files = {"certificate": "server.crt", "key": "server.key", "certificate_authorities": "ca.crt"}
            settings |= {f"xpack.security.http.ssl.{name}": f"{config}/{file}" for name, file in files.items()}
        # JSON is YAML.
        (config / "elasticsearch.yml").write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in settings.items()))
        (config / "log4j2.properties").write_text(
            "status = error\nappender.c.type = Console\nappender.c.name = c\nappender.c.layout.type = PatternLayout\n"
            "appender.c.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n\n"
            "rootLogger.level = info\nrootLogger.appenderRef.c.ref = c\n"
        )

    def jars(self) -> Sequence[Path]:
        return [as_file(self.home / "launcher"), *sorted((self.home / "lib").glob("*.jar"))]

    def argv(self) -> Sequence[str | Path]:
        folder = self.folder
        heap = ["-Xms512m", "-Xmx512m", "-Dlog4j.shutdownHookEnabled=false", "-Dlog4j2.disable.jmx=true"]
        paths = [f"-Des.path.home={self.home}", f"-Des.path.conf={folder}/config", f"-Djava.io.tmpdir={folder}/tmp"]
        return self.serving(*heap, *paths, main="EsNode")

    def env(self) -> Mapping[str, str]:
        return {"ES_BOOTSTRAP_PASSWORD": PASSWORD}

    @property
    def url(self) -> str:
        """The node's URL, without its login."""
        return f"{'https' if self.tls else 'http'}://{LOOPBACK}:{self.port}"

    def ping(self) -> None:
        login = base64.b64encode(f"{self.user_name}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(f"{self.url}/", headers={"Authorization": f"Basic {login}"})
        trust = ssl.create_default_context(cafile=str(certificates().ca)) if self.tls else None
        try:
            with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
                assert json.load(answer)["version"]["number"] == self.version
        except urllib.error.HTTPError as early:  # 401 and 503 while its security index is made
            early.close()
            raise


def kafka(*, old: bool = False) -> Kafka:
    """A running Kafka broker of its own."""
    return Kafka(old).start()


def elasticsearch(*, tls: bool = False) -> Elasticsearch:
    """A running Elasticsearch node of its own."""
    return Elasticsearch(tls).start()
