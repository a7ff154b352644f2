"""The same `mc admin` commands to a real MinIO: where the output differs from ours, it differs as it is meant to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from app.config.arn import TargetId
from app.config.declared_types import sections
from app.config.secrets import Sealer
from app.outbox.registry import Registry
from tests import services
from tests.integration.api.conftest import KEY, S3
from tests.integration.api.mc_admin import Admin

pytestmark = pytest.mark.nightly("what `mc` sets, shows and is refused at the API, in test_mc_admin.py")

SET_ONE = (
    'mc admin config set bw notify_webhook:one endpoint={} auth_token=s3cret queue_limit="5" comment="a few words"'
)
HERE_ALONE = {"notify_sqs"}  # the sections that MinIO has not
# MinIO's default and ours, of the keys that both have, where they differ.
OTHER_DEFAULTS = {
    ("notify_kafka", "batch_size"): ("0", "500"),
    ("notify_kafka", "compression_codec"): ("", "none"),
    ("notify_kafka", "compression_level"): ("", "0"),
}
# Keys that are marked `*` by MinIO alone, or here alone. `enable` has a default here, and so has `format`.
MARKED_BY_MINIO = {("notify_postgres", "connection_string")}
MARKED_HERE = {("notify_kafka", "topic")}
# Variables in MinIO's help that its server does not read; the help here names those that it reads.
NOT_READ_BY_MINIO = {
    "MINIO_NOTIFY_AMQP_PUBLISHER_CONFIRMS",
    "MINIO_NOTIFY_KAFKA_COMPRESSION_CODEC",
    "MINIO_NOTIFY_KAFKA_COMPRESSION_LEVEL",
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[services.Receiver]:
    with services.receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(receiver: services.Receiver) -> Iterator[services.MinIO]:
    """A MinIO with the target `env` of its environment and the target `one`, which `mc` has set."""
    variables = {f"MINIO_NOTIFY_WEBHOOK_{key.upper()}_env": value for key, value in environment(receiver.url).items()}
    with services.minio(extra_env=variables) as server:
        Admin(server.endpoint, server.access_key, server.secret_key, server.folder).ok(SET_ONE.format(receiver.url))
        server.kill()  # what was set is in force after a restart
        server.start()
        yield server


def environment(url: str) -> dict[str, str]:
    return {"enable": "on", "endpoint": url, "auth_token": "t0ken", "queue_limit": "7"}


@pytest.fixture(scope="module")
def theirs(server: services.MinIO) -> Admin:
    return Admin(server.endpoint, server.access_key, server.secret_key, server.folder)


@pytest.fixture
def ours(s3: S3) -> Admin:
    return Admin(s3.place, s3.access_key, s3.secret_key, s3.api.folder)


def test_the_sections_are_those_of_minio(ours: Admin, theirs: Admin) -> None:
    def told(admin: Admin) -> dict[str, str]:
        lines = admin.ok("mc admin config get bw").splitlines()  # | grep notify
        return dict(line.split(maxsplit=1) for line in lines if line.startswith("notify_"))

    here = told(ours)
    assert here.keys() == sections().keys()
    assert {section: words for section, words in here.items() if section not in HERE_ALONE} == told(theirs)


def test_a_section_that_is_not_set_has_every_key_of_minio_with_its_default(ours: Admin, theirs: Admin) -> None:
    def told(admin: Admin) -> dict[str, dict[str, str]]:
        lines = re.findall(r"^# (notify_\S+) (.*)", admin.ok("mc admin config export bw"), re.MULTILINE)
        return {section: dict(pair.split("=", 1) for pair in pairs.split()) for section, pairs in lines}

    here, minio = told(ours), told(theirs)
    assert here.keys() == minio.keys() | HERE_ALONE == sections().keys()
    pairs = {(section, key): value for section, keys in minio.items() for key, value in keys.items()}
    assert {(section, key) for section, key in pairs if key not in here[section]} == set()
    differ = {(section, key): (value, here[section][key]) for (section, key), value in pairs.items()}
    assert {key: values for key, values in differ.items() if values[0] != values[1]} == OTHER_DEFAULTS


def help_of(url: str, key: Credentials, section: str, option: str = "") -> dict[str, bool]:
    """The keys of a section, and whether each is optional, from the call that `mc admin config set` makes for it."""
    address = f"{url}/minio/admin/v3/help-config-kv?key=&subSys={section}{option}"
    signed = AWSRequest("GET", address)
    S3SigV4Auth(key, "s3", "us-east-1").add_auth(signed)
    answer = httpx.get(address, headers=dict(signed.headers)).raise_for_status().json()
    assert (answer["subSys"], answer["multipleTargets"]) == (section, True)
    return {key["key"]: key["optional"] for key in answer["keysHelp"]}


@pytest.mark.parametrize("section", sorted(sections().keys() - HERE_ALONE))
def test_the_help_has_every_key_of_minio_and_marks_the_mandatory_ones(
    s3: S3, server: services.MinIO, section: str
) -> None:
    here = help_of(s3.api.url, Credentials(s3.access_key, s3.secret_key), section)
    minio = help_of(server.url, Credentials(server.access_key, server.secret_key), section)
    assert minio.keys() - here.keys() == set()
    differ = {(section, key) for key in minio if minio[key] != here[key] and key not in ("enable", "format")}
    assert differ == {key for key in MARKED_BY_MINIO | MARKED_HERE if key[0] == section}
    variables = help_of(s3.api.url, Credentials(s3.access_key, s3.secret_key), section, "&env=")
    told = help_of(server.url, Credentials(server.access_key, server.secret_key), section, "&env=")
    assert told.keys() - variables.keys() <= NOT_READ_BY_MINIO
    enable = f"MINIO_{section.upper()}_ENABLE"
    assert (told[enable], variables[enable]) == (False, False)


def test_mc_prints_the_same_for_what_is_not_there(ours: Admin, theirs: Admin) -> None:
    missing = "mc admin config get bw notify_kafka:x"
    assert ours.refused(missing) == theirs.refused(missing)
    assert ours.ok("mc admin config reset bw notify_nsq") == "'notify_nsq' is successfully reset.\n"
    asks_for_a_restart = theirs.ok("mc admin config reset bw notify_nsq")
    assert asks_for_a_restart.startswith("'notify_nsq' is successfully reset.\n")


def test_targets_are_shown_as_minio_shows_them(s3: S3, ours: Admin, theirs: Admin, receiver: services.Receiver) -> None:
    """Variables as comments, secrets left out, the same keys and ARNs."""
    targets = Registry(s3.database, Sealer([KEY]))
    targets.sync_environment({TargetId("webhook", "env"): environment(receiver.url)}, {})
    ours.ok(SET_ONE.format(receiver.url))
    here, minio = (admin.ok("mc admin config get bw notify_webhook") for admin in (ours, theirs))
    assert [line.split()[0] for line in here.splitlines() if line] == [
        line.split()[0] for line in minio.splitlines() if line
    ]
    assert set(words(minio)) - set(words(here)) == set()
    for told in (here, minio):
        assert [line for line in told.splitlines() if line.startswith("#")] == [
            "# MINIO_NOTIFY_WEBHOOK_ENABLE_env=on",
            f"# MINIO_NOTIFY_WEBHOOK_ENDPOINT_env={receiver.url}",
            "# MINIO_NOTIFY_WEBHOOK_QUEUE_LIMIT_env=7",
        ]
        assert 'comment="a few words"' in told
        assert "t0ken" not in told
        assert "s3cret" not in told
    arns = [sorted(json.loads(admin.ok("mc --json admin info bw"))["info"]["sqsARN"]) for admin in (ours, theirs)]
    assert arns == [[f"arn:minio:sqs::{name}:webhook" for name in ("env", "one")]] * 2


def words(text: str) -> list[str]:
    return re.findall(r'[^\s"]+"[^"]*"|\S+', text)


def test_the_backup_of_a_minio_is_taken(ours: Admin, s3: S3, theirs: Admin) -> None:
    """Also with the sections that are not settings of targets."""
    backup = theirs.ok("mc admin config export bw")
    assert "\nscanner " in backup
    ours.ok("mc admin config import bw", given=f"{backup}notify_nsq:a nsqd_address=127.0.0.1:4150 topic=t\n")
    targets = Registry(s3.database, Sealer([KEY]))
    assert [str(stored.target) for stored in targets.targets()] == ["nsq:a", "webhook:one"]
    one = targets.texts(targets.target(TargetId("webhook", "one")))
    assert (one["auth_token"], one["comment"]) == ("s3cret", "a few words")
