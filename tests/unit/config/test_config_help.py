"""The help of `mc admin config set ALIAS notify_…`."""

import pytest

from app.config.declared_types import TYPES, section_type, sections
from app.config.errors import BadSettings
from app.config.fields.fields import fields_of
from app.config.formats.notify_lines import describe_section, key_helps

KAFKA = section_type("notify_kafka")


def test_a_mandatory_key_is_one_without_a_default() -> None:
    assert {name for name, key in key_helps(KAFKA).items() if key.mandatory} == {"brokers", "topic"}


def test_a_target_of_the_environment_has_to_be_enabled_there() -> None:
    keys = key_helps(KAFKA, variables=True)
    assert keys["enable"].name == "MINIO_NOTIFY_KAFKA_ENABLE"
    assert keys["compression_codec"].name == "MINIO_NOTIFY_KAFKA_PRODUCER_COMPRESSION_CODEC"
    assert {name for name, key in keys.items() if key.mandatory} == {"enable", "brokers", "topic"}


@pytest.mark.parametrize(
    ("key", "kind", "about"),
    [
        ("sasl", "on|off", "log in with SASL, default is 'off'"),
        ("sync", "on|off", "one unconfirmed request at a time; empty: as MINIO_API_SYNC_EVENTS"),
        ("sasl_mechanism", "plain|sha256|sha512", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, default is 'plain'"),
    ],
)
def test_a_key_is_described_in_words_for_a_terminal(key: str, kind: str, about: str) -> None:
    described = key_helps(KAFKA)[key]
    assert (described.kind, described.about) == (kind, about)


def test_every_key_of_every_section_is_described_on_one_line() -> None:
    assert len(sections()) == len(TYPES) == 11
    for cls in TYPES.values():
        keys = key_helps(cls)
        assert keys.keys() == fields_of(cls).keys()
        assert next(iter(keys)) == "enable"
        assert list(keys)[-1] == "comment"
        assert "`" not in "".join(key.kind + key.about for key in keys.values())
        assert describe_section(cls).startswith("publish bucket notifications to ")


def test_an_unknown_section_is_not_guessed() -> None:
    with pytest.raises(BadSettings, match="did you mean notify_kafka"):
        section_type("notify_kaffka")
