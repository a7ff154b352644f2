"""What Kafka and Elasticsearch can be told, and what is refused."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from app.config.fields.addresses import HostPort
from app.config.target_settings import from_config_json, from_environ, load, parse_line, redacted
from app.config.targets.elasticsearch import ElasticsearchSettings
from app.config.targets.kafka import KafkaSettings
from tests.support.refused_settings import problems

KAFKA = {"brokers": "kafka", "topic": "events"}
ELASTICSEARCH = {"url": "http://es:9200", "index": "events"}
LOGIN = {"sasl": "on", "sasl_username": "me", "sasl_password": "hunter2"}


def test_the_defaults_of_kafka_are_minios_or_safer() -> None:
    settings = load(KafkaSettings, KAFKA)
    assert settings.bootstrap == (HostPort("kafka", 9092),)
    assert (settings.sasl, settings.tls, settings.sasl_mechanism) == (False, False, "plain")
    assert (settings.compression_codec, settings.compression_level) == ("none", 0)
    assert (settings.api_version, settings.is_idempotent, settings.batch_size) == (None, True, 500)


def test_the_defaults_of_elasticsearch_are_minios() -> None:
    settings = load(ElasticsearchSettings, ELASTICSEARCH)
    assert (settings.format, settings.id_style, settings.opensearch) == ("namespace", "hash", False)
    assert (settings.username, settings.password, settings.api_key) == ("", "", "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        ("a, b:2 ,[::1]:9093", [("a", 9092), ("b", 2), ("::1", 9093)]),
        ("10.0.0.1", [("10.0.0.1", 9092)]),
    ],
)
def test_brokers_are_hosts_divided_by_commas(text: str, found: list[tuple[str, int]]) -> None:
    assert list(load(KafkaSettings, KAFKA | {"brokers": text}).bootstrap) == [HostPort(*each) for each in found]


@pytest.mark.parametrize(
    ("text", "version", "idempotent"),
    [
        ("4.3.1", (4, 3), True),
        ("2.1", (2, 1), True),
        ("0.11.0.2", (0, 11, 0), True),
        ("0.10.2.0", (0, 10, 2), False),
        ("0.8.2", (0, 8, 2), False),
    ],
)
def test_a_version_decides_about_protocols_and_idempotence(
    text: str, version: tuple[int, ...], idempotent: bool
) -> None:
    settings = load(KafkaSettings, KAFKA | {"version": text})
    assert settings.api_version == version
    assert settings.is_idempotent is idempotent


def test_idempotence_can_be_left_out() -> None:
    assert load(KafkaSettings, KAFKA | {"idempotent": "off"}).is_idempotent is False


@pytest.mark.parametrize(("text", "size"), [("0", 500), ("1", 1), ("100", 100), ("10000", 10_000)])
def test_minios_batch_size_of_0_means_the_usual_one_and_needs_no_queue_dir(text: str, size: int) -> None:
    assert load(KafkaSettings, KAFKA | {"batch_size": text, "batch_commit_timeout": "30s"}).batch_size == size


KAFKA_REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"brokers": ""}, "brokers", "is required"),
    ({"brokers": "a:1,,b:2"}, "brokers", "has no host"),
    ({"brokers": "http://a:1"}, "brokers", "is a URL"),
    ({"brokers": "a:x"}, "brokers", "has no valid port"),
    ({"topic": ""}, "topic", "is required"),
    ({"topic": "a b"}, "topic", "is not a topic name"),
    ({"topic": ".."}, "topic", "is not a topic name"),
    ({"topic": "x" * 250}, "topic", "is not a topic name"),
    ({"sasl": "yes"}, "sasl", "is neither on nor off"),
    ({"sasl": "on"}, "sasl_username", "is missing"),
    ({"sasl": "on", "sasl_username": "me"}, "sasl_password", "is missing"),
    ({"sasl_username": "me"}, "sasl_username", "has no effect without SASL"),
    ({"sasl_password": "hunter2"}, "sasl_password", "has no effect without SASL"),
    (LOGIN | {"sasl_mechanism": "sha1"}, "sasl_mechanism", "is not one of the choices"),
    (LOGIN | {"version": "0.9.0.1"}, "sasl", "needs Kafka 0.10 or later"),
    ({"tls_ca": "/ca"}, "tls_ca", "set tls=on"),
    ({"tls_skip_verify": "on"}, "tls_skip_verify", "set tls=on"),
    ({"client_tls_cert": "/c", "client_tls_key": "/k"}, "client_tls_cert", "set tls=on"),
    ({"tls": "on", "client_tls_cert": "/c"}, "client_tls_key", "client_tls_cert needs its key"),
    ({"tls": "on", "client_tls_key": "/k"}, "client_tls_cert", "client_tls_key needs its certificate"),
    ({"tls_client_auth": "5"}, "tls_client_auth", "is out of range"),
    ({"version": "two"}, "version", "is not a Kafka version"),
    ({"version": "2"}, "version", "is not a Kafka version"),
    ({"version": "0.7.0.0"}, "version", "is older than any"),
    ({"batch_size": "-1"}, "batch_size", "is out of range"),
    ({"batch_size": "ten"}, "batch_size", "is not a whole number"),
    ({"batch_commit_timeout": "30"}, "batch_commit_timeout", "is not a duration"),
    ({"compression_codec": "brotli"}, "compression_codec", "is not one of the choices"),
    ({"compression_level": "x"}, "compression_level", "is not a whole number"),
    ({"compression_codec": "gzip", "compression_level": "10"}, "compression_level", "choose up to 9"),
    (
        {"compression_codec": "snappy", "compression_level": "1"},
        "compression_level",
        "is not a compression level of snappy",
    ),
    ({"compression_codec": "zstd", "version": "2.0.0"}, "compression_codec", "needs Kafka 2.1 or later"),
    ({"idempotent": "on", "version": "0.10.2.0"}, "idempotent", "needs Kafka 0.11 or later"),
]


@pytest.mark.parametrize(("values", "key", "why"), KAFKA_REFUSED)
def test_what_kafka_cannot_be_told(values: dict[str, str], key: str, why: str) -> None:
    found = problems("kafka", KAFKA | values)
    assert why in found[key]
    assert "hunter2" not in str(found)


ELASTICSEARCH_REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"url": ""}, "url", "is required"),
    ({"url": "es:9200"}, "url", "is not a URL with a scheme and a host"),
    ({"url": "ftp://es:9200"}, "url", "is not an http or https URL"),
    ({"url": "http://es:9200/?pretty"}, "url", "has a ?query"),
    ({"url": "http://a:9200,http://b:9200/?pretty"}, "url", "has a ?query"),
    ({"url": "http://a:9200,b:9200"}, "url", "is not a URL"),
    ({"url": "http://a:9200,https://b:9200"}, "url", "mixes http and https"),
    ({"url": "http://a:9200,http://me:hunter2@b:9200"}, "url", "write it in the first URL, for all"),
    ({"index": ""}, "index", "is required"),
    ({"index": "Events"}, "index", "write it in lower case"),
    ({"index": "a,b"}, "index", "is not an index name"),
    ({"index": "a*"}, "index", "is not an index name"),
    ({"index": "_all"}, "index", "is not an index name"),
    ({"index": ".."}, "index", "is not an index name"),
    ({"index": "é" * 128}, "index", "is longer than"),
    ({"format": "both"}, "format", "is not one of the choices"),
    ({"username": "me"}, "password", "is missing"),
    ({"password": "hunter2"}, "username", "is missing"),
    ({"username": "me", "password": "hunter2", "api_key": "x"}, "api_key", "is a second login beside that of username"),
    ({"url": "http://me:hunter2@es:9200", "api_key": "x"}, "api_key", "is a second login beside that of url"),
    ({"id_style": "uuid"}, "id_style", "is not one of the choices"),
    ({"opensearch": "maybe"}, "opensearch", "is neither on nor off"),
    ({"tls_ca": "/ca"}, "tls_ca", "write the url with https"),
    ({"tls_skip_verify": "on"}, "tls_skip_verify", "write the url with https"),
    ({"client_cert": "/c", "client_key": "/k"}, "client_cert", "write the url with https"),
    ({"url": "https://es:9200", "client_cert": "/c"}, "client_key", "is missing"),
]


@pytest.mark.parametrize(("values", "key", "why"), ELASTICSEARCH_REFUSED)
def test_what_elasticsearch_cannot_be_told(values: dict[str, str], key: str, why: str) -> None:
    found = problems("elasticsearch", ELASTICSEARCH | values)
    assert why in found[key]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize("url", ["http://me:hunter2@es:9200", "http://a,http://me:hunter2@b", "http://me:hunter2@a,x"])
def test_the_login_in_a_url_is_not_shown(url: str) -> None:
    shown = redacted("elasticsearch", ELASTICSEARCH | {"url": url, "api_key": "hunter2"})
    assert "hunter2" not in str(shown)


def test_several_nodes_are_urls_with_a_comma_between_them() -> None:
    text = "HTTPS://me:hunter,2@A:443/x/ , https://b:9243,https://a/x,https://[::1]:9200"
    settings = load(ElasticsearchSettings, ELASTICSEARCH | {"url": text})
    assert settings.url == "https://me:hunter,2@a/x,https://b:9243,https://a/x,https://[::1]:9200"
    assert [f"{node}{node.path}" for node in settings.nodes] == [
        "https://a:443/x",
        "https://b:9243",
        "https://[::1]:9200",
    ]
    assert base64.b64decode(settings.authorization.removeprefix("Basic ")) == b"me:hunter,2"
    assert load(ElasticsearchSettings, ELASTICSEARCH | {"url": text.split(" , ")}).url.startswith("https://me")
    secrets = set(settings.secrets())
    assert {"hunter,2"} <= secrets


def test_every_form_says_the_same_of_kafka() -> None:
    wanted = {
        "brokers": "a:9092,b:9092",
        "topic": "events",
        "version": "2.1.0",
        "batch_size": "100",
        "batch_commit_timeout": "1s",
        "compression_codec": "zstd",
        "compression_level": "3",
        "tls": "on",
        "tls_client_auth": "0",
    }
    prefix = "MINIO_NOTIFY_KAFKA_"
    variables = {f"{prefix}{name.upper()}_ONE": text for name, text in wanted.items() if "compression" not in name}
    variables |= {
        f"{prefix}ENABLE_ONE": "on",
        f"{prefix}PRODUCER_COMPRESSION_CODEC_ONE": "ZSTD",
        f"{prefix}PRODUCER_COMPRESSION_LEVEL_ONE": "3",
    }
    (by_environment,) = from_environ(variables).targets.values()
    _, by_line = parse_line("notify_kafka:one " + " ".join(f'{name}="{text}"' for name, text in wanted.items()))
    old = {
        "enable": True, "brokers": ["a:9092", "b:9092"], "topic": "events", "version": "2.1.0", "batchSize": 100,
        "batchCommitTimeout": "1s", "compressionCodec": "zstd", "compressionLevel": 3, "tls": {"enable": True},
        "tlsClientAuth": 0,
    }  # fmt: skip
    (by_json,) = from_config_json({"notify": {"kafka": {"one": old}}}).targets.values()
    expected = load(KafkaSettings, wanted)
    for values in (by_environment, by_line, by_json):
        assert load("kafka", values) == expected


def test_every_form_says_the_same_of_elasticsearch() -> None:
    wanted = {"url": "https://es:9200", "index": "events", "format": "access", "username": "me", "password": "hunter2"}
    variables = {f"MINIO_NOTIFY_ELASTICSEARCH_{name.upper()}": text for name, text in wanted.items()}
    (by_environment,) = from_environ(variables | {"MINIO_NOTIFY_ELASTICSEARCH_ENABLE": "on"}).targets.values()
    _, by_line = parse_line("notify_elasticsearch " + " ".join(f"{name}={text}" for name, text in wanted.items()))
    (by_json,) = from_config_json({"elasticsearch": {"1": {"enable": True, **wanted}}}).targets.values()
    expected = load(ElasticsearchSettings, wanted)
    for values in (by_environment, by_line, by_json):
        assert load("elasticsearch", values) == expected


@pytest.mark.parametrize(
    "module", ["app.config.targets.kafka", "app.config.declared_types", "app.config.target_settings"]
)
def test_all_types_are_known_whichever_module_comes_first(module: str) -> None:
    code = f"import {module}; from app.config.declared_types import TYPES; print(*TYPES)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"elasticsearch", "kafka", "postgresql", "redis", "webhook"} <= set(done.stdout.split())
