import pytest

from app.config.arn import TargetId, parse_arn, parse_target
from app.config.errors import BadValue

REDIS = TargetId("redis", "cache")

ARNS = [
    ("arn:minio:sqs::_:webhook", "", TargetId("webhook", "_")),
    ("arn:minio:sqs:us-east-1:1:postgresql", "us-east-1", TargetId("postgresql", "1")),
    ("arn:minio:sqs::PRIMARY:kafka", "", TargetId("kafka", "PRIMARY")),
    ("arn:minio:sqs:eu-1:a_b-c.d:redis", "eu-1", TargetId("redis", "a_b-c.d")),
]

NO_ARNS = [
    "",
    "arn:minio:sqs::redis",
    "arn:minio:sqs:::redis",
    "arn:minio:sqs::name:",
    "arn:minio:sqs::name:redis:more",
    "arn:aws:sqs::name:redis",
    "ARN:minio:sqs::name:redis",
    "arn:minio:sqs::na me:redis",
    "arn:minio:sqs:us east:name:redis",
    " arn:minio:sqs::name:redis",
    "arn:minio:sqs::name:redis\n",
]


@pytest.mark.parametrize(("text", "region", "target"), ARNS)
def test_an_arn_is_read_and_written_alike(text: str, region: str, target: TargetId) -> None:
    assert parse_arn(text) == (region, target)
    assert target.arn(region) == text
    assert parse_target(text) == target


@pytest.mark.parametrize("text", NO_ARNS)
def test_what_is_no_arn_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_arn(text)


def test_a_target_is_named_by_type_and_name() -> None:
    assert parse_target("redis:cache") == REDIS
    assert str(REDIS) == "redis:cache"
    assert parse_target(str(REDIS)) == REDIS


@pytest.mark.parametrize("text", ["redis", "redis:", ":cache", "cache:redis:x", "Redis:cache", "re-dis:cache", ""])
def test_what_names_no_target_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_target(text)


@pytest.mark.parametrize("name", ["_", "1", "PRIMARY", "a.b", "a-b_c", "x" * 64])
def test_names_that_can_be_had(name: str) -> None:
    assert TargetId("redis", name).name == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a:b", "a b", "a/b", "..", ".", "-a", "é", "a\n", "a*"])
def test_names_that_cannot_be_had(name: str) -> None:
    with pytest.raises(BadValue) as caught:
        TargetId("redis", name)
    assert "letters, digits" in caught.value.hint


def test_targets_have_an_order() -> None:
    assert sorted([TargetId("webhook", "a"), TargetId("redis", "b"), TargetId("redis", "a")]) == [
        TargetId("redis", "a"),
        TargetId("redis", "b"),
        TargetId("webhook", "a"),
    ]
