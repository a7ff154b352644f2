"""A bucket's rules over S3: every refusal of reference §2.3 with its status, boto3, minio-py, and who may do what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any
from xml.etree.ElementTree import fromstring

import httpx
import pytest
from botocore.exceptions import ClientError
from minio.error import S3Error as MinioError
from minio.notificationconfig import NotificationConfig, PrefixFilterRule, QueueConfig, SuffixFilterRule

from app.outbox.buckets import every_bucket, is_bucket
from tests import services
from tests.integration.api.conftest import S3, Api, Start, keys, problem, url_of
from tests.support.api_requests import body, code, document
from tests.support.builders import add_target, event, migrated, registry
from tests.support.notification_xml import REFUSED, TAKEN, block, with_filter

OF_EACH_KIND = {  # one document
    "none", "one", "two that differ in their ids", "a prefix and a suffix", "a regular expression",
    "the scanner family", "an unknown event", "a malformed ARN", "a target that is not there", "two prefixes",
    "the same rule twice", "a filter longer than a key",
}  # fmt: skip

ARN = "arn:minio:sqs::cache:redis"
TOKEN = "0123456789abcdef"
RULE = f"<QueueConfiguration><Queue>{ARN}</Queue><Event>*</Event></QueueConfiguration>"


@pytest.fixture
def ready(s3: S3) -> S3:
    """With the bucket `images` and the target of the documents."""
    add_target(s3.database, "cache", type_name="redis", values={"address": "127.0.0.1:9", "key": "k"}, bucket="other")
    assert s3.ask("PUT", "/images").status_code == 200
    return s3


@pytest.fixture(scope="module")
def elsewhere(postgres_server: services.Postgres) -> Iterator[S3]:
    """An API of a region, with a token, whose bucket `images` has a rule."""
    with ExitStack() as stack:
        log = stack.enter_context(closing(migrated(postgres_server.create_database("s3_elsewhere"))))
        add_target(log, "cache", type_name="redis", values={"address": "127.0.0.1:9", "key": "k"}, bucket="images")
        settings = {
            "BUCKETWIRE_REGION": "eu-1",
            "BUCKETWIRE_ACCESS_KEY": S3.access_key,
            "BUCKETWIRE_SECRET_KEY": S3.secret_key,
            "BUCKETWIRE_API_TOKENS": f"admin:admin:{TOKEN}",
        }
        api = Api(url_of(log), settings)
        stack.callback(api.stop)
        stack.callback(api.client.close)
        yield S3(api.start(), log)


@pytest.fixture
def boto3_client(ready: S3) -> Iterator[Any]:
    with closing(ready.boto3()) as client:
        yield client


# --- rules


def documents(given: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    marks = pytest.mark.nightly(
        "one document of each kind: a document is read by one function, which has each as a unit"
    )
    return [pytest.param(*each, id=name, marks=[] if name in OF_EACH_KIND else marks) for name, each in given.items()]


@pytest.mark.parametrize(("inner", "count"), documents(TAKEN))
def test_a_document_that_minio_takes_becomes_the_buckets_rules(ready: S3, inner: str, count: int) -> None:
    assert ready.ask("PUT", "/images?notification", document(inner)).status_code == 200
    assert len(registry(ready.database).rules("images")) == count
    again = ready.ask("GET", "/images?notification")
    assert len(fromstring(again.content)) == count
    assert ready.ask("PUT", "/images?notification", again.content).status_code == 200
    assert ready.ask("GET", "/images?notification").content == again.content


@pytest.mark.parametrize(("inner", "refused", "words"), documents(REFUSED))
def test_a_document_that_minio_refuses_changes_nothing(ready: S3, inner: str, refused: str, words: str) -> None:
    before = document(RULE)
    assert ready.ask("PUT", "/images?notification", before).status_code == 200
    response = ready.ask("PUT", "/images?notification", document(inner))
    assert code(response, 400) == refused
    assert words in response.text
    [kept] = registry(ready.database).rules("images")
    assert kept.rule.events == ("*",)


def test_a_client_of_s3_adds_a_rule_and_leaves_the_filters_of_the_others(ready: S3, boto3_client: Any) -> None:
    filters = block("S3Tags", ("team", "blue")) + block("S3Size", ("min", "1024"))
    content = document(with_filter(filters) + with_filter(block("S3Key", ("regex", "a+")), rule_id="2"))
    assert ready.ask("PUT", "/images?notification", content).status_code == 200
    rules = boto3_client.get_bucket_notification_configuration(Bucket="images")["QueueConfigurations"]
    assert [rule.get("Filter", {}).get("Key", {}).get("FilterRules", []) for rule in rules] == [
        [], [{"Name": "regex", "Value": "a+"}],
    ]  # fmt: skip
    for rule in rules:
        if not rule.get("Filter", {}).get("Key"):
            rule.pop("Filter", None)  # boto3 knows nothing that it could send of it
    added = {"Id": "3", "QueueArn": ARN, "Events": ["s3:ObjectCreated:Put"]}
    assert put_rules(boto3_client, *rules, added) == (200, "")
    kept = [stored.rule.filters.members for stored in registry(ready.database).rules("images")]
    assert kept == [{"tags": {"team": "blue"}, "min_size": 1024}, {"regex": "a+"}, {}]
    assert filters in ready.ask("GET", "/images?notification").text


def test_an_arn_of_another_region_is_refused_and_ours_is_written_into_the_answer(elsewhere: S3) -> None:
    with closing(elsewhere.boto3(region_name="eu-1")) as client:
        assert client.get_bucket_location(Bucket="images")["LocationConstraint"] == "eu-1"
        for region, status in (("", 200), ("eu-1", 200), ("eu-2", 400)):
            rule = {"QueueArn": f"arn:minio:sqs:{region}:cache:redis", "Events": ["s3:ObjectCreated:Put"]}
            assert put_rules(client, rule) == (status, "" if status == 200 else "InvalidArgument")
        [found] = client.get_bucket_notification_configuration(Bucket="images")["QueueConfigurations"]
        assert found["QueueArn"] == "arn:minio:sqs:eu-1:cache:redis"
    refused = elsewhere.ask("GET", "/images?notification")  # signed for us-east-1
    assert code(refused, 400) == "AuthorizationHeaderMalformed"
    assert fromstring(refused.content).findtext("Region") == "eu-1"
    assert elsewhere.ask("GET", "/images?location").status_code == 200
    with closing(elsewhere.boto3()) as client:  # learns the region from that refusal and signs again
        assert client.get_bucket_notification_configuration(Bucket="images")["QueueConfigurations"]
    assert len(elsewhere.minio().get_bucket_notification("images").queue_config_list) == 1


def put_rules(client: Any, *rules: dict[str, Any], bucket: str = "images") -> tuple[int, str]:
    """Status and code of the answer."""
    wanted = {"QueueConfigurations": list(rules)} if rules else {}
    try:
        done = client.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=wanted)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
    return done["ResponseMetadata"]["HTTPStatusCode"], ""


def test_a_document_needs_its_length_and_its_bucket(ready: S3) -> None:
    assert code(ready.ask("PUT", "/images?notification"), 411) == "MissingContentLength"
    unknown = ready.sign("PUT", "/images?notification", document(""))
    del unknown.headers["content-length"]
    unknown.headers["transfer-encoding"] = "chunked"
    assert code(ready.api.client.send(unknown), 411) == "MissingContentLength"
    for method, content in (("PUT", document("")), ("GET", b"")):
        assert code(ready.ask(method, "/nowhere?notification", content), 404) == "NoSuchBucket"
    assert code(ready.ask("PUT", "/images?notification", b"<Notif"), 400) == "MalformedXML"
    assert code(ready.ask("PUT", "/images?notification", b" " * (1 << 20) + b"<"), 400) == "EntityTooLarge"


def test_boto3_sets_shows_and_clears_rules(ready: S3, boto3_client: Any) -> None:
    rule = {
        "Id": "thumbnails",
        "QueueArn": ARN,
        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:Delete"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "in é/"}, {"Name": "suffix", "Value": ".jpg"}]}},
    }
    assert put_rules(boto3_client, rule) == (200, "")
    [found] = boto3_client.get_bucket_notification_configuration(Bucket="images")["QueueConfigurations"]
    assert found == rule
    [stored] = registry(ready.database).rules("images")
    assert (stored.rule.prefix, stored.rule.suffix, stored.rule.rule_id) == ("in é/", ".jpg", "thumbnails")
    assert put_rules(boto3_client) == (200, "")
    assert "QueueConfigurations" not in boto3_client.get_bucket_notification_configuration(Bucket="images")


def test_minio_py_sets_shows_and_deletes_rules(ready: S3) -> None:
    client = ready.minio()
    wanted = QueueConfig(
        ["s3:ObjectCreated:*"],
        config_id="1",
        prefix_filter_rule=PrefixFilterRule("a/"),
        suffix_filter_rule=SuffixFilterRule(".x"),
        queue=ARN,
    )
    client.set_bucket_notification("images", NotificationConfig(queue_config_list=[wanted]))
    [found] = client.get_bucket_notification("images").queue_config_list
    assert (found.queue, found.events, found.config_id) == (ARN, ["s3:ObjectCreated:*"], "1")
    assert (found.prefix_filter_rule.value, found.suffix_filter_rule.value) == ("a/", ".x")
    client.delete_bucket_notification("images")
    assert client.get_bucket_notification("images").queue_config_list == []
    with pytest.raises(MinioError) as refused:
        client.get_bucket_notification("nowhere")
    assert refused.value.code == "NoSuchBucket"


def test_events_that_are_posted_after_the_answer_follow_the_new_rules_in_every_process(ready: S3) -> None:
    """Two processes take them; over one connection each, so that both are asked."""
    for number, (inner, matched) in enumerate([(RULE, {ARN: 1}), ("", {}), (RULE, {ARN: 1})]):
        assert ready.ask("PUT", "/images?notification", document(inner)).status_code == 200
        for each in range(8):
            answer = httpx.post(f"{ready.api.url}/v1/events", content=body(f"{number}-{each}"))
            assert answer.json()["matched"] == matched


# --- buckets


def test_buckets_are_those_that_were_made_have_rules_or_had_events(s3: S3) -> None:
    add_target(s3.database, bucket="ruled")
    add_target(s3.database, "every", bucket="*")
    s3.api.post(b'{"Records":[%s]}' % event(bucket="Spoken_of").record.encode()).raise_for_status()
    with closing(s3.boto3()) as client:
        client.create_bucket(Bucket="made")
        client.create_bucket(Bucket="made-there", CreateBucketConfiguration={"LocationConstraint": "eu-1"})
        names = [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
        assert names == ["Spoken_of", "made", "made-there", "ruled"]
        assert all(client.head_bucket(Bucket=name)["ResponseMetadata"]["HTTPStatusCode"] == 200 for name in names)
        with pytest.raises(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket="made")
        with pytest.raises(ClientError, match="404"):
            client.head_bucket(Bucket="nowhere")
    assert [bucket.name for bucket in s3.minio().list_buckets()] == names
    assert s3.minio().bucket_exists("made")
    assert not s3.minio().bucket_exists("nowhere")
    assert is_bucket(s3.database, "*") is False


def test_a_bucket_that_is_removed_takes_its_rules_along_and_its_next_event_brings_it_back(ready: S3) -> None:
    ready.api.post(body("before")).raise_for_status()
    ready.ask("PUT", "/images?notification", document(RULE)).raise_for_status()
    assert ready.ask("DELETE", "/images").status_code == 204
    assert code(ready.ask("DELETE", "/images"), 404) == "NoSuchBucket"
    assert registry(ready.database).rules("images") == []
    assert not is_bucket(ready.database, "images")
    assert "before" in keys(ready.database)
    ready.api.post(body("after")).raise_for_status()
    assert is_bucket(ready.database, "images")


def test_making_and_removing_a_bucket_goes_to_no_target(s3: S3) -> None:
    add_target(s3.database, "every", bucket="*", events=("*", "s3:BucketCreated:*"))
    s3.ask("PUT", "/made").raise_for_status()
    s3.ask("DELETE", "/made").raise_for_status()
    assert keys(s3.database) == ["", ""]
    [shown] = s3.api.client.get("/v1/targets").json()["targets"]
    assert shown["events"]["matched"] == 0


@pytest.mark.parametrize("name", ["ab", "a" * 64, "Images", "a..b", "127.0.0.1", "-ab", "a_b", "*"])
def test_a_bucket_needs_a_name_that_s3_allows(s3: S3, name: str) -> None:
    assert code(s3.ask("PUT", f"/{name.replace('*', '%2A')}"), 400) == "InvalidBucketName"
    assert every_bucket(s3.database) == []


def test_a_bucket_that_a_frontend_reports_is_there_whatever_its_name(s3: S3) -> None:
    assert code(s3.ask("GET", "/Old_Images?notification"), 400) == "InvalidBucketName"
    s3.api.post(b'{"Records":[%s]}' % event("a", bucket="Old_Images").record.encode()).raise_for_status()
    assert s3.ask("GET", "/Old_Images?notification").status_code == 200


# --- who may do what


def test_a_bucket_may_be_called_like_a_route_of_ours(s3: S3) -> None:
    for name in ("metrics", "healthz", "console"):
        assert s3.ask("PUT", f"/{name}").status_code == 200
        assert s3.ask("HEAD", f"/{name}").status_code == 200
    assert s3.api.client.get("/healthz").json() == {"status": "ok"}
    assert s3.api.client.get("/").json()["name"] == "bucketwire"


def test_nobody_gets_in_without_a_signature_that_holds(ready: S3) -> None:
    for path in ("/images?notification", "/images?location", "/?events=s3:ObjectCreated:*"):
        assert code(ready.api.client.get(path), 403) == "AccessDenied"
    assert code(ready.ask("GET", "/images?notification", secret="another one"), 403) == "SignatureDoesNotMatch"
    assert code(ready.ask("GET", "/images?notification", key="NOBODY"), 403) == "InvalidAccessKeyId"
    tampered = ready.sign("PUT", "/images?notification", document(""))
    changed = httpx.Request(
        "PUT", tampered.url, headers=tampered.headers, content=document("").replace(b"ion>", b"io >")
    )
    assert code(ready.api.client.send(changed), 400) == "XAmzContentSHA256Mismatch"
    refused = ready.ask("HEAD", "/images", key="NOBODY")
    assert (refused.status_code, refused.headers["x-minio-error-code"]) == (403, "InvalidAccessKeyId")


def test_a_date_that_overflows_is_refused_in_xml(ready: S3) -> None:
    signed = ready.sign("GET", "/images?notification")
    headers = {name: value for name, value in signed.headers.items() if name.lower() != "x-amz-date"}
    for date in ("Fri, 31 Dec 9999 23:59:59 -0100", "Mon, 01 Jan 2024 00:00:00 +99999999999999"):
        answer = ready.api.client.get("/images?notification", headers={**headers, "Date": date})
        assert code(answer, 403) == "AccessDenied"
    assert "Traceback" not in ready.api.log.read_text()


def test_a_key_that_may_only_read_changes_nothing(ready: S3) -> None:
    watcher = {"key": "WATCHER", "secret": "only-looks-on"}
    assert ready.ask("GET", "/images?notification", **watcher).status_code == 200
    for method, path in (("PUT", "/images?notification"), ("PUT", "/more"), ("DELETE", "/images")):
        assert code(ready.ask(method, path, document(""), **watcher), 403) == "AccessDenied"


def test_a_presigned_address_works_without_any_header(ready: S3) -> None:
    with closing(ready.boto3(signature_version="s3v4")) as client:
        presigned_addresses_work(client)


def presigned_addresses_work(client: Any) -> None:
    for call, arguments in (("get_bucket_notification_configuration", {"Bucket": "images"}), ("list_buckets", {})):
        address = client.generate_presigned_url(call, Params=arguments, ExpiresIn=60)
        assert "X-Amz-Signature" in address
        assert httpx.get(address).status_code == 200
        assert code(httpx.get(address.replace("X-Amz-Expires=60", "X-Amz-Expires=61")), 403) == "SignatureDoesNotMatch"


def test_what_only_a_storage_can_do_is_said_to_be_so(ready: S3) -> None:
    for method, path in (
        ("GET", "/images"), ("GET", "/images?list-type=2"), ("GET", "/images/a.txt"), ("PUT", "/images/a.txt"),
        ("GET", "/images?versioning"), ("PUT", "/images?versioning"), ("POST", "/images?delete"),
    ):  # fmt: skip
        assert code(ready.ask(method, path), 501) == "NotImplemented"
    assert code(ready.ask("PUT", "/"), 405) == "MethodNotAllowed"


def test_without_a_key_the_face_is_closed_and_says_which_setting_opens_it(plain: Api) -> None:
    answer = plain.client.get("/images?notification")
    assert code(answer, 403) == "AccessDenied"
    assert "BUCKETWIRE_ACCESS_KEY" in answer.text


def test_a_key_of_s3_is_no_token_and_a_token_no_key(elsewhere: S3) -> None:
    with_key = elsewhere.api.client.get("/v1/rules", headers={"Authorization": f"Bearer {S3.secret_key}"})
    problem(with_key, 401, "unauthorized")
    with_token = {"Authorization": f"Bearer {TOKEN}"}
    assert elsewhere.api.client.get("/v1/rules", headers=with_token).status_code == 200
    assert code(elsewhere.api.client.get("/images?notification", headers=with_token), 403) == "AccessDenied"
    assert code(elsewhere.ask("GET", "/v1/rules"), 400) == "AuthorizationHeaderMalformed"


def test_a_database_that_is_away_is_said_in_xml(start: Start) -> None:
    api = start("postgresql://nobody@127.0.0.1:9/none", access_key=S3.access_key, secret_key=S3.secret_key)
    refused = S3(api, None).ask("GET", "/images?notification")  # type: ignore[arg-type]
    assert code(refused, 503) == "ServiceUnavailable"
    assert "127.0.0.1:9" not in refused.text
