import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.arn import TargetId
from app.config.errors import REDACTED
from app.config.target_settings import BadSettings, load, parse_line, parse_lines, to_line

ON = {"enable": "on"}
WEBHOOK = TargetId("webhook", "_")

LINES: list[tuple[str, TargetId, dict[str, str]]] = [
    ("notify_webhook endpoint=http://h/x", WEBHOOK, ON | {"endpoint": "http://h/x"}),
    ("notify_webhook:_ endpoint=http://h/x", WEBHOOK, ON | {"endpoint": "http://h/x"}),
    ("notify_redis:PRIMARY  key=k\taddress=h:1 ", TargetId("redis", "PRIMARY"), ON | {"key": "k", "address": "h:1"}),
    ("notify_postgres:1 enable=off table=t", TargetId("postgresql", "1"), {"enable": "off", "table": "t"}),
    ("notify_postgresql:1 table=t", TargetId("postgresql", "1"), ON | {"table": "t"}),
    ("notify_nsq tls_enable=on", TargetId("nsq", "_"), ON | {"tls": "on"}),
    ("notify_nats streaming_enable=on", TargetId("nats", "_"), ON | {"streaming": "on"}),
    ("notify_postgres user=me", TargetId("postgresql", "_"), ON | {"username": "me"}),
    ("notify_webhook comment=a few words endpoint=http://h", WEBHOOK, ON | {"comment": "a few words", "endpoint": "http://h"}),
    ('notify_webhook comment="a few words" endpoint="http://h"', WEBHOOK, ON | {"comment": "a few words", "endpoint": "http://h"}),
    ("notify_webhook comment='a b=c'", WEBHOOK, ON | {"comment": "a b=c"}),
    ("notify_webhook comment=\"'a b=c'\"", WEBHOOK, ON | {"comment": "a b=c"}),
    ("notify_webhook comment='\"a\"'", WEBHOOK, ON | {"comment": '"a"'}),
    ('notify_webhook comment=" a "', WEBHOOK, ON | {"comment": "a"}),
    ('notify_webhook comment="say "x" twice" endpoint=h', WEBHOOK, ON | {"comment": 'say "x" twice', "endpoint": "h"}),
    ('notify_webhook comment="" auth_token=', WEBHOOK, ON | {"comment": "", "auth_token": ""}),
    ("notify_webhook endpoint=http://h/?a=b&c=d", WEBHOOK, ON | {"endpoint": "http://h/?a=b&c=d"}),
    (
        'notify_postgres connection_string="host=h port=5432 dbname=d" table=t',
        TargetId("postgresql", "_"),
        ON | {"connection_string": "host=h port=5432 dbname=d", "table": "t"},
    ),
    (
        "notify_postgres connection_string=host=h port=5432 user=me password=p dbname=d sslmode=off table=t user=you",
        TargetId("postgresql", "_"),
        ON
        | {
            "connection_string": "host=h port=5432 user=me password=p dbname=d sslmode=off",
            "table": "t",
            "username": "you",
        },
    ),
    ("notify_redis:x \\\n   address=\"h\" \\\n   key=\"k\"", TargetId("redis", "x"), ON | {"address": "h", "key": "k"}),
    ("notify_redis", TargetId("redis", "_"), ON),
]  # fmt: skip


@pytest.mark.parametrize(("line", "target", "values"), LINES)
def test_a_line_sets_a_target(line: str, target: TargetId, values: dict[str, str]) -> None:
    assert parse_line(line) == (target, values)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "line: is empty"),
        ("notify_radis key=x", "did you mean notify_redis"),
        ("redis key=x", "known are notify_"),
        ("notify_redis: key=x", "not a target name"),
        ("notify_postgres[:name] table=t", "notify_postgres[:name]: has a placeholder"),
        ("notify_postgres[:name] table=t", "write notify_postgres:NAME, or notify_postgres for the unnamed target"),
        ("notify_redis:a:b key=x", "not a target name"),
        ("notify_redis key", "not key=value"),
        ("notify_redis =x", "not key=value"),
        ("notify_redis key = x", "not key=value"),
        ('notify_redis key="x address=h', "key: has a quote that is not closed"),
        ("notify_redis key=x key=y", "key: is given twice"),
        ("notify_redis adress=h", "did you mean address"),
        ("notify_redis Address=h", "did you mean address"),
        ("notify_webhook endpoint=http://h/x bogus=1", "bogus: is not a known setting"),
        ("notify_postgres connection_string=host=h dbnam=d", "put that value in double quotes"),
        ("notify_redis key=a host=h", "host: is not a known setting"),
    ],
)
def test_what_is_no_line_is_refused_and_never_swallowed(line: str, why: str) -> None:
    with pytest.raises(BadSettings) as caught:
        parse_line(line)
    assert why in str(caught.value)


def test_a_text_of_lines_is_read_without_its_comments() -> None:
    text = "# all of them\n\nnotify_redis:a key=k \\\n  address=h\n  # one more\r\nnotify_webhook endpoint=http://h\r\n"
    assert parse_lines(text) == [
        (TargetId("redis", "a"), ON | {"key": "k", "address": "h"}),
        (WEBHOOK, ON | {"endpoint": "http://h"}),
    ]


def test_the_problems_of_all_lines_are_told_with_their_numbers() -> None:
    with pytest.raises(BadSettings) as caught:
        parse_lines("notify_redis adress=h\n\nnotify_redis:a key=k \\\n  address=h\nnotify_x\n")
    assert [problem.key for problem in caught.value.problems] == ["line 1: adress", "line 5: notify_x"]


def test_a_line_is_written_without_its_secrets() -> None:
    values = {"password": "hunter2", "key": "a key", "address": "h:1", "enable": "on", "user": ""}
    line = to_line(TargetId("redis", "x"), values)
    assert line == f'notify_redis:x enable=on address=h:1 key="a key" user= password={REDACTED}'
    assert "hunter2" in to_line(TargetId("redis", "x"), values, redact=False)
    assert to_line(TargetId("postgresql", "_"), {"table": "t"}) == "notify_postgres table=t"


def test_a_types_own_keys_are_written_before_those_of_every_target() -> None:
    values = {"comment": "c", "queue_limit": "5", "key": "k", "enable": "off"}
    assert to_line(TargetId("redis", "x"), values) == "notify_redis:x enable=off key=k queue_limit=5 comment=c"


def test_a_line_that_was_written_without_secrets_does_not_overwrite_them() -> None:
    line = to_line(TargetId("redis", "x"), {"password": "hunter2", "key": "k", "address": "h"})
    with pytest.raises(BadSettings, match="placeholder of a secret"):
        load("redis", parse_line(line)[1])


def test_a_value_that_no_line_can_hold_is_refused_not_bent() -> None:
    with pytest.raises(BadSettings, match="cannot be written in a line"):
        to_line(WEBHOOK, {"comment": "two\nlines"})
    with pytest.raises(BadSettings, match="cannot be written in a line"):
        to_line(WEBHOOK, {"comment": "\"'\" a= ' b= '\" c="})


words = st.text(alphabet="ab=\"' \\_:#é", max_size=12).map(str.strip)


@given(comment=words, token=words)
def test_what_is_written_is_read_back(comment: str, token: str) -> None:
    values = ON | {"comment": comment, "auth_token": token}
    try:
        line = to_line(WEBHOOK, values, redact=False)
    except BadSettings:
        # Only for a text in which each quote stands before what looks like the next key, or at an end.
        assert any("'" in text and '"' in text for text in (comment, token))
        return
    assert parse_line(line) == (WEBHOOK, values)
    assert parse_lines(f"{line}\n# end\n") == [(WEBHOOK, values)]
