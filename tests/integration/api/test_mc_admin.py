"""`mc admin`, unmodified, and minio-py's MinioAdmin."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import sqlalchemy as sa
import yaml
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from minio.error import MinioAdminException
from werkzeug.test import Client, TestResponse

from app.api.admin.wsgi_app import LIMIT, encrypt
from app.config.arn import TargetId
from app.config.secrets import Sealer
from app.config.settings import Settings
from app.config.targets.base import TargetSettings
from app.outbox import tables
from app.outbox.delivery.availability import record_opening
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import FAILING
from app.outbox.registry import Registry
from app.server.application import create_app
from tests import services
from tests.integration.api.conftest import KEY, S3, Start, url_of
from tests.integration.api.mc_admin import Admin
from tests.support.builders import add_target, migrated
from tests.support.outbox_rows import heartbeats

OF_EACH_KIND = {  # of mistake, one command
    "set bw notify_kafka:x brokers=h:9092 tpic=t", "get bw notify_webhook:ONE", "reset bw notify_webhook:one",
    "set bw notify_webhook:env queue_limit=6", "history bw",
}  # fmt: skip

NIGHTLY = pytest.mark.nightly("what `mc` sets, backs up, restores and is refused, in the other tests here")

ONE = TargetId("webhook", "one")
PLACE = "http://127.0.0.1:9/"
SET_ONE = f'mc admin config set bw notify_webhook:one endpoint={PLACE} auth_token=s3cret queue_limit=5 comment="a few"'


@pytest.fixture
def bw(s3: S3) -> Admin:
    return Admin(s3.place, s3.access_key, s3.secret_key, s3.api.folder)


@pytest.fixture
def targets(s3: S3) -> Registry:
    return Registry(s3.database, Sealer([KEY]))


def texts(targets: Registry, target: TargetId = ONE) -> dict[str, str]:
    return targets.texts(targets.target(target))


def effective(targets: Registry) -> dict[TargetId, TargetSettings]:
    return {target.target: targets.settings(target) for target in targets.targets()}


# As the guides of MinIO's users have them; the alias is written with a slash and without.
GUIDES = {
    "amqp:1": 'mc admin config set bw/ notify_amqp:1 exchange="bucketevents" exchange_type="fanout" mandatory="false" '
    'no_wait="false" url="amqp://myuser:mypassword@localhost:5672" auto_deleted="false" delivery_mode="0" '
    'durable="false" internal="false" routing_key="bucketlogs"',
    "mqtt:1": 'mc admin config set bw notify_mqtt:1 broker="tcp://localhost:1883" password="" queue_dir="" '
    'queue_limit="0" reconnect_interval="0s" keep_alive_interval="0s" qos="1" topic="minio" username=""',
    "elasticsearch:1": 'mc admin config set bw notify_elasticsearch:1 queue_limit="0" url="http://127.0.0.1:9200" '
    'format="namespace" index="minio_events" queue_dir=""',
    "redis:1": 'mc admin config set bw/ notify_redis:1 address="127.0.0.1:6379" format="namespace" '
    'key="bucketevents" password="yoursecret" queue_dir="" queue_limit="0"',
    "postgresql:1": 'mc admin config set bw notify_postgres:1 connection_string="host=localhost port=5432 '
    'dbname=minio_events user=postgres password=password sslmode=disable" table="bucketevents" format="namespace"',
    "mysql:myinstance": 'mc admin config set bw notify_mysql:myinstance table="minio_images" '
    'dsn_string="root:xxxx@tcp(172.17.0.1:3306)/miniodb"',
    "nats:1": 'mc admin config set bw notify_nats:1 password="yoursecret" streaming_max_pub_acks_in_flight="10" '
    'subject="bucketevents" address="0.0.0.0:4222" token="" username="yourusername" ping_interval="0" queue_limit="0" '
    'tls="off" streaming_async="on" queue_dir="" streaming_cluster_id="test-cluster" streaming_enable="on"',
    "nsq:1": 'mc admin config set bw notify_nsq:1 nsqd_address="127.0.0.1:4150" queue_dir="" queue_limit="0" '
    'tls_enable="off" tls_skip_verify="on" topic="minio"',
    "kafka:1": 'mc admin config set bw notify_kafka:1 tls_skip_verify="off" queue_dir="" queue_limit="0" sasl="off" '
    'sasl_password="" sasl_username="" tls_client_auth="0" tls="off" client_tls_cert="" client_tls_key="" '
    'brokers="localhost:9092,localhost:9093" topic="bucketevents" version=""',
    "webhook:1": 'mc admin config set bw notify_webhook:1 queue_limit="0" endpoint="http://localhost:3000" '
    'queue_dir=""',
}


@NIGHTLY
def test_what_the_guides_set_is_set_at_once(bw: Admin, targets: Registry) -> None:
    for line in GUIDES.values():
        assert bw.ok(line) == "Successfully applied new settings.\n"  # and no "Please restart your server"
    stored = targets.targets()
    assert {str(target.target) for target in stored} == GUIDES.keys()
    assert {(target.state, target.state_reason) for target in stored} == {("running", "")}
    info = json.loads(bw.ok("mc admin info --json bw"))["info"]
    assert info["sqsARN"] == [target.target.arn() for target in stored]
    assert info["services"]["notifications"][0] == {"amqp": [{"1": {"status": "offline"}}]}, "nobody has opened it"
    assert bw.place in bw.ok("mc admin info bw")
    sections = bw.ok("mc admin config get bw/")
    assert len([line for line in sections.splitlines() if line.startswith("notify_")]) == 11
    assert bw.keys("notify_postgres:1")["table"] == "bucketevents"


@NIGHTLY
def test_the_sync_mode_is_set_as_at_minio(bw: Admin, targets: Registry) -> None:
    assert "sync_events=off" in bw.ok("mc admin config get bw api")
    assert bw.ok("mc admin config set bw/ api sync_events=on") == "Successfully applied new settings.\n"
    assert targets.api_settings() == {"sync_events": "on"}
    assert "sync_events=on" in bw.ok("mc admin config get bw api")
    assert "api sync_events=on" in bw.ok("mc admin config export bw")
    assert "api " in bw.ok("mc admin config get bw/")
    assert "sync_events" in bw.ok("mc admin config set bw api")  # its help
    bw.ok("mc admin config reset bw api sync_events")
    assert targets.api_settings() == {}


def test_secrets_are_left_out_as_at_minio_and_passwords_in_addresses_are_hidden(bw: Admin, targets: Registry) -> None:
    bw.ok(SET_ONE)
    assert texts(targets)["auth_token"] == "s3cret"
    assert "s3cret" not in bw.ok("mc admin config get bw notify_webhook") + bw.ok("mc admin config export bw")
    keys = bw.keys("notify_webhook:one")
    assert "auth_token" not in keys
    assert keys["comment"] == "a few"
    targets.put(TargetId("amqp", "q"), {"url": "amqp://me:hidden@127.0.0.1:1/", "enable": "off"})
    assert bw.keys("notify_amqp:q") | {"enable": "off", "url": "amqp://me:*redacted*@127.0.0.1:1/"} == bw.keys(
        "notify_amqp:q"
    )


def test_keys_that_are_left_out_keep_their_values_and_reset_keys_get_their_defaults(
    bw: Admin, targets: Registry
) -> None:
    bw.ok(SET_ONE)
    bw.ok("mc admin config set bw notify_webhook:one queue_limit=6 enable=off")
    assert texts(targets) == {
        "enable": "off", "endpoint": PLACE, "auth_token": "s3cret", "queue_limit": "6", "comment": "a few",
    }  # fmt: skip
    assert bw.ok("mc admin config reset bw notify_webhook:one queue_limit comment").splitlines() == [
        "'notify_webhook:one queue_limit comment' is successfully reset."
    ]
    assert texts(targets) == {"enable": "off", "endpoint": PLACE, "auth_token": "s3cret"}
    bw.ok("mc admin config reset bw/ notify_webhook:one")
    assert targets.targets() == []
    bw.ok("mc admin config reset bw notify_webhook")  # the unnamed one is at its defaults


@pytest.mark.nightly(
    "one of each kind of mistake: the API passes on words that are units", when=lambda line: line not in OF_EACH_KIND
)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("set bw notify_kafka:x brokers=h:9092", "kafka:x: topic: is required"),
        ("set bw notify_kafka:x brokers=h:9092 topic=t sasl=maybe", "kafka:x: sasl: “maybe” is neither on nor off"),
        ("set bw notify_kafka:x brokers=h:9092 tpic=t", "did you mean topic?"),
        ("set bw notify_kafka:x:y brokers=h:9092 topic=t", "is not a target name"),
        ("set bw notify_kaffka:x brokers=h:9092 topic=t", "did you mean notify_kafka?"),
        ("set bw notify_kaffka", "unknown sub-system notify_kaffka; did you mean notify_kafka?"),
        ("set bw notify_kafka tpic", "unknown key tpic for sub-system notify_kafka; did you mean topic?"),
        ("get bw notify_kafka:x", "there is no target `x` for subsystem `notify_kafka`"),
        ("get bw notify_webhook:ONE", "there is no target `ONE` for subsystem `notify_webhook`; did you mean one?"),
        ("reset bw notify_webhook:two", "there is no target webhook:two"),
        ("reset bw notify_webhook:one nokey", "nokey: is not a known setting"),
        ("reset bw notify_webhook:one endpoint", "endpoint: is required"),
        ("reset bw notify_webhook:one", "webhook:one is in use: 1 rule; --force"),
        ("set bw notify_webhook:env queue_limit=6", "is set by MINIO_NOTIFY_… variables"),
        ("reset bw notify_webhook:env", "is set by MINIO_NOTIFY_… variables"),
        ("set bw api requests_max=5", "requests_max: is not a known setting; known are sync_events"),
        ("get bw scanner", "scanner is not part of this service"),
        ("history bw", "Bucketwire keeps no history of settings"),
        ("history --clear bw", "Bucketwire keeps no history of settings"),
        ("restore bw 556e10fa", "Bucketwire keeps no history of settings"),
    ],
)
def test_mc_prints_what_is_wrong(s3: S3, bw: Admin, targets: Registry, line: str, words: str) -> None:
    add_target(s3.database, "one")
    targets.sync_environment({TargetId("webhook", "env"): {"enable": "on", "endpoint": PLACE}}, {})
    before = targets.targets()
    assert words in bw.refused(f"mc admin config {line}")
    assert targets.targets() == before


@pytest.mark.nightly(
    "one that shows something, and one that does",
    when=lambda line: line not in {"user add bw alice alicealice", "service stop bw"},
)
@pytest.mark.parametrize(
    "line",
    [
        "user ls bw", "user add bw alice alicealice", "policy ls bw", "group ls bw", "kms key status bw",
        "service stop bw", "service freeze bw", "update bw --yes", "heal bw",
    ],
)  # fmt: skip
def test_other_commands_are_refused_in_words(bw: Admin, line: str) -> None:
    assert "not part of this service" in bw.refused(f"mc admin {line}")


def test_a_restart_is_answered(bw: Admin) -> None:
    def answer(line: str) -> Any:
        """Two threads of mc race for the answer, and only one of them prints it."""
        printed: list[str] = []
        services.until(lambda: printed.append(bw.ok(line)) or printed[-1], 60)
        return json.loads(printed[-1])

    done = answer("mc admin service restart --json bw")
    assert (done["status"], done["result"]["action"], done["result"]["dryRun"]) == ("success", "restart", False)
    assert [result["host"] for result in done["result"]["results"]] == [bw.place]
    assert answer("mc admin service restart --dry-run --json bw")["result"]["dryRun"] is True


@NIGHTLY
def test_a_restart_is_answered_on_a_terminal(bw: Admin) -> None:
    """Without --json, mc wants a terminal to draw on."""
    master, terminal = pty.openpty()
    argv = ["setsid", "--ctty", "--wait", *bw.argv("mc admin service restart bw")]
    drawn = bytearray()
    with subprocess.Popen(argv, env=bw.env, stdin=terminal, stdout=terminal, stderr=terminal) as mc:
        os.close(terminal)
        with suppress(OSError):  # EIO: nobody has the terminal open any more
            while chunk := os.read(master, 4096):
                drawn += chunk
        os.close(master)
    said = drawn.decode()
    assert mc.returncode == 0, said
    assert "Restart Time" in said
    assert "1 online, 0 offline, 0 hung" in said


def test_a_backup_is_restored_with_the_secrets_that_are_stored(bw: Admin, targets: Registry) -> None:
    bw.ok(SET_ONE)
    targets.put(TargetId("redis", "off"), {"enable": "off", "address": "h:1", "key": "k", "password": "pw"})
    targets.sync_environment({TargetId("webhook", "env"): {"enable": "on", "endpoint": PLACE}}, {})
    before = effective(targets)
    backup = bw.ok("mc admin config export bw")
    assert "# notify_redis:off enable=off" in backup
    bw.ok("mc admin config set bw notify_webhook:one queue_limit=99")
    bw.ok("mc admin config import bw", given=backup)
    assert effective(targets) == before
    said = bw.refused("mc admin config import bw", given="notify_redis:r key=k address=h\n\nnotify_nothing:x a=b\n")
    assert "line 3: notify_nothing" in said
    assert TargetId("redis", "r") not in {target.target for target in targets.targets()}


@NIGHTLY
def test_minio_pys_client_reads_and_writes_settings(bw: Admin, targets: Registry) -> None:
    bw.py.config_set("notify_webhook:one", {"endpoint": PLACE, "auth_token": "s3cret", "comment": '"a few"'})
    assert texts(targets) == {"enable": "on", "endpoint": PLACE, "auth_token": "s3cret", "comment": "a few"}
    unset, one = bw.py.config_get("notify_webhook").splitlines()
    assert unset.startswith("notify_webhook enable=off endpoint= auth_token= ")
    assert one.startswith(f"notify_webhook:one endpoint={PLACE} ")
    assert json.loads(bw.py.info())["sqsARN"] == ["arn:minio:sqs::one:webhook"]
    assert bw.py.service_restart() == ""
    bw.py.config_reset("notify_webhook", "one")
    assert targets.targets() == []
    with pytest.raises(MinioAdminException, match="not part of this service"):
        bw.py.user_list()
    with pytest.raises(MinioAdminException, match="no history"):
        bw.py.config_restore("x")


@NIGHTLY
def test_a_target_that_cannot_be_shown_hides_no_other(s3: S3, bw: Admin, targets: Registry) -> None:
    add_target(s3.database, "lost", auth_token="sealed with a key that the service does not have")
    targets.put(TargetId("webhook", "odd"), {"endpoint": PLACE, "comment": "\"'\" a= ' b= '\" c="})
    targets.put(ONE, {"endpoint": PLACE})
    said = bw.ok("mc admin config get bw notify_webhook")
    for begin in (
        "notify_webhook enable=off ",
        f"notify_webhook:one endpoint={PLACE} ",
        "# webhook:lost: auth_token: ",
        "# webhook:odd: comment: cannot be written in a line",
    ):
        assert any(line.startswith(begin) for line in said.splitlines()), said
    assert len(json.loads(bw.ok("mc admin config get --json bw notify_webhook"))["config"]) == 2


def error(s3: S3, method: str, path: str, content: bytes = b"", **key: str) -> tuple[int, str, str]:
    """Status, code and message of the refusal of a signed request."""
    answer = s3.ask(method, f"/minio/admin/v3/{path}", content, **key)
    members = answer.json()
    assert members.keys() == {"Code", "Message", "Resource", "RequestId", "HostId"}
    assert "Traceback" not in answer.text
    return answer.status_code, members["Code"], members["Message"]


def test_every_call_needs_the_scope_admin(s3: S3) -> None:
    reader = {"key": "WATCHER", "secret": "only-looks-on"}
    for method, path in (("GET", "info"), ("GET", "config"), ("PUT", "set-config-kv"), ("GET", "list-users")):
        status, code, message = error(s3, method, path, **reader)
        assert (status, code) == (403, "AccessDenied")
        assert "lacks the scope admin" in message
        assert error(s3, method, path, secret="another secret")[:2] == (403, "SignatureDoesNotMatch")
        unsigned = s3.api.client.request(method, f"/minio/admin/v3/{path}")
        assert (unsigned.status_code, unsigned.json()["Code"]) == (403, "AccessDenied")
        token = s3.api.client.request(method, f"/minio/admin/v3/{path}", headers={"Authorization": "Bearer x"})
        assert (token.status_code, token.json()["Code"]) == (403, "AccessDenied")


def test_a_hostile_body_is_refused_in_words(s3: S3, targets: Registry) -> None:
    whole = encrypt(b"notify_webhook:one endpoint=http://127.0.0.1:9/ auth_token=x", s3.secret_key)
    for call in (("PUT", "set-config-kv"), ("DELETE", "del-config-kv"), ("PUT", "config")):
        for content in (b"x", whole[:30], whole[:-1], whole[:32] + b"\x09" + whole[33:], b"\0" * len(whole)):
            assert error(s3, *call, content)[:2] == (400, "XMinioAdminConfigBadJSON"), content
        flipped = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
        assert error(s3, *call, flipped)[:2] == (400, "XMinioAdminConfigBadJSON")
        assert error(s3, *call, bytes(LIMIT + 1))[:2] == (400, "XMinioAdminConfigTooLarge")
        assert error(s3, *call, encrypt(b"\xff\xfe", s3.secret_key))[2] == "The text is not utf-8."
    for text in ("", " \n", "\0", "notify_webhook:one endpoint=\0", "notify_redis " + "a=b " * 60_000):
        assert error(s3, "PUT", "set-config-kv", encrypt(text.encode(), s3.secret_key))[:2] == (
            400,
            "XMinioConfigError",
        )
    assert targets.targets() == []


def test_a_body_of_64_mib_is_refused_and_not_read(s3: S3) -> None:
    request = s3.sign("PUT", "/minio/admin/v3/set-config-kv", bytes(64 << 20))
    answer = s3.api.client.send(request)
    assert (answer.status_code, answer.json()["Code"]) == (400, "XMinioAdminConfigTooLarge")


def test_mc_finds_the_service_ready_and_its_buckets_private(s3: S3, bw: Admin) -> None:
    heartbeats(s3.database, 1000)
    services.until(lambda: s3.api.client.get("/minio/health/cluster").status_code == 200)
    assert bw.ok("mc ready bw") == "The cluster 'bw' is ready\n"
    bw.ok("mc mb bw/images")
    assert "Anonymous: Disabled" in bw.ok("mc stat bw/images")
    assert "is not valid" in bw.refused("mc event ls bw/Im_ages")


@contextmanager
def in_process(database_url: str, **more: str) -> Iterator[Callable[[str], TestResponse]]:
    """An app in this process; call it with the region of the signature to get its answer to `mc admin info`."""
    environ = {
        "BUCKETWIRE_DATABASE_URL": database_url,
        "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0",
        "BUCKETWIRE_SECRET_KEYS": KEY,
        "BUCKETWIRE_ACCESS_KEY": S3.access_key,
        "BUCKETWIRE_SECRET_KEY": S3.secret_key,
    }
    app = create_app(Settings.from_environ(environ | more))

    def info(region: str) -> TestResponse:
        signed = AWSRequest("GET", "http://localhost/minio/admin/v3/info")
        S3SigV4Auth(Credentials(S3.access_key, S3.secret_key), "s3", region).add_auth(signed)
        return Client(app.wsgi_app).get("/minio/admin/v3/info", headers=dict(signed.headers))

    try:
        yield info
    finally:
        app.extensions["bucketwire"].database.close()


def test_the_region_of_the_service_is_in_its_arns_and_not_in_the_signature_of_mc(tmp_path: Path) -> None:
    """mc signs admin calls for the region "", whatever the server's is."""
    url = f"sqlite:///{tmp_path}/outbox.db"
    with closing(migrated(url)) as database:
        add_target(database, "audit")
        with in_process(url, BUCKETWIRE_REGION="eu-1") as info:
            for region in ("", "us-east-1"):
                assert orjson.loads(info(region).data)["sqsARN"] == ["arn:minio:sqs:eu-1:audit:webhook"]


def test_a_target_is_online_once_it_was_opened_and_until_all_fails_that_is_sent_to_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/outbox.db"
    with closing(migrated(url)) as database, in_process(url) as info:
        add_target(database, "audit")
        known = Registry(database, Sealer([KEY])).targets()[0]
        cursors, t = tables.cursors, tables.targets

        def status() -> str:
            [listed] = orjson.loads(info("").data)["services"]["notifications"]
            return str(listed["webhook"][0]["audit"]["status"])

        def change(statement: sa.Update) -> None:
            with database.writing() as connection:
                connection.execute(statement)

        assert status() == "offline", "no worker has tried it"
        record_opening(database, known.row_id, known.revision, now_ms(), "Connection refused")
        assert status() == "offline"
        record_opening(database, known.row_id, known.revision, now_ms())
        assert status() == "online"
        for column, away, back in (("paused", True, False), ("breaker", "open", "closed")):
            change(t.update().values({column: away}))
            assert status() == "offline", column
            change(t.update().values({column: back}))
            assert status() == "online", column
        failed = {"failed_in_row": FAILING.min_attempts, "failed_mark": known.revision, "failed_since": now_ms()}
        change(cursors.update().where(cursors.c.partition == 0).values(failed))
        assert status() == "offline", "every attempt fails"
        Registry(database, Sealer([KEY])).put(TargetId("webhook", "audit"), {"endpoint": PLACE})
        assert status() == "offline", "the new settings are not tried yet"


def test_what_mc_prints_for_prometheus_works(plain_log: Database, start: Start) -> None:
    add_target(plain_log, "audit")
    keys = {"access_key": S3.access_key, "secret_key": S3.secret_key}
    api = start(url_of(plain_log), processes=1, api_tokens=f"reader:read:{'r' * 32}", **keys)
    place = f"{services.LOOPBACK}:{api.port}"

    def job(line: str = "", secret_key: str = S3.secret_key) -> Any:
        admin = Admin(place, S3.access_key, secret_key, api.folder)
        [found] = yaml.safe_load(admin.ok(f"mc admin prometheus generate bw {line}"))["scrape_configs"]
        assert found["static_configs"] == [{"targets": [place]}]
        return found

    def scrape(found: Any, path: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {found['bearer_token']}"} if "bearer_token" in found else {}
        return httpx.get(f"{found['scheme']}://{place}{path or found['metrics_path']}", headers=headers, timeout=60)

    for line in ("", "cluster", "--api-version v3", "notification --api-version v3"):
        answer = scrape(job(line))
        assert answer.status_code == 200, (line, answer.text)
        assert 'bucketwire_target_pending_events{name="audit",type="webhook"} 0.0' in answer.text
    assert scrape(job(), "/metrics").status_code == 200
    assert scrape({**job(), "bearer_token": "r" * 32}).status_code == 200
    assert scrape(job("node")).status_code == 404, "what only a storage has"
    assert scrape(job("--public")).status_code == 401
    assert scrape(job(secret_key="another-secret")).status_code == 401
    assert scrape(job(), "/v1/targets").status_code == 401, "it is for the metrics only"


def test_a_database_that_is_away_is_told_in_json_and_mc_tries_again(tmp_path: Path) -> None:
    with in_process(f"sqlite:///{tmp_path}/nowhere/outbox.db") as info:
        answer = info("")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert orjson.loads(answer.data)["Code"] == "ServiceUnavailable"
