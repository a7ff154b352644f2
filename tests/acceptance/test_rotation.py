"""Every secret is put in the place of another while events flow: nothing is refused meanwhile, and the old one ends."""

from __future__ import annotations

import base64
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import botocore.config
import botocore.exceptions
import httpx
import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from app.config.arn import TargetId
from app.config.secrets import Sealer
from app.config.targets.webhook import WebhookSettings
from app.outbox import tables
from app.outbox.engine.database import now_ms
from app.outbox.registry import Registry
from app.outbox.tokens import Tokens
from tests import services
from tests.services import Request, forking, until
from tests.support.builders import body, event
from tests.support.service_processes import System, start_all, system

PATIENCE = 60


@dataclass
class Service:
    """The service with its secrets in files, and what the files hold."""

    whole: System
    folder: Path

    def write(self, name: str, content: str) -> None:
        """Replace a secret's file as a whole."""
        draft = self.folder / f"{name}.draft"
        draft.write_text(content)
        draft.rename(self.folder / name)

    def reload(self) -> None:
        """SIGHUP for the API: every process of it is replaced by one that reads the files anew."""
        before = {child.pid for child in self.whole.api.children()}
        os.kill(self.whole.api.pid, signal.SIGHUP)
        until(
            lambda: before.isdisjoint(child.pid for child in self.whole.api.children()), PATIENCE, what="new processes"
        )

    def status(self, token: str, path: str = "/v1/targets") -> int:
        """What the API answers to who comes with this token."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{self.whole.api.url}{path}", headers=headers, timeout=PATIENCE, trust_env=False).status_code


@dataclass
class Sender:
    """Posts an event again and again, with the token that it has by then, and notes what was not answered 202."""

    url: str
    token: str
    taken: int = 0
    refused: list[str] = field(default_factory=list)

    @contextmanager
    def posting(self) -> Iterator[Sender]:
        over = threading.Event()

        def post() -> None:
            while not over.wait(0.02):
                headers = {"Authorization": f"Bearer {self.token}"}
                try:
                    with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
                        answer = client.post(f"{self.url}/v1/events", content=body(event("k")), headers=headers)
                except httpx.HTTPError as error:
                    self.refused.append(repr(error))
                    continue
                if answer.status_code == 202:
                    self.taken += 1
                else:
                    self.refused.append(f"{answer.status_code} {answer.text}")

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(post)
            try:
                yield self
            finally:
                over.set()
            running.result()


ADMIN, SENDER = secrets.token_hex(20), secrets.token_hex(20)
SEALS = [Fernet.generate_key().decode() for _ in range(2)]


@pytest.fixture(scope="module")
def service(postgres_server: services.Postgres) -> Iterator[Service]:
    folder = services.new_folder("secrets")
    with services.redis() as broker:
        (folder / "tokens").write_text(f"ops:admin:{ADMIN},sender:ingest:{SENDER}")
        (folder / "s3").write_text("watch:read:watcher:old-secret")
        (folder / "seals").write_text(SEALS[0])
        whole = system(
            postgres_server.create_database(f"outbox_{uuid4().hex[:12]}"), broker.url, concurrency=1, start=False,
            token=ADMIN, api_tokens=f"file:{folder}/tokens", s3_keys=f"file:{folder}/s3",
            secret_keys=f"file:{folder}/seals", secrets_dir=folder,
        )  # fmt: skip
        with whole as running:
            running.api.arguments = ["api", "--workers", "1"]
            start_all(running.roles)
            yield Service(running, folder)


def s3(service: Service, access: str, secret: str) -> bool:
    """Whether this pair of keys gets in at the S3 face."""
    client = boto3.client(
        "s3", endpoint_url=service.whole.api.url, aws_access_key_id=access, aws_secret_access_key=secret,
        region_name="us-east-1",
        config=botocore.config.Config(s3={"addressing_style": "path"}, proxies={}, retries={"max_attempts": 1}),
    )  # fmt: skip
    try:
        client.list_buckets()
    except botocore.exceptions.ClientError as error:
        if error.response["Error"]["Code"] != "InvalidAccessKeyId":
            raise
        return False
    finally:
        client.close()
    return True


def test_tokens_and_s3_keys_change_while_a_sender_goes_on(service: Service) -> None:
    old, new, ops = SENDER, secrets.token_hex(20), f"ops:admin:{ADMIN}"
    assert s3(service, "watcher", "old-secret")
    with Sender(service.whole.api.url, old).posting() as sender:
        until(lambda: sender.taken > 3, PATIENCE)
        service.write("tokens", f"{ops},sender:ingest:{old},next:ingest:{new}")
        service.write("s3", "watch:read:watcher:old-secret,next:read:next-watcher:new-secret")
        service.reload()
        assert s3(service, "watcher", "old-secret")
        assert s3(service, "next-watcher", "new-secret")
        sender.token = new
        before = sender.taken
        until(lambda: sender.taken > before + 3, PATIENCE)
        service.write("tokens", f"{ops},next:ingest:{new}")
        service.write("s3", "next:read:next-watcher:new-secret")
        service.reload()
        assert service.status(old) == 401
        assert service.status(new) == 403, "it holds, and may not read"
        assert not s3(service, "watcher", "old-secret")
        assert s3(service, "next-watcher", "new-secret")

        tokens = Tokens(service.whole.database)  # from here on those that are in the database
        made = [tokens.create(name, ["ingest"]) for name in ("stored", "stored-next")]
        for token in made:
            until(lambda token=token: service.status(token) == 403, PATIENCE, what="it holds")  # type: ignore[misc]
            sender.token = token
            before = sender.taken
            until(lambda before=before: sender.taken > before + 3, PATIENCE)  # type: ignore[misc]
        tokens.revoke("stored")
        until(lambda: service.status(made[0]) == 401, PATIENCE)
    assert sender.refused == []


def bucketwire(service: Service, *words: str) -> str:
    """What a command says, run with the service's own settings."""
    environment = {"PATH": os.environ["PATH"], **service.whole.settings}
    done = subprocess.run(
        [forking.command(), *words], env=environment, cwd=service.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def signed_by(request: Request, secret: str) -> bool:
    try:
        Webhook(secret).verify(request.body, request.headers)
    except WebhookVerificationError:
        return False
    return True


def idle(whole: System) -> bool:
    """No worker has a partition in hand."""
    with whole.database.reading() as connection:
        query = sa.select(tables.cursors.c.partition).where(tables.cursors.c.leased_until > now_ms()).limit(1)
        return connection.execute(query).first() is None


def next_request(service: Service, receiver: services.Receiver, bucket: str) -> Request:
    """The request that one more event makes."""
    known = len(receiver.requests())
    service.whole.post(body(event("k", bucket=bucket)))
    return receiver.wait(known + 1, timeout=PATIENCE)[-1]


def test_signing_secrets_and_tokens_of_a_target_change_in_their_files_while_a_worker_runs(
    service: Service, receiver: services.Receiver
) -> None:
    bucket = f"bucket-{uuid4().hex[:12]}"
    old, new = (f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}" for _ in range(2))
    service.write("signing", old)
    service.write("bearer", "first-token")
    files: dict[str, Any] = {name: f"file:{service.folder}/{file}" for name, file in
                             (("signing_secret", "signing"), ("auth_token", "bearer"))}  # fmt: skip
    files["headers"] = f"X-Tenant: a; X-Key: {files['auth_token']}"
    service.whole.add_target(f"webhook:{bucket}", bucket, endpoint=receiver.url, **files)
    for own in ("seals", "tokens", "s3"):
        place = f"{service.whole.api.url}/v1/targets/webhook/{bucket}"
        values, login = {"auth_token": f"file:{service.folder}/{own}"}, {"Authorization": f"Bearer {ADMIN}"}
        refused = httpx.put(place, json=values, headers=login, timeout=PATIENCE)
        assert (refused.status_code, "a file of the service itself" in refused.text) == (400, True), refused.text

    def seen() -> tuple[bool, bool, str]:
        request = next_request(service, receiver, bucket)
        until(
            lambda: idle(service.whole), PATIENCE, what="the worker done with it, which reads the files when it begins"
        )
        assert (request.headers["x-tenant"], f"Bearer {request.headers['x-key']}") == (
            "a",
            request.headers["authorization"],
        )
        return signed_by(request, old), signed_by(request, new), request.headers["authorization"]

    assert seen() == (True, False, "Bearer first-token")
    service.write("signing", f"{new} {old}")  # the receiver may change from one to the other at any time
    assert seen() == (True, True, "Bearer first-token")
    service.write("bearer", "")  # somebody writes it in place, and is not done
    assert seen() == (True, True, "Bearer first-token")
    service.write("bearer", "second-token")
    service.write("signing", new)
    assert seen() == (False, True, "Bearer second-token")
    change = {"endpoint": receiver.url, "headers": {"X-Tenant": "b"}}
    service.whole.ask("PUT", f"/v1/targets/webhook/{bucket}", json=change)

    def is_changed() -> bool:
        given = next_request(service, receiver, bucket).headers
        return given["x-tenant"] == "b" and not given.keys() & {"x-key", "authorization", "webhook-id"}

    until(is_changed, PATIENCE, what="requests with the headers of the new settings")
    [worker] = service.whole.workers
    assert worker.said().count("keeps its secrets, because they cannot be read again: ") == 1
    until(lambda: service.whole.settled(f"webhook:{bucket}"), PATIENCE, what="every request counted")


def test_the_keys_that_seal_secrets_change_while_workers_run(service: Service, receiver: services.Receiver) -> None:
    whole, (old, new) = service.whole, SEALS
    bucket, later = f"bucket-{uuid4().hex[:12]}", f"bucket-{uuid4().hex[:12]}"
    whole.add_target(f"webhook:{bucket}", bucket, endpoint=receiver.url, auth_token="sealed-by-the-old")
    assert next_request(service, receiver, bucket).headers["authorization"] == "Bearer sealed-by-the-old"

    service.write("seals", f"{new},{old}")
    service.reload()
    # The worker was started with the old key alone, and finds the new one in the file when it needs it.
    whole.add_target(f"webhook:{later}", later, endpoint=receiver.url, auth_token="sealed-by-the-new")
    assert next_request(service, receiver, later).headers["authorization"] == "Bearer sealed-by-the-new"

    with pytest.raises(ValueError, match="not among BUCKETWIRE_SECRET_KEYS"):
        token_of(whole, bucket, new)
    assert "encrypted the secrets of" in bucketwire(service, "config", "reseal")
    service.write("seals", new)
    assert token_of(whole, bucket, new) == "sealed-by-the-old"
    for worker in whole.workers:
        worker.stop()
        worker.start()
    assert next_request(service, receiver, bucket).headers["authorization"] == "Bearer sealed-by-the-old"
    assert next_request(service, receiver, later).headers["authorization"] == "Bearer sealed-by-the-new"
    assert whole.target(f"webhook:{bucket}")["state"] == "running"


def token_of(whole: System, name: str, key: str) -> str:
    """A webhook's token as who has this key alone finds it in the database."""
    registry = Registry(whole.database, Sealer([key]))
    settings = registry.settings(registry.target(TargetId("webhook", name)))
    assert isinstance(settings, WebhookSettings)
    return settings.auth_token
