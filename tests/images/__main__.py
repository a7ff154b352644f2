"""Build both images and try them: `make image-test`. Takes 15 minutes the first time, ten when they are built.

They run as a user of their own, with a read-only root file system and without capabilities; the whole service delivers
an event so. SIGTERM at any moment ends each part at once and with the exit code of a clean end. Events that are posted
while parts are stopped and killed arrive, over either broker. So do those that are posted to the containers of
the compose file, which `python -m tests.images compose` tries alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from tests import services
from tests.images import compose
from tests.images.engine import Docker, engine
from tests.images.faults import EVENTS, deliver_under_faults
from tests.images.report import check, say, until

ROOT = Path(__file__).parents[2]
IMAGES = {"docker.io/library/bucketwire:latest": [], "docker.io/library/bucketwire-spark:latest": ["--target", "spark"]}
SERVICE, SPARK = IMAGES
HARDENED = [
    "--read-only", "--tmpfs", "/tmp", "--tmpfs", "/var/lib/bucketwire/var:mode=0777", "--cap-drop", "all",
    "--security-opt", "no-new-privileges",
]  # fmt: skip
SETTINGS = {
    "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0",  # nobody listens there: each part waits for it
    "BUCKETWIRE_DATABASE_URL": "sqlite:////var/lib/bucketwire/var/outbox.db",
    "BUCKETWIRE_SECRET_KEYS": "u9Qe0xkqDqk0yXH3p2o0hQ0XcX1m8o6v6fJm1pWcQ2A=",
}
PARTS = {
    "api": SERVICE, "beat": SERVICE, "worker --only drain": SERVICE, "worker --only targets": SERVICE,
    "worker --only sources": SERVICE, "flower": SERVICE, "worker --only spark": SPARK,
}  # fmt: skip
MOMENTS = (0.0, 0.1, 0.3, 1.0, 4.0)  # seconds after the start
ENDED = {0, 143}  # by itself, or by SIGTERM where there was nothing to end yet
MAX_SIZE_MB = {SERVICE: 350, SPARK: 1500}  # MB
GRACE = 40  # seconds, as in the compose file
POST = """
import sys, urllib.request
url, kind = "http://127.0.0.1:8730/v1/events", {"Content-Type": "application/json"}
request = urllib.request.Request(url, sys.argv[1].encode(), kind)
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""
ANYONE = "1234567890:0"  # as OpenShift has it: a user without a name
COUNT = """
import os
from bucketwire import start
start.load()
from spark_jobs.session import session
with session("count", master="local[1]", jars=os.environ["BUCKETWIRE_SPARK_JARS"], memory="512m") as spark:
    print(spark.sparkContext.sparkUser(), spark.range(9).rdd.map(lambda row: row.id).sum())
"""


@contextmanager
def container(
    having: Docker, image: str, *command: str, settings: dict[str, str], network: str = "none"
) -> Iterator[str]:
    """A hardened container while the block runs."""
    name = f"image-test-{uuid4().hex[:8]}"
    variables = [f"--env={key}={value}" for key, value in settings.items()]
    options = [*having.options, "--network", network, *HARDENED, *variables]
    having.run("run", "--detach", "--name", name, *options, image, *command)
    try:
        yield name
    except BaseException:
        logs = having.run("logs", "--tail", "20", name, check=False)
        say(f"    the last lines of {' '.join(command)}:\n{logs.stdout}{logs.stderr}")
        raise
    finally:
        having.run("rm", "--force", name, check=False)


def ended(having: Docker, name: str) -> tuple[int, float]:
    """Send SIGTERM; return the exit code and the seconds until then."""
    began = time.monotonic()
    having.run("kill", "--signal", "TERM", name, check=False)
    code = int(having.run("wait", name).stdout)
    return code, time.monotonic() - began


def main() -> None:
    if sys.argv[1:] not in ([], ["compose"]):
        sys.exit(f"{' '.join(sys.argv[1:])}: only `compose` can be tried by itself")
    having = engine()
    build(having, SERVICE)
    if not sys.argv[1:]:
        whole_service(having)
        ends_at_any_moment(having, SERVICE)
        for broker in (services.RabbitMQ(), services.Redis()):
            loses_nothing(having, broker)
        build(having, SPARK)
        ends_at_any_moment(having, SPARK)
    compose_file(having)


def build(having: Docker, tag: str) -> None:
    """Build an image, and look at what is in it."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    began = time.monotonic()
    having.build(tag, "--build-arg", f"COMMIT={commit}", *IMAGES[tag])
    [image] = json.loads(having.run("image", "inspect", tag).stdout)
    size = image["Size"] / 1e6
    check(size <= MAX_SIZE_MB[tag], f"{tag} built in {time.monotonic() - began:.0f} s, {size:.0f} MB")
    check(image["Config"]["User"] == "10001:10001", "it runs as a user by number")
    run = ["run", "--rm", *having.options, "--network", "none", *HARDENED]
    said = having.run(*run, tag, "--version").stdout.strip()
    check(said.endswith(f"(commit {commit})"), said)
    tools = "import importlib.util as u; print([name for name in ('pip', 'setuptools') if u.find_spec(name)])"
    left = having.run(*run, "--entrypoint", "python", tag, "-c", tools).stdout.strip()
    check(left == "[]", f"what only builds is not in it: {left}")
    said = having.run(*run, "--user", ANYONE, tag, "--version").stdout.strip()
    check(said.endswith(f"(commit {commit})"), f"as the user {ANYONE}: {said}")
    if tag == SPARK:
        said = having.run(*run, "--user", ANYONE, "--entrypoint", "python", tag, "-c", COUNT).stdout.strip()
        check(said == "bucketwire 36", f"Spark counts as the user {ANYONE}: {said}")


def ends_at_any_moment(having: Docker, tag: str) -> None:
    """SIGTERM ends each part of an image, whenever it comes."""
    for part in (part for part, image in PARTS.items() if image == tag):
        for moment in MOMENTS:
            with container(having, tag, *part.split(), settings=SETTINGS) as name:
                time.sleep(moment)
                code, seconds = ended(having, name)
                clean = code in ENDED and seconds < GRACE
                check(clean, f"{part}: SIGTERM after {moment:g} s: exit code {code} in {seconds:.1f} s")


def loses_nothing(having: Docker, broker: services.Redis | services.RabbitMQ) -> None:
    """What is posted while parts are stopped and killed arrives."""

    def start(stack: ExitStack, command: list[str], settings: dict[str, str]) -> str:
        return stack.enter_context(container(having, SERVICE, *command, settings=settings, network="host"))

    began = time.monotonic()
    arrived = deliver_under_faults(having, start, broker)
    took = f"{time.monotonic() - began:.0f} s"
    check(arrived == EVENTS, f"{arrived} of {EVENTS} events over {broker.name} while parts are killed, {took}")


def compose_file(having: Docker) -> None:
    """Every container of the compose file runs, with each broker, and nothing is lost."""
    having.have_servers(compose.SERVERS)
    command = [*having.own_network, sys.executable, "-m", "tests.images.compose"]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)


def whole_service(having: Docker) -> None:
    """`up` in one container takes the tour's event and delivers it."""
    event = (ROOT / "examples/event.json").read_text()
    with container(having, SERVICE, "up", settings={}) as name:
        until(lambda: "Ctrl-C" in having.run("logs", name).stdout, "the service runs")
        answer = having.run("exec", name, "python", "-c", POST, event).stdout
        check('"recorded":1' in answer, "an event is recorded")
        until(
            lambda: "plain/a.txt" in having.run("exec", name, "bucketwire", "sample").stdout, "the event is delivered"
        )
        code, seconds = ended(having, name)
        check(code == 0, f"SIGTERM ends the whole service in {seconds:.1f} s")


if __name__ == "__main__":
    main()
