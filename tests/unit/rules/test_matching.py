"""The matcher against the vectors of reference §2.2 and against a matcher written from its words."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.events.names import AGGREGATES, expand
from app.events.own_events import SERVICE_BUCKET
from app.rules.matching import Automaton, Matcher, Stars, compile_rules, pattern
from app.rules.model import Rule
from tests.support.properties import thorough, times
from tests.support.rule_matching import DELETE, HEAD, PUT, TARGET, Numbered, deep_match, fastest


def rule(prefix: str = "", suffix: str = "", bucket: str = "b", events: tuple[str, ...] = (PUT,)) -> Rule:
    return Rule(bucket=bucket, events=events, prefix=prefix, suffix=suffix, target=TARGET)


def matches(prefix: str, suffix: str, key: str) -> bool:
    return compile_rules([(rule(prefix, suffix), 1)]).targets("b", PUT, key) == (1,)


VECTORS = [
    ("images/", ".jpg", "images/a.jpg", True),
    ("images/", ".jpg", "images/a.JPG", False),
    ("ab", "ba", "aba", False),
    ("ab", "ba", "abba", True),
    ("a*c", "", "aXXc/file", True),
    ("", "*.json", "x.json", True),
    ("a?", "", "aé", True),
    ("a?b", "", "axbz", True),
    ("a?b", "", "a", True),
    ("a?b", "", "ax", False),
    ("", ".txt", ".txt", True),
    # and what follows from the rule
    ("", "", "anything", True),
    ("", "", "", True),
    ("*", "", "", True),
    ("*", "*", "x", True),
    ("a", "", "", False),
    ("", "a", "", False),
    ("images/", "", "images/", True),
    ("images/", "", "image", False),
    ("Images/", "", "images/x", False),
    ("a", "a", "a", False),
    ("a", "a", "aa", True),
    ("a*b", "c", "ab", False),
    ("a*b", "c", "aXbXc", True),
    ("a*b*c", "d", "abcd", True),
    ("a*b*c", "d", "acbd", False),
    ("a", "b*c", "aXbXc", True),
    ("a", "b*c", "abc", True),
    ("a", "?b", "a", True),  # the star takes all, and the ? is reached at the key's end
    ("a", "?b", "axyz", True),
    ("", "?", "x", True),
    ("é?", "", "é", True),
    ("é?x", "", "éyx", True),
    ("é?x", "", "éÿx", False),  # ? is one byte of the two
    ("a??b", "", "aÿb", True),
    ("é", "", "e", False),
    ("\u00e9", "", "e\u0301", False),  # bytes, not characters that look alike
    ("a.b", "", "axb", False),
    ("a+(b)[c]", "", "a+(b)[c]d", True),
    ("a\nb", ".x", "a\nbc\nd.x", True),
]


@pytest.mark.parametrize(("prefix", "suffix", "key", "match"), VECTORS)
def test_a_filter_matches_as_minio_matches_it(prefix: str, suffix: str, key: str, match: bool) -> None:
    assert matches(prefix, suffix, key) is match


@pytest.mark.parametrize(
    ("prefix", "suffix", "made"),
    [
        ("", "", b"*"),
        ("a", "", b"a*"),
        ("a*", "", b"a*"),
        ("", "b", b"*b"),
        ("", "*b", b"*b"),
        ("a", "b", b"a*b"),
        ("a*", "*b", b"a*b"),
        ("a**", "b", b"a**b"),  # `a***b`, and each ** becomes * in one pass
        ("é", "", b"\xc3\xa9*"),
    ],
)
def test_a_pattern_is_made_as_minio_makes_it(prefix: str, suffix: str, made: bytes) -> None:
    assert pattern(prefix, suffix) == made


def naive(rules: Numbered, bucket: str, name: str, key: str) -> set[int]:
    found = set()
    for each, target in rules:
        named = any(given == "*" or name in expand(given) for given in each.events)
        made = each.prefix if each.prefix.endswith("*") or not each.prefix else each.prefix + "*"
        made += each.suffix if each.suffix.startswith("*") or not each.suffix else "*" + each.suffix
        made = made.replace("**", "*") or "*"
        if named and each.bucket in ("*", bucket) and deep_match(made.encode(), key.encode()):
            found.add(target)
    return found


values = st.text(alphabet="ab*?/é", max_size=6)
literals = st.text(alphabet="ab/é", max_size=4)
names = st.sampled_from([PUT, DELETE, HEAD, "s3:ObjectCreated:*", "s3:ObjectRemoved:*", "*"])
one_rule = st.builds(
    rule,
    prefix=values | literals,
    suffix=values | literals,
    bucket=st.sampled_from(["b", "c", "*"]),
    events=st.lists(names, min_size=1, max_size=3, unique=True).map(tuple),
)


@thorough(400)
@given(
    rules=st.lists(st.tuples(one_rule, st.integers(1, 4)), max_size=12),
    bucket=st.sampled_from(["b", "c", "d"]),
    name=st.sampled_from([PUT, DELETE, HEAD, "s3:Never:Heard", "s3:ObjectCreated:Copy"]),
    key=st.text(alphabet="ab*?/éx", max_size=8),
)
@example(rules=[(rule("a", "?b"), 1)], bucket="b", name=PUT, key="axyz")
@example(rules=[(rule("ab", "ba"), 1), (rule("ab"), 2), (rule("", "ba"), 3)], bucket="b", name=PUT, key="aba")
def test_the_matcher_finds_what_trying_every_rule_finds(rules: Numbered, bucket: str, name: str, key: str) -> None:
    found = compile_rules(rules).targets(bucket, name, key)
    assert set(found) == naive(rules, bucket, name, key)
    assert len(set(found)) == len(found)
    order = [target for _, target in rules]
    assert sorted(found, key=order.index) == list(found)


@thorough(400)
@given(made=st.text(alphabet="ab*?", max_size=9), key=st.text(alphabet="abx", max_size=9))
@example(made="ab*ba", key="aba")
@example(made="a*b*b", key="ab")
@example(made="a**b", key="ab")
def test_each_way_to_match_wildcards_is_right(made: str, key: str) -> None:
    expected = deep_match(made.encode(), key.encode())
    assert Automaton(made.encode()).match(key.encode()) is expected
    if "?" not in made and "*" in made:
        assert Stars(made.encode()).match(key.encode()) is expected


def test_no_rules_lead_nowhere() -> None:
    nothing: Matcher[int] = compile_rules(())
    assert nothing.targets("b", PUT, "k") == ()


def test_one_target_is_found_once_however_many_rules_name_it() -> None:
    rules = [
        (rule(bucket="*", events=("*",)), "late"),
        (rule("a"), "early"),
        (rule("", "z"), "late"),
        (rule("a*z", events=("s3:ObjectCreated:*", PUT)), "early"),
        (rule("other"), "none"),
    ]
    assert compile_rules(rules).targets("b", PUT, "a/z") == ("late", "early")
    assert compile_rules(rules[::-1]).targets("b", PUT, "a/z") == ("early", "late")


def test_a_rule_for_an_aggregate_is_for_each_of_its_members_and_itself() -> None:
    matcher = compile_rules([(rule(events=("s3:ObjectCreated:*",)), 1), (rule(events=("s3:Scanner:*",)), 2)])
    assert matcher.targets("b", "s3:ObjectCreated:CompleteMultipartUpload", "k") == (1,)
    assert matcher.targets("b", "s3:Scanner:BigPrefix", "k") == (2,)
    assert matcher.targets("b", "s3:ObjectCreated:*", "k") == (1,)  # as tools that send events again name one
    assert matcher.targets("b", DELETE, "k") == ()


def test_an_event_of_an_unknown_name_goes_by_the_rules_for_every_event_alone() -> None:
    everything = [*{name for family in ("s3:ObjectCreated:*", "s3:ObjectRemoved:*") for name in expand(family)}]
    rules = [(rule(events=tuple(everything)), 1), (rule(events=("*",)), 2), (rule(events=(PUT, "*")), 3)]
    assert compile_rules(rules).targets("b", "s3:Never:Heard", "k") == (2, 3)
    assert compile_rules(rules).targets("b", PUT, "k") == (1, 2, 3)


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("s3:ObjectRemoved:Deleted", ("s3:ObjectRemoved:*",)),
        ("s3:ObjectCreated:PostObject", ("s3:ObjectCreated:*",)),
        ("s3:ObjectLifecycle:Expiration:New", ("s3:ObjectLifecycle:*", "s3:ObjectLifecycle:Expiration:*")),
        ("s3:ObjectLifecycle:New", ("s3:ObjectLifecycle:*",)),
        ("s3:ObjectSynced:New", ("s3:ObjectSynced:*", "s3:Replication:*")),
        ("s3:ObjectCreated:*", ("s3:ObjectCreated:*",)),
        ("s3:ObjectLifecycle:*", ("s3:ObjectLifecycle:*",)),
        ("s3:ObjectLifecycle:Expiration:*", ("s3:ObjectLifecycle:*", "s3:ObjectLifecycle:Expiration:*")),
    ],
)
def test_an_unknown_name_goes_by_the_rules_for_its_family(name: str, families: tuple[str, ...]) -> None:
    every = [*AGGREGATES, "*", PUT, DELETE, "s3:ObjectLifecycle:Expiration:Current", "s3:ObjectSynced:Create"]
    matcher = compile_rules([(rule(events=(event,)), event) for event in every])
    assert set(matcher.targets("b", name, "k")) == {*families, "*"}
    for family in families:  # also of a bucket whose only rule it is
        assert compile_rules([(rule(events=(family,)), 1)]).targets("b", name, "k") == (1,)


def test_a_rule_for_every_bucket_counts_beside_those_of_one() -> None:
    rules = [(rule(), 1), (rule(bucket="*"), 2), (rule(bucket="c"), 3)]
    matcher = compile_rules(rules)
    assert [matcher.targets(bucket, PUT, "k") for bucket in "bcd"] == [(1, 2), (2, 3), (2,)]


def test_a_rule_for_every_bucket_is_none_for_events_about_the_service() -> None:
    rules = [(rule(bucket="*", events=("*",)), 1), (rule(bucket=SERVICE_BUCKET, events=("bucketwire:*",)), 2)]
    matcher = compile_rules(rules)
    assert matcher.targets(SERVICE_BUCKET, "bucketwire:EventsDead", "webhook:x") == (2,)
    assert matcher.targets("b", "bucketwire:EventsDead", "webhook:x") == (1,)


def test_names_from_outside_do_not_make_a_matcher_grow() -> None:
    matcher = compile_rules([(rule(events=(PUT, "*")), 1)])
    for number in range(50):
        assert matcher.targets("b", f"s3:Never:{number}", "k") == (1,)
    assert set(matcher._buckets["b"]._indexes) == {"*"}


def test_a_key_that_is_no_text_matches_or_not_but_never_raises() -> None:
    assert matches("a", "", "a\ud800")
    assert not matches("b", "", "a\ud800")


def test_a_pattern_that_would_keep_backtracking_busy_is_matched_in_no_time() -> None:
    key = "a" * 1000
    evil = [(rule("*a" * 500 + "?" * 20 + "b", "*a" * 200 + "b"), 1), (rule("*a" * 500 + "b"), 2)]
    matcher = compile_rules(evil)
    matcher.targets("b", PUT, key)
    start = time.perf_counter()
    assert matcher.targets("b", PUT, key) == (1,)
    assert time.perf_counter() - start < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["buckets", "prefixes", "suffixes", "both", "wildcards"])
def test_thousands_of_rules_cost_about_what_ten_cost(spread: str) -> None:
    def made(number: int) -> tuple[Rule, int]:
        part = f"{number:05d}"
        return {
            "buckets": rule("in/", ".jpg", bucket=part),
            "prefixes": rule(f"user/{part}/"),
            "suffixes": rule("", f".{part}"),
            "both": rule(f"user/{part}/", f".{part}"),
            "wildcards": rule(f"user/{part}/*/x?"),
        }[spread], number

    def event(number: int) -> tuple[str, str]:
        part = f"{number:05d}"
        if spread == "buckets":
            return part, "in/photo.jpg"
        return "b", f"user/{part}/some/x/photo.{part}"

    many = [made(number) for number in range(times(2000, 10_000))]
    # A scan of all rules would take hundreds of times as long; five leaves room for a busy machine.
    spread_out = range(0, len(many), len(many) // 10)
    assert fastest(many, [event(n) for n in spread_out] * 50) < 5 * fastest(
        many[:10], [event(n) for n in range(10)] * 50
    )
