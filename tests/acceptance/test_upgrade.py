"""A new version is rolled out: the one before goes on at the new schema, beside it, and nothing is lost or repeated."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import Script, ScriptDirectory

import migrations
from app.events.model import Event
from app.outbox import schema_version
from app.outbox.engine.database import Database
from tests import services
from tests.services import forking, until
from tests.services.server_process import run_to_end
from tests.support.builders import body, records, some
from tests.support.service_processes import OTHER_CODE, Api, Role, System, start_all, stop_all
from tests.support.target_readers import Expected, posted

ROOT = Path(__file__).parents[2]
PATIENCE = 90
RELEASED = "0001"  # the newest migration of the last release, 0.2.0


def first_since_the_release() -> Script | None:
    """The first migration that no release has; None right after a release."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    return next((script for script in scripts if script.down_revision == RELEASED), None)


def git(*words: str) -> str:
    """What git says; empty where it cannot say it."""
    try:
        said = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def code_before(migration: Path, folder: Path) -> None:
    """Put the code there that did not have this migration yet; skips the test if the history is too short."""
    if Path(git("rev-parse", "--show-toplevel") or "/") != ROOT:
        pytest.skip("the code of the version before is taken from git, and this is no repository")
    added = git("log", "--first-parent", "-m", "--diff-filter=A", "--format=%H", "-1", "--", str(migration))
    before = f"{added}~1" if added else "HEAD"  # not committed yet
    if not git("rev-parse", "--verify", f"{before}^{{tree}}"):
        pytest.skip(f"the history is too shallow to have the code from before {migration.name}")
    folder.mkdir()
    packed = folder.with_suffix(".tar")
    packages = git("ls-tree", "--name-only", before, "app", "bucketwire", "workers", "spark_jobs", "migrations").split()
    subprocess.run(["git", "-C", ROOT, "archive", "--output", packed, before, *packages], check=True)
    subprocess.run(["tar", "-x", "-C", folder, "-f", packed], check=True)
    assert not (folder / migration.relative_to(ROOT)).exists()


@dataclass
class Version:
    """API, beat and a worker of one version of the code."""

    settings: dict[str, str]
    api: Api = field(init=False)
    beat: Role = field(init=False)
    worker: Role = field(init=False)

    def __post_init__(self) -> None:
        self.api = Api(["api", "--workers", "1"], self.settings)
        self.beat = Role(["beat"], self.settings, "is starting.")
        self.worker = Role(["worker", "--concurrency", "1"], self.settings, " ready.")

    @property
    def roles(self) -> list[Role]:
        return [self.api, self.beat, self.worker]

    def migrate(self) -> None:
        log = services.new_folder("migrate") / "log"
        command = OTHER_CODE if "PYTHONPATH" in self.settings else [forking.command()]
        run_to_end([*command, "migrate"], log, env=self.settings)


@pytest.mark.nightly("migrations up, down and up again on all four databases, in outbox/test_maintenance.py")
@pytest.mark.timeout(400)
def test_the_version_before_goes_on_at_the_new_schema_until_the_new_one_has_taken_over(
    postgres_server: services.Postgres, redis_server: services.Redis, receiver: services.Receiver, tmp_path: Path
) -> None:
    script = first_since_the_release()
    if script is None:
        pytest.skip("no migration is newer than the last release")
    code_before(Path(script.path), tmp_path / "before")
    with ExitStack() as stack:
        broker = stack.enter_context(services.redis())
        settings = {
            "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
            "BUCKETWIRE_DATABASE_URL": postgres_server.create_database(f"outbox_{uuid4().hex[:12]}"),
            "BUCKETWIRE_BROKER_URL": broker.url,
            "BUCKETWIRE_ALLOW_PRIVATE": "on",
        }
        old, new = Version({**settings, "PYTHONPATH": str(tmp_path / "before")}), Version(settings)
        database = Database(settings["BUCKETWIRE_DATABASE_URL"])
        stack.callback(database.close)
        stack.callback(stop_all, [*old.roles, *new.roles])
        whole = System(settings, database, old.api, old.beat, old.worker, [])
        sent: list[Event] = []
        numbers = itertools.count()

        def is_settled(api: Api) -> bool:
            """Whether nothing waits: as the API says, since this code does not know the schema before."""
            [target] = httpx.get(f"{api.url}/v1/targets", timeout=PATIENCE, trust_env=False).json()["targets"]
            return bool(target["events"]["pending"] == target["events"]["parked"] == 0)

        def goes_through(apis: Sequence[Api]) -> None:
            """Events of ten objects, at each API by turns, and all of them delivered."""
            for api in apis:
                events = some("images", 50, first=50 * next(numbers))
                answer = httpx.post(f"{api.url}/v1/events", content=body(*events), timeout=PATIENCE, trust_env=False)
                assert (answer.status_code, answer.json()["recorded"]) == (202, 50)
                sent.extend(events)
            until(lambda: is_settled(apis[0]), PATIENCE, what="everything delivered")
            assert Expected.of(records(*sent)).check(posted(receiver), "the receiver") == 0

        old.migrate()
        assert schema_version.current(database) == RELEASED, "this is not the version before"
        start_all([old.api, old.worker])  # beat only sends wake-ups, and knows no schema
        whole.add_target("webhook:all", endpoint=receiver.url, max_attempts=5)
        goes_through([old.api])

        new.migrate()
        assert schema_version.current(database) == schema_version.head()
        goes_through([old.api])  # with what it had open before
        stop_all([old.api, old.worker])
        start_all([old.api, old.worker])
        goes_through([old.api])  # and begun anew

        start_all(new.roles)
        filters = {"regex": "[a-z]+", "tags": {"team": "blue"}}
        rule = {"bucket": "elsewhere", "events": ["*"], "target": "webhook:all", "prefix": "a", **filters}
        made = httpx.post(f"{new.api.url}/v1/rules", json=rule, timeout=PATIENCE, trust_env=False).json()
        for api, known in ((old.api, {}), (new.api, filters)):
            answer = httpx.get(f"{api.url}/v1/rules?bucket=elsewhere", timeout=PATIENCE, trust_env=False)
            [seen] = answer.json()["rules"]
            assert seen == {name: value for name, value in made.items() if name not in filters} | known
        goes_through([old.api, new.api, old.api, new.api])
        whole.api = new.api  # whose routes the rest is asked by
        stop_all(old.roles)
        goes_through([new.api, new.api])
        [audit] = whole.audits()
        assert (audit.difference, audit.counters.recorded, audit.counters.delivered) == (0, len(sent), len(sent))
        stays_in_service(new.api, database, schema_version.head())


def stays_in_service(api: Api, database: Database, revision: str) -> None:
    """An API of this version is ready at a schema that it does not know yet, and not at one that lacks something."""

    def readiness() -> httpx.Response:
        return httpx.get(f"{api.url}/readyz", timeout=PATIENCE, trust_env=False)

    def stand_at(named: str, ready: Callable[[], bool]) -> None:
        with database.writing() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = :named"), {"named": named})
        until(ready, PATIENCE, what=f"readiness at {named}")

    checks = readiness().json()["checks"]
    assert checks["schema"]["ok"]
    stand_at("later", lambda: readiness().json()["checks"]["schema"]["revision"] == "later")
    assert readiness().status_code == 200, readiness().text
    stand_at("0001", lambda: readiness().status_code == 503)
    assert readiness().json()["checks"]["schema"]["reason"] == "run `bucketwire migrate`"
    stand_at(revision, lambda: readiness().status_code == 200)
