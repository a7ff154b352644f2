"""The compose file itself: all of its containers run, and nothing is lost while they are stopped, killed and started.

`python -m tests.images compose` builds what it needs and runs it, in a network of its own where that is needed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.images.engine import Docker, engine
from tests.images.faults import EVENTS, arrived, post_under_faults
from tests.images.report import check, say, until

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
SERVERS = {name: SERVICES[name]["image"] for name in ("database", "rabbitmq", "redis")}
TARGET = "target-redis"
BROKERS = {"rabbitmq": {}, "redis": {"BUCKETWIRE_BROKER_URL": "redis://redis:6379/0"}}
PROJECT = "image-test"  # not that of a service which runs on this machine
URL = "http://127.0.0.1:8730"
DISTURBED = ("api", "beat", "drain", "workers")
ENDED = {0, 143}  # by itself, or by SIGTERM
GRACE = 40  # seconds, as in the compose file
HEALTHY_WITHIN = 300  # seconds; Docker asks a worker once a minute


class Project:
    """The compose file with settings in a folder of its own."""

    def __init__(self, having: Docker, folder: Path, settings: dict[str, str]) -> None:
        self._having = having
        shutil.copy(FILE, folder)
        lines = (ROOT / ".env.example").read_text().splitlines()
        filled = [f"{name}={settings[name]}" if (name := line.split("=")[0]) in settings else line for line in lines]
        (folder / ".env").write_text("\n".join(filled) + "\n")
        self._options = ["--project-name", PROJECT, "--file", folder / FILE.name, "--env-file", folder / ".env"]
        chosen = settings["COMPOSE_PROFILES"].split(",")
        self.services = [name for name, each in SERVICES.items() if {*each.get("profiles", chosen)} & {*chosen}]

    def compose(self, *words: str) -> str:
        """Run a command of Compose; return what it prints."""
        return self._having.compose(*self._options, *words)

    def containers(self, service: str = "") -> list[str]:
        """The ids of its containers, or of one service's, also where they have ended."""
        labels = [f"label=com.docker.compose.project={PROJECT}"]
        labels += [f"label=com.docker.compose.service={service}"] if service else []
        filters = [word for label in labels for word in ("--filter", label)]
        return self._having.run("ps", "--all", "--quiet", *filters).stdout.split()

    def exit_code(self, service: str) -> int | None:
        """The exit code of a service's only container; None where it has not ended."""
        [container] = self.containers(service)
        [description] = json.loads(self._having.run("container", "inspect", container).stdout)
        state = description["State"]
        return state["ExitCode"] if state["Status"] == "exited" else None

    def healthy(self, service: str) -> bool:
        """Whether the health check of a service's only container has passed."""
        [container] = self.containers(service)
        return self._having.healthy(container)

    def disturb(self, service: str, signal_name: str) -> None:
        """Stop a service's container with SIGTERM, or kill it, and start it again."""
        self.compose("stop" if signal_name == "TERM" else "kill", service)
        [container] = self.containers(service)
        code = int(self._having.run("wait", container).stdout)
        assert signal_name == "KILL" or code in ENDED, f"{service} ended with {code}"
        self.compose("start", service)

    def show_logs(self) -> None:
        """Print the last lines of every container."""
        for service in self.services:
            for container in self.containers(service):
                logs = self._having.run("logs", "--tail", "20", container, check=False)
                say(f"    the last lines of {service}:\n{logs.stdout}{logs.stderr}")

    def remove(self) -> None:
        """Remove whatever there is of it."""
        for container in self.containers():
            self._having.run("rm", "--force", "--volumes", container, check=False)
        self.compose("down", "--volumes")


def settings_with(broker: str) -> dict[str, str]:
    """What a user fills in: the broker, and secrets."""
    return {
        "COMPOSE_PROFILES": f"{broker},{TARGET}",
        "RABBITMQ_PASSWORD": secrets.token_hex(24),
        "POSTGRES_PASSWORD": secrets.token_hex(24),
        "BUCKETWIRE_SECRET_KEYS": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "BUCKETWIRE_API_TOKENS": f"minio:ingest:{secrets.token_hex(32)}",
        "TARGET_PASSWORD": secrets.token_hex(24),
        "FLOWER_BASIC_AUTH": f"flower:{secrets.token_hex(24)}",
        **BROKERS[broker],
    }


def commands(password: str) -> Iterator[list[str]]:
    """The words that docker-compose.yml and docs/how-to/compose.md have typed to try the target out."""
    for file, pattern in (
        ("docker-compose.yml", rf"^  # (bucketwire target set .+)\n  {TARGET}:$"),
        ("docs/how-to/compose.md", r"`(bucketwire rule add [^`]+)`\.$"),
    ):
        [command] = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
        yield shlex.split(command.replace("PASSWORD", password).replace("kafka", "redis"))


@contextmanager
def project(having: Docker, settings: dict[str, str]) -> Iterator[Project]:
    """The project while the block runs; nothing is left of it."""
    with tempfile.TemporaryDirectory(prefix="compose-") as folder:
        made = Project(having, Path(folder), settings)
        made.remove()  # what a run has left that was killed
        try:
            yield made
        except BaseException:
            made.show_logs()
            raise
        finally:
            made.remove()


def run(having: Docker, broker: str) -> None:
    """Start the service with a broker, post events while its containers are disturbed, and end it."""
    settings = settings_with(broker)
    with project(having, settings) as service, httpx.Client(base_url=URL, timeout=10, trust_env=False) as client:
        began = time.monotonic()
        service.compose("up", "--detach", "--no-build")
        say(f"ok  the compose file with {broker}: up in {time.monotonic() - began:.0f} s")
        code = service.exit_code("migrate")
        check(code == 0, f"migrate ended with {code}")
        checked = [name for name in service.services if "healthcheck" in SERVICES[name]]
        for name in checked:
            until(partial(service.healthy, name), f"{name} is healthy", HEALTHY_WITHIN)
        say(f"ok  healthy: {', '.join(checked)}")
        # Seen once of aardvark-dns 1.4: it did not answer for 40 s after the last container had started.
        resolve = ["exec", "-T", "api", "sh", "-c", "getent hosts database || true"]
        until(lambda: service.compose(*resolve).strip(), "the database's name is resolved", HEALTHY_WITHIN)
        for command in commands(settings["TARGET_PASSWORD"]):
            service.compose("exec", "-T", "api", *command)
        example = (ROOT / "examples/event.json").read_bytes()
        refused = client.post("/v1/events", content=example).status_code
        client.headers["Authorization"] = f"Bearer {settings['BUCKETWIRE_API_TOKENS'].rpartition(':')[2]}"
        taken = client.post("/v1/events", content=example).status_code
        check((refused, taken) == (401, 202), f"an event is answered with {refused} without a token, {taken} with one")
        began = time.monotonic()
        post_under_faults(client, DISTURBED, service.disturb)

        def ask_target(*words: str) -> list[str]:
            login = ["valkey-cli", "--no-auth-warning", "-a", settings["TARGET_PASSWORD"]]
            return service.compose("exec", "-T", TARGET, *login, *words).splitlines()

        expected = {"plain/a.txt"} | {f"images/k{number}" for number in range(EVENTS)}
        arrived(lambda: int(ask_target("hlen", "objects")[0]), len(expected))
        keys = set(ask_target("hkeys", "objects"))
        text = f"{len(keys & expected)} of {len(expected)} events over {broker} while containers are stopped and killed"
        check(keys == expected, f"{text}, {time.monotonic() - began:.0f} s")
        ends_cleanly(service)


def ends_cleanly(service: Project) -> None:
    """Every container ends by itself when it is asked to, and `down` leaves nothing."""
    began = time.monotonic()
    service.compose("stop")
    seconds = time.monotonic() - began
    codes = {name: service.exit_code(name) for name in service.services}
    shown = ", ".join(f"{name} {code}" for name, code in codes.items())
    check({*codes.values()} <= ENDED and seconds < GRACE, f"ended in {seconds:.0f} s: {shown}")
    service.compose("down")
    left = service.containers()
    check(not left, f"down leaves {len(left)} containers")


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave no container
    for name in settings_with("redis"):
        os.environ.pop(name, None)  # it would have precedence over the file
    having = engine()
    for broker in BROKERS:
        run(having, broker)


if __name__ == "__main__":
    main()
