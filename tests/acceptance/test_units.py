"""The units of deploy/systemd, as a real systemd runs them: started when they serve, and replaced without a loss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from cryptography.fernet import Fernet

from app.config.arn import TargetId
from app.events.names import EVERY
from app.rules.model import Rule
from tests import services
from tests.services import until
from tests.services.systemd import Systemd
from tests.support.builders import migrated, registry
from tests.support.one_time_sender import OneTimeSender
from tests.support.target_readers import listed

pytestmark = [pytest.mark.slow, pytest.mark.promise]

PATIENCE = 120
TOKEN = "of-the-units-and-long-enough-for-a-token"
PAGE = (Path(__file__).parents[2] / "docs/how-to/systemd.md").read_text()
OWN = re.findall(r"```\n(\[Unit\]\n.*?)```", PAGE, re.DOTALL)[0]  # the pool of one's own that the page has


# As a container runs on OpenShift: as a user without a name and a home.
ANYONE = """[Service]
Type=notify
ExecStart=+/usr/bin/setpriv --reuid 1234567 --regid 7654321 --clear-groups --no-new-privs \\
    /usr/bin/env -u HOME -u USER -u LOGNAME BUCKETWIRE_DATA_DIR=/tmp/anyone \\
    /opt/bucketwire/bin/bucketwire worker --only targets --concurrency 1 --name anyone
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def settings_of(database_url: str, broker: services.Redis, port: int) -> dict[str, str]:
    """The settings of every unit; the page's folders are those of the system."""
    return {
        "BUCKETWIRE_DATA_DIR": "/var/lib/bucketwire", "BUCKETWIRE_SECRETS_DIR": "/etc/bucketwire/secrets",
        "BUCKETWIRE_DATABASE_URL": database_url, "BUCKETWIRE_BROKER_URL": broker.url,
        "BUCKETWIRE_SECRET_KEYS": Fernet.generate_key().decode(),
        "BUCKETWIRE_API_TOKENS": f"units:ingest+read+admin:{TOKEN}",
        "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{port}",
    }  # fmt: skip


# The only test that runs the units, with all that they forbid a process: each has to be started afresh.
def test_every_service_has_started_when_it_serves_and_none_gives_up(
    postgres_database: str, redis_server: services.Redis, stack: ExitStack
) -> None:
    broker = stack.enter_context(services.redis())
    port, flower = services.free_port(), services.free_port()
    units = {
        "bucketwire-flower.service.d/50-port.conf": (
            "[Service]\nExecStart=\n"
            f"ExecStart=/opt/bucketwire/bin/bucketwire flower --listen {services.LOOPBACK}:{flower}\n"
        ),
        "bucketwire-webhooks.service": OWN,
        "bucketwire-anyone.service": ANYONE,
        "bucketwire-fails.service": "[Service]\nType=notify\nExecStart=/bin/false\nRestart=always\n",
        "bucketwire-fails.service.d/50-soon.conf": "[Service]\nRestartSec=10ms\n",
    }
    manager = stack.enter_context(Systemd(settings_of(postgres_database, broker, port), units).start())
    # How a unit fails whose start takes too long, as while the broker is away; by default five times are enough.
    manager.ask("systemctl", "start", "bucketwire-fails")
    until(lambda: int(manager.state("bucketwire-fails", "NRestarts")) > 20, PATIENCE, what="many restarts")
    manager.systemctl("stop", "bucketwire-fails")

    broker.stop()
    manager.systemctl("start", "--no-block", "bucketwire-webhooks", "bucketwire-drain")
    for unit in ("bucketwire-webhooks.service", "bucketwire-drain.service"):
        until(lambda unit=unit: "cannot be used" in manager.said(unit), PATIENCE, what="the broker missed")  # type: ignore[misc]
        assert manager.state(unit) == "activating"
    broker.start()
    every = ("anyone", "api", "beat", "drain", "flower", "migrate", "sources", "spark", "targets", "webhooks")
    manager.systemctl("start", *(f"bucketwire-{name}" for name in every))
    for name in ("drain", "sources", "spark", "targets", "webhooks"):
        assert " ready." in manager.said(f"bucketwire-{name}.service"), name
    for place in (f"{port}/healthz", f"{flower}/healthcheck"):
        assert httpx.get(f"http://{services.LOOPBACK}:{place}", timeout=60, trust_env=False).status_code == 200
    for name in every:
        unit = f"bucketwire-{name}.service"
        assert (manager.state(unit), manager.state(unit, "NRestarts")) == ("active", "0"), name


@pytest.mark.nightly("the same processes replaced in test_stopping.py and test_scale.py, and units that are started")
def test_no_post_is_lost_and_every_event_delivered_while_one_unit_after_the_other_is_restarted(
    postgres_database: str, redis_server: services.Redis, stack: ExitStack
) -> None:
    name = f"units_{uuid4().hex[:12]}"
    log = migrated(postgres_database)
    stack.callback(log.close)
    broker = stack.enter_context(services.redis())
    ports = services.free_port(), services.free_port()
    settings = settings_of(postgres_database, broker, ports[0]) | {"BUCKETWIRE_STOP_DELAY": "2s"}
    units = {  # another machine's API and pool
        "bucketwire-api2.service": (
            "[Service]\nType=notify\nNotifyAccess=all\nRestart=always\n"
            f"ExecStart=/bin/env BUCKETWIRE_LISTEN={services.LOOPBACK}:{ports[1]} /opt/bucketwire/bin/bucketwire api\n"
        ),
        "bucketwire-redis.service": OWN.replace("--targets webhook", "--targets redis"),
    }
    manager = stack.enter_context(Systemd(settings, units).start())
    target = TargetId("redis", name)
    registry(log).put(target, {"address": f"{services.LOOPBACK}:{redis_server.port}", "key": name, "format": "access"})
    registry(log).add_rule(Rule(bucket="*", events=(EVERY,), target=target))
    every = [f"bucketwire-{each}" for each in ("api", "api2", "beat", "drain", "targets", "redis")]
    manager.systemctl("start", *every)
    balancer = stack.enter_context(services.balancer(*ports, probe="/healthz"))
    urls = [f"http://{services.LOOPBACK}:{port}" for port in (balancer.port, balancer.tcp_port)]
    sender = OneTimeSender(urls, token=TOKEN)
    with sender.running():
        for unit in every:
            until(lambda: all(map(balancer.is_ready, ports)), PATIENCE, what="both APIs in service")
            sender.wait_for_more()
            said = len(manager.said(f"{unit}.service"))
            manager.systemctl("restart", unit)
            if unit not in every[:3]:
                assert " ready." in manager.said(f"{unit}.service")[said:], unit
        sender.wait_for_more()
    assert sender.lost == []
    until(lambda: len(listed(redis_server, name)) >= len(sender.taken), PATIENCE, what="every event delivered")
    keys = [record["s3"]["object"]["key"] for record in listed(redis_server, name)]
    assert sorted(keys) == sorted(sender.taken)
