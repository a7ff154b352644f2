"""The keys of the S3 face in the environment."""

from __future__ import annotations

import pytest

from app.config.errors import BadSettings
from app.config.settings import S3Key, Settings

FIRST = {"BUCKETWIRE_ACCESS_KEY": "first", "BUCKETWIRE_SECRET_KEY": "first secret"}


def made(**variables: str) -> Settings:
    return Settings.from_environ({**FIRST, **{f"BUCKETWIRE_{name}": text for name, text in variables.items()}})


def test_further_keys_stand_beside_the_first() -> None:
    settings = made(S3_KEYS="watch:read:watcher:a:secret/with+more=, ci:read+admin:pipeline:another-secret")
    assert settings.every_s3_key == (
        S3Key("default", frozenset({"read", "admin"}), "first", "first secret"),
        S3Key("watch", frozenset({"read"}), "watcher", "a:secret/with+more="),
        S3Key("ci", frozenset({"read", "admin"}), "pipeline", "another-secret"),
    )


def test_without_any_there_is_none() -> None:
    assert Settings.from_environ({}).every_s3_key == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("watcher:a-long-secret", "not a list of S3 keys"),
        ("w:ingest:watcher:a-long-secret", "not a list of S3 keys"),
        ("w:read:wa:a-long-secret", "not a list of S3 keys"),
        ("w:read:watcher:short", "not a list of S3 keys"),
        ("w:read:one:a-long-secret,w:read:two:a-long-secret", "twice"),
        ("v:read:one:a-long-secret,w:read:one:a-long-secret", "twice"),
        ("w:read:first:a-long-secret", "BUCKETWIRE_ACCESS_KEY"),
    ],
)
def test_bad_ones_are_refused_and_their_secrets_not_shown(text: str, words: str) -> None:
    with pytest.raises(BadSettings, match=words) as refused:
        made(S3_KEYS=text)
    assert "secret," not in str(refused.value)
    assert "a-long" not in str(refused.value)


def test_a_key_does_not_show_its_secret() -> None:
    settings = made(S3_KEYS="watch:read:watcher:a-long-secret")
    assert "a-long-secret" not in repr(settings) + repr(settings.every_s3_key)
