from dataclasses import replace

import pytest

from app.config.arn import TargetId
from app.rules.filters import Filters, Pairs
from app.rules.model import BadRules, Rule, check

RULE = Rule(bucket="images", events=("s3:ObjectCreated:*",), target=TargetId("redis", "cache"))


def problems(*rules: Rule) -> list[str]:
    with pytest.raises(BadRules) as caught:
        check(rules)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    "events",
    [
        ("s3:ObjectCreated:Put",),
        ("s3:ObjectCreated:*", "s3:ObjectCreated:Put"),  # an aggregate plus its member (§2.3)
        ("*",),
        ("*", "s3:ObjectCreated:Put"),
        ("s3:BucketCreated:*",),
        ("s3:BucketCreated",),
        ("s3:Scanner:*",),
        ("s3:LifecycleDelMarkerExpiration:Delete",),
        (
            "s3:ObjectAccessed:*",
            "s3:ObjectRemoved:*",
            "s3:Replication:*",
            "s3:ObjectRestore:*",
            "s3:ObjectTransition:*",
        ),
    ],
)
def test_known_names_and_aggregates_are_taken(events: tuple[str, ...]) -> None:
    check([replace(RULE, events=events)])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("s3:ObjectCreated:put", "s3:ObjectCreated:Put"),
        ("s3:objectcreated:*", "s3:ObjectCreated:*"),
        ("ObjectCreated:Put", "s3:ObjectCreated:Put"),
        ("s3:ObjectRemove:Delete", "s3:ObjectRemoved:Delete"),
    ],
)
def test_an_unknown_event_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    assert problems(replace(RULE, events=(name,))) == [
        f"events: “{name}” is not an event name; did you mean {nearest}?"
    ]


@pytest.mark.parametrize("name", ["s3:*", "s3:ObjectCreated", "s3:Nothing:*", "put", "", "**", "s3:ObjectCreated:Put "])
def test_what_is_no_event_is_refused(name: str) -> None:
    assert len(problems(replace(RULE, events=(name,)))) == 1


def test_all_events_of_minio_are_asked_for_with_a_star_alone() -> None:
    assert problems(replace(RULE, events=("s3:*",))) == ["events: “s3:*” is not an event name; did you mean *?"]


def test_a_rule_names_at_least_one_event_and_none_twice() -> None:
    assert "events: are missing" in problems(replace(RULE, events=()))[0]
    twice = problems(replace(RULE, events=("s3:ObjectCreated:Put", "s3:ObjectCreated:Put")))
    assert twice == ["events: “s3:ObjectCreated:Put” is given twice; give it once"]


@pytest.mark.parametrize("bucket", ["*", "images", "a", "My_Bucket.1", "tenant:bucket", "x" * 255])
def test_buckets_that_can_be(bucket: str) -> None:
    check([replace(RULE, bucket=bucket)])


@pytest.mark.parametrize("bucket", ["", "a/b", "a b", "**", "im*", "a?", "a\\b", "a\x00", "..", ".", "x" * 256, "a\n"])
def test_buckets_that_cannot_be(bucket: str) -> None:
    assert len(problems(replace(RULE, bucket=bucket))) == 1


@pytest.mark.parametrize(
    "value", ["", "images/", "a*b?c", "é" * 2048, "x" * 4096, ".jpg", "a.b/..c/...", " ", "/", "a\\b", ".", ".."]
)
def test_filters_that_can_match_a_key(value: str) -> None:
    check([replace(RULE, prefix=value, suffix=value)])


def test_a_prefix_may_end_and_a_suffix_may_begin_within_a_segment() -> None:
    for prefix, suffix in (("logs/.", "./a"), ("logs/..", "../a"), ("a/.", ".")):
        check([replace(RULE, prefix=prefix, suffix=suffix)])
        assert problems(replace(RULE, prefix=f"{prefix}/"))[0].startswith("prefix: ")
        assert problems(replace(RULE, suffix=f"/{suffix}"))[0].startswith("suffix: ")


@pytest.mark.parametrize("value", ["x" * 4097, "é" * 2049, "a/../b", "a/./b", "//../", "a\x00b", "\ud800"])
def test_filters_that_cannot_be(value: str) -> None:
    assert problems(replace(RULE, prefix=value))[0].startswith("prefix: ")
    assert problems(replace(RULE, suffix=value))[0].startswith("suffix: ")


def test_every_problem_of_a_filter_is_one_of_the_rule() -> None:
    wrong = Filters(regex="(", tags=Pairs({"": "x"}), min_size=2, max_size=1)
    assert [text.split(":")[0] for text in problems(replace(RULE, filters=wrong))] == ["regex", "tags", "min_size"]
    check([RULE, replace(RULE, filters=Filters(min_size=1)), replace(RULE, filters=Filters(tags=Pairs(a="1")))])
    twice = [replace(RULE, filters=Filters(tags=Pairs(tags))) for tags in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})]
    assert problems(*twice) == ["rule 2: repeats an earlier rule; leave one of them out"]


def test_an_id_is_short_and_printable() -> None:
    check([replace(RULE, rule_id="any thing é" * 90)])
    for rule_id in ("x" * 1025, "a\nb"):
        assert problems(replace(RULE, rule_id=rule_id))[0].startswith("id: ")


def test_the_same_rule_twice_is_refused_and_one_that_differs_in_its_id_is_not() -> None:
    check(
        [RULE, replace(RULE, rule_id="other"), replace(RULE, prefix="a"), replace(RULE, target=TargetId("redis", "b"))]
    )
    found = problems(RULE, replace(RULE, rule_id="other"), RULE)
    assert found == ["rule 3: repeats an earlier rule; leave one of them out"]


def test_every_problem_of_every_rule_is_told() -> None:
    found = problems(replace(RULE, bucket="", events=("x",)), RULE, replace(RULE, suffix="/.."))
    assert [problem.split(": ")[:2] for problem in found] == [
        ["rule 1", "bucket"], ["rule 1", "events"], ["rule 3", "suffix"],
    ]  # fmt: skip
