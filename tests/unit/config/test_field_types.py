from typing import Any

import pytest

from app.config.errors import REDACTED, BadSettings, BadValue
from app.config.fields.addresses import Host, HostPort, HttpUrl, WebhookUrl, redacted_url
from app.config.fields.field_types import Choice, Duration, FieldType, Number, Path, Size, Switch, Text, Toggle
from app.config.fields.fields import texts_of
from app.config.formats.notify_lines import parse_line
from app.config.targets.elasticsearch import split_urls
from app.config.targets.postgresql import ConnectionString, PostgresTable, identifier, parameters
from app.config.targets.webhook import SigningSecrets, WebhookSettings

TOGGLE, NUMBER, DURATION = Toggle(), Number(1, 50), Duration()
HOST, BARE_HOST, SOCKET, URL, PATH = Host(6379), Host(), Host(6379, socket=True), HttpUrl(), Path()
FORMAT, SWITCH, SIZE = Choice("namespace", "access"), Switch(), Size(1024, 2**40)
WEBHOOK_URL = WebhookUrl()
STRING, TABLE, SIGNING = ConnectionString(), PostgresTable(), SigningSecrets()
SECRET = "whsec_" + "c2VjcmV0" * 4

ON = ("1", "t", "T", "true", "TRUE", "True", "on", "ON", "On", "enabled", "Enabled", "ENABLED", "eNaBlEd")
OFF = ("0", "f", "F", "false", "FALSE", "False", "off", "OFF", "Off", "disabled", "Disabled", "DISABLED")

VALUES: list[tuple[FieldType[Any], str, object]] = [
    *((TOGGLE, text, True) for text in ON),
    *((TOGGLE, text, False) for text in OFF),
    (SWITCH, "ON", "on"),
    (SWITCH, "false", "off"),
    (NUMBER, "1", 1),
    (NUMBER, "050", 50),
    (NUMBER, "+7", 7),
    (DURATION, "300ms", 0.3),
    (DURATION, "10s", 10.0),
    (DURATION, "2m", 120.0),
    (DURATION, "1h30m", 5400.0),
    (DURATION, "1.5h", 5400.0),
    (DURATION, ".5s", 0.5),
    (DURATION, "1us", 1e-6),
    (DURATION, "1µs", 1e-6),
    (DURATION, "0", 0.0),
    (DURATION, "0s", 0.0),
    (DURATION, "7d", 604800.0),
    (DURATION, "1d12h", 129600.0),
    (SIZE, "2048", 2048),
    (SIZE, "64MiB", 64 * 2**20),
    (SIZE, "1 GiB", 2**30),
    (FORMAT, "namespace", "namespace"),
    (FORMAT, "ACCESS", "access"),
    (PATH, "/var/spool", "/var/spool"),
    (PATH, "//var//spool/./x/", "/var/spool/x"),
    (HOST, "redis", HostPort("redis", 6379)),
    (HOST, "redis:6380", HostPort("redis", 6380)),
    (HOST, "a-b.example.com.:1", HostPort("a-b.example.com.", 1)),
    (HOST, "10.0.0.1:65535", HostPort("10.0.0.1", 65535)),
    (HOST, "[::1]:6380", HostPort("::1", 6380)),
    (HOST, "[::1]", HostPort("::1", 6379)),
    (BARE_HOST, "nsqd:4150", HostPort("nsqd", 4150)),
    (SOCKET, "/run/redis.sock", HostPort("/run/redis.sock", 0)),
    (URL, "http://h", "http://h"),
    (URL, "HTTP://h:80/", "http://h/"),
    (URL, "https://h:443/a", "https://h/a"),
    (URL, "https://h:80/a", "https://h:80/a"),
    (URL, "http://h//a/../b/./c/?q=1&r=%20", "http://h/b/c/?q=1&r=%20"),
    (URL, "http://h/..", "http://h/"),
    (URL, "http://h/a%2Fb", "http://h/a%2Fb"),
    (URL, "http://u:p%40@h:8080/x", "http://u:p%40@h:8080/x"),
    (URL, "http://[::1]:3000/events", "http://[::1]:3000/events"),
    (Text(), "any thing é", "any thing é"),
    (STRING, "host=localhost sslmode=disable", "host=localhost sslmode=disable"),
    (STRING, r"host = h password='a b\'c' user=x'y", r"host = h password='a b\'c' user=x'y"),
    (STRING, "postgresql://u:p@h:5432/db?sslmode=disable", "postgresql://u:p@h:5432/db?sslmode=disable"),
    (STRING, "postgres:///db?host=/run", "postgres:///db?host=/run"),
    (TABLE, "bucketevents", "bucketevents"),
    (TABLE, "_é$1", "_é$1"),
    (TABLE, '"any thing; ""x"" a.b"', '"any thing; ""x"" a.b"'),
    (SIGNING, SECRET, SECRET),
    (SIGNING, f"{SECRET}   {SECRET}", f"{SECRET} {SECRET}"),
]

NO_VALUES: list[tuple[FieldType[Any], str, str]] = [
    *((TOGGLE, text, "neither on nor off") for text in ("oN", "yes", "2", "tRUE", "on off", "enable")),
    (SWITCH, "default", "neither on nor off"),
    *((NUMBER, text, "not a whole number") for text in ("x", "1.5", "1e3", "0x10", "1_000", "٣", "9" * 21)),
    *((NUMBER, text, "out of range") for text in ("0", "51", "-1")),
    *((DURATION, text, "not a duration") for text in ("5", "5 s", "1D", "s", "-1s", "1h30", "1s ago", "1e3s", "5S")),
    (Duration(0.001), "0", "out of range"),
    (Duration(0, 60), "2m", "out of range"),
    *((SIZE, text, "not a size") for text in ("64MB", "1.5MiB", "x", "-1")),
    (SIZE, "1", "out of range"),
    (FORMAT, "both", "not one of the choices"),
    *((PATH, text, "absolute") for text in ("var", "./x", "~/x")),
    (PATH, "/a\nb", "control"),
    *((HOST, text, "URL") for text in ("redis://h:1", "h/x")),
    *((HOST, text, "too many colons") for text in ("::1", "a:1:2")),
    *(
        (HOST, text, "valid host")
        for text in ("a+b", "-a", "a-", "a..b", "a b", "é", "x" * 64, "[h]:1", "[::1", "[::1]1")
    ),
    *((HOST, text, "IPv4") for text in ("1.2.3", "256.1.1.1", "1.2.3.4.5")),
    *((HOST, text, "port") for text in ("h:0", "h:65536", "h:x", "h:-1", "[::1]:x")),
    (HOST, ":6379", "no host"),
    (BARE_HOST, "h", "no port"),
    (HOST, "/run/redis.sock", "URL"),
    *(
        (URL, text, "URL")
        for text in ("h", "h:80", "/x", "http://", "http:///x", "http://h:x", "http://[::1", "http:h")
    ),
    *((URL, text, "not an http") for text in ("ftp://h/x", "redis://h")),
    (URL, "http://h/#x", "fragment"),
    (URL, "http://h/a b", "space"),
    (URL, "http://h/x bogus=1", "space"),
    (URL, "http://a+b/", "valid host"),
    (URL, "http://h:0/", "port"),
    (Text(), "a\x00b", "control"),
    (Text(), "a\nb", "control"),
    (Text(), "x" * 8193, "longer"),
    (Text(ascii_only=True), "tökén", "ASCII"),
    *(
        (STRING, text, "not a connection string")
        for text in ("localhost", "host='h", "host=a b", "h=é\udcff", "postgresql://me:pw%zz@db/e")
    ),
    *((STRING, text, "no valid port") for text in ("host=h port=x", "postgresql://h:1,i:70000/d", "host=h port=0")),
    *((STRING, f"host=h{blank}sslkey=/k", "space that is not ASCII") for blank in "\u00a0\u2003\u3000\x85"),
    *((STRING, text, "PostgreSQL URL") for text in ("mysql://h/db", "postgresql://h/db x", "http://h")),
    *((TABLE, text, "not a table name") for text in ("schema.t", "a-b", "1a", "", '"', '""', '"a"b"', "$a")),
    *((TABLE, text, "catalogue") for text in ("pg_namespace", "PG_x", '"pg_x"')),
    (TABLE, "é" * 32, "longer than 63 bytes"),
    *((SIGNING, text, "signing secret") for text in ("secret", "whsec_", "whsec_c2VjcmV0", f"{SECRET} x", "whsec_é")),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
def test_a_text_of_the_kind_is_read(kind: FieldType[Any], text: str, value: object) -> None:
    assert kind.parse(text) == value
    assert type(kind.parse(text)) is type(value)


@pytest.mark.parametrize(("kind", "text", "why"), NO_VALUES)
def test_a_text_of_no_value_is_refused_with_the_reason_and_a_way_out(kind: FieldType[Any], text: str, why: str) -> None:
    with pytest.raises(BadValue) as caught:
        kind.parse(text)
    assert why in caught.value.problem
    assert caught.value.hint


def test_a_quoted_capital_name_is_not_the_catalogues() -> None:
    assert TABLE.parse('"PG_x"') == '"PG_x"'


@pytest.mark.parametrize(("text", "name"), [("Events", "events"), ("ÉTAT", "État"), ("_$", "_$")])
def test_a_bare_name_is_folded_as_postgresql_folds_it(text: str, name: str) -> None:
    assert identifier(text) == name


def test_a_quoted_name_is_kept() -> None:
    assert identifier('"Any ""x"" Thing"') == 'Any "x" Thing'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("host=a host=b", {"host": "b"}),
        ("password='' user=x", {"password": "", "user": "x"}),
        (r"password='it\'s \\' user=a\ b", {"password": "it's \\", "user": "a b"}),
        ("password= user=x", {"password": "user=x"}),  # libpq skips blanks after the =
    ],
)
def test_libpq_keywords_are_read_as_libpq_reads_them(text: str, found: dict[str, str]) -> None:
    assert parameters(text) == found


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://:pw@h:6379/0", f"redis://:{REDACTED}@h:6379/0"),
        ("postgresql://u:p%40w@h/db", f"postgresql://u:{REDACTED}@h/db"),
        ("postgresql://u:p@w@h/db", f"postgresql://u:{REDACTED}@h/db"),
        ("amqp://u@h", "amqp://u@h"),
        ("http://h/x?token=abc&a=b", f"http://h/x?token={REDACTED}&a=b"),
        ("redis://:p/w@h:6379/0", REDACTED),  # the / ends the authority too early
        ("redis://:p#w@h", REDACTED),
        ("http://[x", REDACTED),
        ("u:pw@h", REDACTED),
    ],
)
def test_a_url_is_printed_without_its_password(url: str, printed: str) -> None:
    assert redacted_url(url) == printed


def test_an_address_is_written_as_it_is_read() -> None:
    for text in ("h:1", "[::1]:1", "/run/s.sock"):
        assert str(SOCKET.parse(text)) == text


@pytest.mark.timeout(60)  # a text whose time grows with its square takes minutes
def test_a_long_text_takes_no_long_time() -> None:
    with pytest.raises(BadValue):
        DURATION.parse("1" * 200_000)
    with pytest.raises(BadSettings, match=r"closed|key=value"):
        parse_line('notify_webhook:a endpoint="http://a/' + " " * 200_000 + "x")
    assert split_urls("http://a" + " " * 200_000 + ",http://b") == ["http://a", "http://b"]
    query = "pass" * 50_000
    assert redacted_url(f"http://a/?{query}") == f"http://a/?{query}"
    assert redacted_url(f"http://a/?{query}=x&b=c") == f"http://a/?{query}={REDACTED}&b=c"


def test_the_length_of_a_url_is_bounded() -> None:
    assert URL.parse("http://a/" + "b" * 8183)
    with pytest.raises(BadValue, match="is longer than 8192 characters"):
        URL.parse("http://a/" + "b" * 8184)
    _, [problem] = texts_of(WebhookSettings, {"endpoint": "http://a/" + "a" * 100_000})
    assert (problem.key, "65,536" in problem.hint) == ("endpoint", True)


def test_parameters_that_may_be_secrets_are_not_shown() -> None:
    url = "https://a.example/api?code=KEY&pwd=P&cred=C&page=2"
    assert redacted_url(url) == f"https://a.example/api?code={REDACTED}&pwd={REDACTED}&cred={REDACTED}&page=2"


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("https://hooks.slack.com/services/T012AB/B01/xyzABC", f"https://hooks.slack.com/services/{REDACTED}"),
        (
            "https://x.webhook.office.com/webhookb2/1-2@3/IncomingWebhook/aa/bb",
            f"https://x.webhook.office.com/{REDACTED}",
        ),
        ("https://api.telegram.org/bot123:AA/sendMessage", f"https://api.telegram.org/{REDACTED}"),
        ("https://discord.com/api/webhooks/123/abc-DEF", f"https://discord.com/api/{REDACTED}"),
        ("https://ntfy.sh/my-secret-topic", f"https://ntfy.sh/{REDACTED}"),
        ("https://ntfy.sh/secret", f"https://ntfy.sh/{REDACTED}"),
        ("https://ntfy.sh/my-secret-topic/publish", f"https://ntfy.sh/{REDACTED}"),
        ("https://ntfy.sh/secret/publish", f"https://ntfy.sh/{REDACTED}"),
        ("http://app.example:3000/v1/minio-events/", f"http://app.example:3000/v1/{REDACTED}"),
        ("http://app.example/", "http://app.example/"),
        ("", ""),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://h/x?k=v&flag&sig=a%3D", f"http://h/{REDACTED}?k={REDACTED}&{REDACTED}&sig={REDACTED}"),
        ("http://me:pw@h/x", f"http://me:{REDACTED}@h/{REDACTED}"),
        ("http://key@h/x", f"http://{REDACTED}@h/{REDACTED}"),
        ("http://me:12/3@h/x", REDACTED),  # the / ends the authority too early
        ("https//hooks.slack.com/services/T012AB", REDACTED),
        ("http://[x", REDACTED),
    ],
)
def test_a_webhooks_address_is_shown_without_what_lets_anybody_post(url: str, printed: str) -> None:
    assert WEBHOOK_URL.shown(url) == printed
    assert WEBHOOK_URL.shown(printed) == printed, "what is shown is shown again by a form"
