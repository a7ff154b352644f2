"""A host that is full of what drivers read by themselves, and a process on it that connects to what it is told.

Its home, its working folder and its environment have logins, certificates, addresses and proxies of every kind that we
know. Each secret of them has `SECRET` in it, each address is one where a `Trap` listens. Whatever of it is used shows:
a file is opened, a variable is read, the trap is called, or the secret is in what a server is sent.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from botocore.loaders import Loader

from app.config.fields.fields import Declared, fields_of
from app.config.target_settings import BadSettings, load
from tests.services import Certificates

_TOP = Path(__file__).parents[2]
_CHILD = Path(__file__).with_name("child_of_worker.py")
SECRET = "of-the-host"
_IN_BASE64 = base64.b64encode(f"{SECRET}:".encode()).rstrip(b"=")[:-1]  # where a login begins with it

# What is meant to apply (docs/explanation/security.md), or is looked at and left alone.
_MEANT = {"HOME", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "SSLKEYLOGFILE"}


def _files(at: str, port: int) -> dict[str, str]:
    """What lies in a home, or in the folder in which a process is started."""
    login, place = SECRET, f"{at}:{port}"
    return {
        ".pgpass": f"*:*:*:*:{login}\n",
        ".pg_service.conf": f"[{login}]\nhostaddr={at}\nport={port}\nuser={login}\npassword={login}\n",
        ".my.cnf": f"[client]\nuser={login}\npassword={login}\nhost={at}\nport={port}\n",
        "my.cnf": f"[client]\nuser={login}\npassword={login}\n",
        ".mylogin.cnf": login,
        ".netrc": f"default login {login} password {login}\n",
        "_netrc": f"default login {login} password {login}\n",
        ".aws/credentials": f"[default]\naws_access_key_id={login}\naws_secret_access_key={login}\n"
        f"aws_session_token={login}\n",
        ".aws/config": f"[default]\nregion=of-the-host\nendpoint_url=http://{place}\nca_bundle=/nowhere\n",
        ".aws/models/partitions.json": Path(Loader.BUILTIN_DATA_PATH, "partitions.json").read_text(),
        ".boto": f"[Credentials]\naws_access_key_id={login}\naws_secret_access_key={login}\n",
        "boto.cfg": f"[Credentials]\naws_access_key_id={login}\naws_secret_access_key={login}\n",
        ".config/gcloud/application_default_credentials.json": "{}",
        ".kafka/client.properties": f"sasl.jaas.config={login}\n",
        "librdkafka.conf": f"bootstrap.servers={place}\n",
        ".config/nats/context.txt": "default\n",
        ".config/nats/context/default.json": json.dumps({"url": f"nats://{place}", "user": login, "password": login}),
        ".config/mosquitto_pub": f"-u {login}\n-P {login}\n",
        ".config/mosquitto_sub": f"-u {login}\n-P {login}\n",
        ".mosquitto_pub": f"-u {login}\n-P {login}\n",
        ".rabbitmqadmin.conf": f"[default]\nusername={login}\npassword={login}\n",
        ".erlang.cookie": login,
        ".redisclirc": f"AUTH {login}\n",
        "elasticsearch.yml": f"username: {login}\n",
        ".elastic/credentials": login,
        ".curlrc": f"user = {login}:{login}\nproxy = {place}\n",
        ".mc/config.json": "{}",
        ".docker/config.json": "{}",
        ".kube/config": "",
        ".krb5/config": "",
        ".k5login": login,
        "krb5cc": login,
        "krb5.conf": "[libdefaults]\n",
        "token": login,
        ".ssh/id_rsa": login,
        ".env": f"AWS_SECRET_ACCESS_KEY={login}\nPGPASSWORD={login}\n",
    }


def _variables(home: Path, at: str, port: int) -> dict[str, str]:
    """What drivers and the libraries below them read, and what looks as if they did."""
    place, login = f"{at}:{port}", f"{SECRET}:{SECRET}@"
    files = {
        "PGPASSFILE": ".pgpass", "PGSERVICEFILE": ".pg_service.conf", "PGSYSCONFDIR": ".postgresql",
        "PGSSLCERT": ".postgresql/postgresql.crt", "PGSSLKEY": ".postgresql/postgresql.key",
        "PGSSLROOTCERT": ".postgresql/root.crt", "PGSSLCRL": ".postgresql/root.crl",
        "MYSQL_HOME": "", "MYSQL_TEST_LOGIN_FILE": ".mylogin.cnf", "NETRC": ".netrc",
        "AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "AWS_CONFIG_FILE": ".aws/config", "BOTO_CONFIG": ".boto",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "token", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "token",
        "AWS_CA_BUNDLE": ".postgresql/root.crt", "REQUESTS_CA_BUNDLE": ".postgresql/root.crt",
        "CURL_CA_BUNDLE": ".postgresql/root.crt", "GOOGLE_APPLICATION_CREDENTIALS": "token",
        "KRB5CCNAME": "krb5cc", "KRB5_CONFIG": "krb5.conf", "KRB5_KTNAME": "token", "KRB5_CLIENT_KTNAME": "token",
        "NATS_CREDS": "token", "NATS_NKEY": "token", "NATS_CA": ".postgresql/root.crt",
        "NATS_CERT": ".postgresql/postgresql.crt", "NATS_KEY": ".postgresql/postgresql.key",
        "SSLKEYLOGFILE": "../keys", "KAFKA_OPTS": "", "REDISCLI_RCFILE": ".redisclirc", "XDG_CONFIG_HOME": ".config",
    }  # fmt: skip
    secrets = (
        "PGPASSWORD", "PGUSER", "PGDATABASE", "PGSERVICE", "PGAPPNAME", "PGKRBSRVNAME", "USER", "LOGNAME", "USERNAME",
        "MYSQL_PWD", "MYSQL_USER", "MYSQL_PASSWORD", "REDISCLI_AUTH", "REDIS_PASSWORD",
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_CREDENTIAL_FILE",
        "AWS_ROLE_SESSION_NAME", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN", "ELASTIC_PASSWORD", "ELASTIC_USERNAME",
        "ELASTIC_API_KEY", "ES_API_KEY", "ES_PASSWORD", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN", "NATS_CONTEXT",
        "MQTT_USERNAME", "MQTT_PASSWORD", "MQTT_USER", "RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS",
        "AMQP_PASSWORD", "KAFKA_SASL_USERNAME", "KAFKA_SASL_PASSWORD", "SASL_USERNAME", "SASL_PASSWORD",
        "NSQ_AUTH_SECRET", "HTTP_AUTHORIZATION", "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "MINIO_ACCESS_KEY",
    )  # fmt: skip
    urls = {
        "http_proxy": f"http://{login}{place}", "https_proxy": f"http://{login}{place}",
        "all_proxy": f"socks5://{login}{place}", "mqtt_proxy": f"socks5://{login}{place}",
        "ws_proxy": f"http://{login}{place}", "wss_proxy": f"http://{login}{place}",
        "socks_proxy": f"socks5://{login}{place}", "ftp_proxy": f"http://{login}{place}",
        "AWS_ENDPOINT_URL": f"http://{place}", "AWS_ENDPOINT_URL_SQS": f"http://{place}",
        "AWS_ENDPOINT_URL_S3": f"http://{place}", "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{place}/role",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{place}", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/x",
        "ELASTICSEARCH_URL": f"http://{login}{place}", "ELASTICSEARCH_HOSTS": f"http://{login}{place}",
        "ELASTIC_CLOUD_ID": "x:eA==", "REDIS_URL": f"redis://{login}{place}", "NATS_URL": f"nats://{login}{place}",
        "AMQP_URL": f"amqp://{login}{place}/", "RABBITMQ_URL": f"amqp://{login}{place}/",
        "DATABASE_URL": f"postgresql://{login}{place}/x", "MQTT_BROKER": f"mqtt://{login}{place}",
        "KAFKA_BOOTSTRAP_SERVERS": place, "KAFKA_BROKERS": place, "NSQD_TCP_ADDRESS": place, "REDIS_HOST": at,
        "MYSQL_HOST": at, "MYSQL_TCP_PORT": str(port), "MYSQL_UNIX_PORT": "/nowhere", "PGHOST": at, "PGHOSTADDR": at,
        "PGPORT": str(port),
    }  # fmt: skip
    # These would not send anything, but have a connection fail.
    others = {
        "PGSSLMODE": "disable", "PGREQUIREAUTH": "none", "PGREQUIRESSL": "1", "PGTARGETSESSIONATTRS": "standby",
        "PGOPTIONS": "-c search_path=nowhere", "PGSSLMAXPROTOCOLVERSION": "TLSv1.1", "PGCONNECT_TIMEOUT": "nothing",
        "AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true",
    }  # fmt: skip
    proxies = {name.upper(): value for name, value in urls.items() if name.endswith("_proxy")}
    named = {name: str(home / path) for name, path in files.items()}
    return {"HOME": str(home)} | named | dict.fromkeys(secrets, SECRET) | urls | proxies | others


class Trap:
    """Listens where the host's variables and files lead, and keeps what it is sent."""

    host = "127.0.0.9"

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.settimeout(1)
                with client:
                    self.calls.append(b"")
                    with suppress(OSError):
                        self.calls[-1] = client.recv(65536)


class Watch:
    """Notes which files of some folders are opened, by whomever: also by a driver that is not Python."""

    _OPENED = 0x20  # IN_OPEN

    def __init__(self, *tops: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        self._folders: dict[int, Path] = {}
        for folder in (each for top in tops for each in (top, *top.rglob("*")) if each.is_dir()):
            number = libc.inotify_add_watch(self._descriptor, os.fsencode(folder), self._OPENED)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._folders[number] = folder

    def opened(self) -> set[str]:
        """What was opened since the last call."""
        found = set()
        with suppress(BlockingIOError):
            while True:
                events, at = os.read(self._descriptor, 1 << 16), 0
                while at < len(events):
                    number, _, _, size = struct.unpack_from("iIII", events, at)
                    name = events[at + 16 : at + 16 + size].rstrip(b"\0").decode()
                    found.add(str(self._folders[number] / name))
                    at += 16 + size
        return found

    def close(self) -> None:
        """Stop."""
        os.close(self._descriptor)


def without_secrets(cls: type[Declared], values: Mapping[str, str]) -> dict[str, str] | None:
    """The settings without any secret, also within a URL, and without what needs one; None: the type demands one."""
    secrets = set(load(cls, values).secrets())
    left = {name: value for name, value in values.items() if not fields_of(cls)[name].secret or value not in secrets}
    for secret in secrets:
        left = {name: value.replace(secret, "") for name, value in left.items()}
    for needless in ("", *left):  # a user, where a password has to be given with one
        tried = {name: value for name, value in left.items() if name != needless}
        with suppress(BadSettings):
            load(cls, tried)
            return tried
    return None


@dataclass(frozen=True)
class Used:
    """What a connection made of the host."""

    outcome: str  # what became of it
    opened: set[str]  # files
    read: set[str]  # variables, each with what reads it
    trapped: list[bytes]  # calls of the trap
    keys: list[str]  # of TLS sessions, in SSLKEYLOGFILE

    def assert_nothing(self, *, but: Collection[str] = ()) -> None:
        """Nothing was used, but perhaps these files, or these folders' files."""
        others = {path for path in self.opened if not any(f"/{name}" in path for name in but)}
        assert (others, self.read, self.trapped, self.keys) == (set(), set(), [], []), self.outcome

    def assert_not_sent(self, sent: bytes) -> None:
        """No secret is in what a server was sent, which is something; nor was anything sent elsewhere."""
        assert sent, self.outcome
        assert SECRET.encode() not in sent
        assert _IN_BASE64 not in sent
        assert self.trapped == []


@dataclass(eq=False)
class HostOfWorker:
    """The process, which does what it is told; it ends with `close`."""

    folder: Path
    certificates: Certificates
    more: Mapping[str, str] = field(default_factory=dict)  # variables that are meant to apply
    planted: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        home, work = self.folder / "home", self.folder / "work"
        self._trap = Trap()
        for top in (home, work):
            for name, text in _files(self._trap.host, self._trap.port).items():
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                (top / name).write_text(text)
                (top / name).chmod(0o600)
            (top / ".postgresql").mkdir()
            for name, content in (
                ("postgresql.crt", self.certificates.client_cert), ("postgresql.key", self.certificates.client_key),
                ("root.crt", self.certificates.other_ca), ("root.crl", Path("/dev/null")),
            ):  # fmt: skip
                (top / ".postgresql" / name).write_bytes(content.read_bytes())
                (top / ".postgresql" / name).chmod(0o600)
        self.planted = _variables(home, self._trap.host, self._trap.port)
        kept = {name: os.environ[name] for name in ("PATH", "SSL_CERT_FILE", "LD_LIBRARY_PATH") if name in os.environ}
        command = [sys.executable, str(_CHILD), *sorted(self.planted.keys() - _MEANT)]
        self._child = subprocess.Popen(
            command, cwd=work, env=kept | self.planted | {"PYTHONPATH": str(_TOP)} | self.more, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._watch = Watch(home, work)
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._trap), closing(self._watch), self._child:
            assert self._child.stdin
            self._child.stdin.close()

    def connect(self, way: str, **told: Any) -> Used:
        """Have the process connect in one of the ways of `child_of_worker.WAYS`; what of the host it used."""
        assert self._child.stdin
        assert self._child.stdout
        self._watch.opened()
        self._trap.calls.clear()
        print(json.dumps({"way": way} | told), file=self._child.stdin, flush=True)
        answer: Mapping[str, Any] = json.loads(self._child.stdout.readline())
        log = self.folder / "keys"
        keys = [line for line in (log.read_text() if log.exists() else "").splitlines() if line[:1] not in ("", "#")]
        log.unlink(missing_ok=True)
        return Used(answer["outcome"], self._watch.opened(), set(answer["read"]), list(self._trap.calls), keys)
