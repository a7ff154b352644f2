"""Manage the API's bearer tokens, and keep the console's sessions, which end with their tokens.

The tokens are those in the database, stored as SHA-256, and those from the environment. After the first token existed,
the API requires a token permanently. A row of the table records this, under a name that no token can have and with a
digest that no token has, so revoking the last token does not remove the row. It is written before a token is created or
revoked, and by an API process that has tokens, from the database or the environment, but no such row.

A cookie is worth something only while its session is in the table. So a sign-out ends every copy of a cookie, at every
API process at once, and a revoked token ends its sessions. The table is bounded: a session that begins removes those
that have expired, and its subject's oldest beyond `SESSIONS.max_sessions`. Who begins a session, or signs out, is in
the audit log.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.cached_probe import CachedProbe
from app.config.arn import TargetId
from app.config.errors import BadSettings, Problem, did_you_mean, suggest_name
from app.config.settings import SCOPES, ApiToken, Settings, hash_token
from app.events.buckets import TENANT_HINT, is_fixed, is_in, is_tenant, name_in
from app.events.frontends import S3_FRONTENDS
from app.outbox import audit, tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, describe_error, now_ms
from app.outbox.engine.many_rows import repeated_after_deadlock
from app.outbox.errors import TokenExists, TokensUnknown, UnknownToken
from app.outbox.policies import REFUSALS, SESSIONS, TOKENS
from app.resources.declaration import BadMember
from app.rules.model import EVERY_BUCKET

log = logging.getLogger("bucketwire.tokens")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RECORD, _NO_DIGEST = "*", "-" * 64  # of the row that the module's docstring describes
_PREFIX = "bw_"  # makes tokens recognizable to people and secret scanners


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A listed token. `origin` is `stored` or `environment`; times (ms) are 0 for the latter, or if there is none."""

    name: str
    scopes: frozenset[str]
    origin: str
    created_at: int
    buckets: Sequence[str] = ()
    targets: Sequence[str] = ()
    frontend: str = ""
    tenant: str = ""
    expires_at: int = 0
    used_at: int = 0

    def is_in_use(self, now: int) -> bool:
        """Return whether it is valid, and was used within the last days (`TOKENS`)."""
        return (not self.expires_at or now < self.expires_at) and self.used_at > now - TOKENS.in_use_ms


class FormerToken(NamedTuple):
    """A token that is not valid any more: its name, whether it was revoked or has expired, and since when (ms)."""

    name: str
    is_revoked: bool
    since: int


class Tokens:
    """The valid tokens and their scopes. Create one object for each process.

    A new token is valid at once, another change in the database takes effect within one second. While the database is
    unavailable, the tokens read last stay valid; if `memory` names a file, also for a process that starts in that time.
    """

    def __init__(self, database: Database, configured: Sequence[ApiToken] = (), *, memory: Path | None = None) -> None:
        self._database = database
        self._configured = tuple(configured)
        self._memory = memory
        self._remembered: Sequence[ApiToken] | None = None
        self._uses = _Uses(database)
        self._stored = CachedProbe(self._read, age=1.0, patience=1.0)
        self._revoked = CachedProbe(self._read_revoked, age=1.0, patience=0.5)  # asked for what is refused only
        self._recorded = CachedProbe(
            self._record, age=60.0, patience=0.0
        )  # in a thread of its own: the request never waits for it

    @repeated_after_deadlock
    def create(
        self,
        name: str,
        scopes: Collection[str],
        *,
        buckets: Sequence[str] = (),
        targets: Sequence[TargetId] = (),
        frontend: str = "",
        tenant: str = "",
        expires_at: int = 0,
    ) -> str:
        """Create a token and return it; it cannot be shown again. Raises `BadMember` or `TokenExists`.

        With buckets or targets it is limited to these; neither has to exist. With a frontend, the records that are
        posted with it are read as that one's; with a tenant, their buckets are the tenant's, and so are the `buckets`,
        to which a fixed tenant limits it. It is invalid from `expires_at` on (ms since 1970; 0: never).
        """
        if not _NAME.fullmatch(name):
            raise BadMember("name", "is not a valid name of a token", "use 1 to 64 letters, digits, _ - or .")
        if not scopes:
            raise BadMember("scopes", "has no scope", f"give one or more of {', '.join(SCOPES)}")
        for scope in scopes:
            if scope not in SCOPES:
                raise BadMember(
                    "scopes", f"names {scope[:64]!r}, which is not a scope", did_you_mean(scope[:64], SCOPES)
                )
        for field, names in (("buckets", buckets), ("targets", targets)):
            if len(names) > TOKENS.max_names:
                raise BadMember(field, f"names more than {TOKENS.max_names}", "create several tokens")
        if not all(0 < len(bucket) <= TOKENS.max_bucket_characters and bucket != EVERY_BUCKET for bucket in buckets):
            raise BadMember(
                "buckets",
                "names a bucket that cannot be",
                f"give names of 1 to {TOKENS.max_bucket_characters} characters, and no *",
            )
        if frontend and frontend not in S3_FRONTENDS:
            known = did_you_mean(frontend[:64], sorted(S3_FRONTENDS))
            raise BadMember("frontend", f"is {frontend[:64]!r}, which is not a frontend", known)
        _check_tenant(tenant, buckets)
        if any(token.name == name for token in self._configured):
            raise TokenExists(f"BUCKETWIRE_API_TOKENS has a token {name!r}; choose another name")
        token = _PREFIX + secrets.token_urlsafe(32)
        limits = {"buckets": sorted(set(buckets)), "targets": sorted(set(map(str, targets)))}
        limited: dict[str, Any] = {kind: names for kind, names in limits.items() if names}
        limited |= {"frontend": frontend} if frontend else {}
        limited |= {"tenant": tenant} if tenant else {}
        limited |= {"expires_at": expires_at} if expires_at else {}
        row = {"name": name, "digest": hash_token(token), "scopes": " ".join(sorted(set(scopes)))}
        row["limits"] = json.dumps(limited) if limited else ""  # ASCII, which every database takes
        self._record()
        try:
            with self._database.writing() as connection:
                connection.execute(tables.tokens.insert().values(created_at=now_ms(), **row))
                audit.record(connection, "token.create", f"token:{name}", {"scopes": sorted(set(scopes)), **limited})
        except sa.exc.IntegrityError:
            raise TokenExists(f"the token {name!r} exists; revoke it first, or choose another name") from None
        return token

    def list(self) -> Sequence[StoredToken]:
        """Return every token: those of the environment first, then those of the database, sorted by name.

        The tokens themselves are not known. Those that have expired are listed until they are revoked.
        """
        configured = [StoredToken(token.name, token.scopes, "environment", 0) for token in self._configured]
        with self._database.reading() as connection:
            return configured + read_tokens(connection)

    @repeated_after_deadlock
    def revoke(self, name: str) -> None:
        """Revoke a token; effective within 1 s, and its sessions end at once. Without any, the API still requires one.

        Raises `UnknownToken`.
        """
        gone = 0
        if name != _RECORD:
            self._record()
            with self._database.writing() as connection:
                of_name = tables.tokens.c.name == name
                digest = connection.execute(sa.select(tables.tokens.c.digest).where(of_name)).scalar()
                gone = connection.execute(tables.tokens.delete().where(of_name)).rowcount
                if gone:
                    _remember_revoked(connection, str(digest), name)
                    end_sessions(connection, str(digest))
                    audit.record(connection, "token.revoke", f"token:{name}")
        if not gone:
            if any(token.name == name for token in self._configured):
                raise UnknownToken(f"the token {name!r} is set in BUCKETWIRE_API_TOKENS; remove it there")
            known = [token.name for token in self.list()]
            raise UnknownToken(f"there is no token {name!r}; {suggest_name(name, known, 'bucketwire token ls')}")

    def any(self) -> bool:
        """Return whether any valid token exists. Raises `TokensUnknown`."""
        return bool(self._configured) or any(token.name != _RECORD for token in self._known())

    def required(self) -> bool:
        """Return whether calls need a token: always, after the first token existed. Raises `TokensUnknown`."""
        if self._configured:
            self._recorded.get()
            return True
        return bool(self._known())

    def find(self, token: str) -> ApiToken | None:
        """Return the token's name and scopes, None for an invalid one. Raises `TokensUnknown`.

        Compares with every token, each in constant time, so that the response time reveals nothing.
        """
        return self.find_digest(hash_token(token))

    def find_digest(self, digest: str) -> ApiToken | None:
        """Return the token with this SHA-256 as `find` does, for those who keep the digest and not the token."""
        if self._configured:
            self._recorded.get()
        if token := _equal(self._configured, digest):
            return token
        token = _equal(self._known(), digest) or _equal(self._known(new=True), digest)
        if token is None or token.has_expired(now_ms()):
            return None
        self._uses.note(digest)
        return token

    def find_former(self, digest: str) -> FormerToken | None:
        """Return the token with this SHA-256, which is not valid, if it was before. Raises `TokensUnknown`.

        Of those that were revoked the newest are known, but for those of the environment; none while the database is
        unavailable, unless they were read before.
        """
        token = _equal(self._known(), digest)
        if token is not None and token.has_expired(now_ms()):
            return FormerToken(token.name, is_revoked=False, since=token.expires_at)
        revoked = self._revoked.get().value or {}
        return revoked.get(digest)

    def _known(self, *, new: bool = False) -> Sequence[ApiToken]:
        """Return the tokens of the database, as of now if `new`: one that was created just now is among them."""
        pause, waiting = TOKENS.new_pause_seconds, TOKENS.max_waiting_for_new
        result = self._stored.get_new(pause=pause, max_waiting=waiting) if new else self._stored.get()
        if result.value is not None:
            return result.value
        if self._memory is None or not self._memory.exists():
            raise TokensUnknown("the tokens are in the database, which cannot be read") from result.error
        rows = orjson.loads(self._memory.read_bytes())
        return [ApiToken(name, frozenset(scopes), digest, **_limits(limits)) for name, scopes, digest, limits in rows]

    def _read(self) -> Sequence[ApiToken]:
        with self._database.reading() as connection:
            rows = connection.execute(
                sa.select(tables.tokens.c.name, tables.tokens.c.scopes, tables.tokens.c.digest, tables.tokens.c.limits)
            ).all()
        tokens = [ApiToken(row.name, frozenset(row.scopes.split()), row.digest, **_limits(row.limits)) for row in rows]
        if tokens and all(token.name != _RECORD for token in tokens):
            self._recorded.get()  # an earlier version created them
        if self._memory is not None and tokens != self._remembered:
            try:
                _write(self._memory, orjson.dumps(_remembered(tokens)))
            except OSError as error:
                log.warning("the tokens cannot be remembered in %s: %s", self._memory, error)
            self._remembered = tokens
        return tokens

    def _read_revoked(self) -> Mapping[str, FormerToken]:
        r = tables.revoked_tokens.c
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(r.digest, r.name, r.revoked_at)).all()
        return {row.digest: FormerToken(row.name, is_revoked=True, since=row.revoked_at) for row in rows}

    @repeated_after_deadlock
    def _record(self) -> None:
        """Record that a token has existed."""
        with self._database.reading() as connection:
            if connection.execute(sa.select(tables.tokens.c.name).where(tables.tokens.c.name == _RECORD)).first():
                return
        row = {"name": _RECORD, "digest": _NO_DIGEST, "scopes": "", "created_at": now_ms()}
        with contextlib.suppress(sa.exc.IntegrityError), self._database.writing() as connection:  # inserted by another
            connection.execute(tables.tokens.insert().values(**row))


def read_target_owners(database: Database) -> dict[TargetId, str]:
    """Return the targets that a limited token may set, each with the name of the first such token."""
    t, owners = tables.tokens.c, dict[TargetId, str]()
    query = sa.select(t.name, t.scopes, t.limits).where(t.limits != "").order_by(t.name.desc())
    with database.reading() as connection:
        for row in connection.execute(query):
            if "admin" in row.scopes.split():
                owners |= {TargetId(*target.split(":", 1)): row.name for target in _limits(row.limits)["targets"]}
    return owners


def read_tokens(connection: sa.Connection) -> list[StoredToken]:
    """Return the tokens of the database, sorted by name, also those that have expired."""
    tokens = sa.select(tables.tokens).where(tables.tokens.c.name != _RECORD).order_by(tables.tokens.c.name)
    return [
        StoredToken(
            row.name,
            frozenset(row.scopes.split()),
            "stored",
            row.created_at,
            used_at=row.used_at or 0,
            **_limits(row.limits),
        )
        for row in connection.execute(tokens)
    ]


def read_used_at(connection: sa.Connection, names: Collection[str]) -> dict[str, int]:
    """Return when those of these tokens that have been used were last used (ms), by name."""
    t = tables.tokens.c
    rows = connection.execute(sa.select(t.name, t.used_at).where(t.name.in_(sorted(names)), t.used_at.is_not(None)))
    return {row.name: row.used_at for row in rows}


class _Uses:
    """Records when tokens were used: of each at most once a minute, in a thread, so that no request waits for it.

    A use is not recorded while the database is unavailable, or if the process is killed at that moment.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}  # by digest: when to record its next use, by `time.monotonic()`
        self._pending: dict[str, int] = {}  # by digest: uses to record, by `now_ms()`
        self._writing = False

    def note(self, digest: str) -> None:
        """Have a use recorded, if it is due. Never fails or waits."""
        now = time.monotonic()
        with self._lock:
            if now < self._due.get(digest, 0.0):
                return
            self._due = {known: due for known, due in self._due.items() if now < due}  # not those that were revoked
            self._due[digest] = now + TOKENS.use_interval_ms / 1000
            self._pending[digest] = now_ms()
            if self._writing:
                return
            self._writing = True
        try:
            threading.Thread(target=self._write_pending, name="token-use", daemon=True).start()
        except RuntimeError:  # the process may have no more threads; the next use that is due tries again
            with self._lock:
                self._writing = False

    def _write_pending(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._writing = False
                    return
                digest = next(iter(self._pending))
                at = self._pending.pop(digest)
            try:
                self._write(digest, at)
            except Exception as error:  # noqa: BLE001 - it is for people, and the token was valid
                log.info("the last use of a token is not recorded: %s", describe_error(error))

    def _write(self, digest: str, at: int) -> None:
        used_at, interval = tables.tokens.c.used_at, TOKENS.use_interval_ms
        # Another process may have recorded one, perhaps on a host whose clock is ahead.
        due = sa.or_(used_at.is_(None), used_at <= at - interval, used_at >= at + interval)
        with self._database.writing() as connection:
            connection.execute(tables.tokens.update().where(tables.tokens.c.digest == digest, due).values(used_at=at))


def _remember_revoked(connection: sa.Connection, digest: str, name: str) -> None:
    """Add a token to those that were revoked, of which the newest are kept."""
    r = tables.revoked_tokens.c
    newest = sa.select(r.digest).order_by(r.revoked_at.desc(), r.digest)
    oldest = connection.execute(newest.offset(REFUSALS.max_revoked - 1).limit(REFUSALS.batch_revoked)).scalars().all()
    for each in sorted({*oldest, digest}):  # a restored token may be revoked again
        connection.execute(tables.revoked_tokens.delete().where(r.digest == each))
    connection.execute(tables.revoked_tokens.insert().values(digest=digest, name=name, revoked_at=now_ms()))


def _check_tenant(tenant: str, buckets: Sequence[str]) -> None:
    """Raise `BadMember` for what cannot be a tenant, and for buckets of another one."""
    if tenant and not is_tenant(tenant):
        raise BadMember("tenant", f"is {tenant[:64]!r}, which cannot be a tenant", TENANT_HINT)
    if is_fixed(tenant) and (others := [bucket for bucket in buckets if not is_in(tenant, bucket)]):
        name = others[0]
        hint = f"name buckets of {tenant} only" if ":" in name else f"write {name_in(tenant, name)}"
        raise BadMember("buckets", f"names {name!r}, which is not of the tenant {tenant}", hint)


def _limits(text: str) -> dict[str, Any]:
    """Return what a token is limited to: buckets, targets, a time, and the frontend and tenant that post with it."""
    limits = orjson.loads(text or "{}")
    listed = {kind: tuple(limits.get(kind, ())) for kind in ("buckets", "targets")}
    named = {kind: limits.get(kind, "") for kind in ("frontend", "tenant")}
    return {**listed, **named, "expires_at": limits.get("expires_at", 0)}


def _remembered(tokens: Sequence[ApiToken]) -> Sequence[Sequence[object]]:
    return [
        [
            one.name,
            sorted(one.scopes),
            one.digest,
            json.dumps(
                {
                    "buckets": one.buckets,
                    "targets": one.targets,
                    "frontend": one.frontend,
                    "tenant": one.tenant,
                    "expires_at": one.expires_at,
                }
            ),
        ]
        for one in tokens
    ]


def _write(path: Path, content: bytes) -> None:
    """Replace a file atomically, readable by its owner only: a concurrent reader gets the old content or the new."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def _equal(tokens: Sequence[ApiToken], digest: str) -> ApiToken | None:
    match = None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            match = token
    return match


def check_listen(settings: Settings, database: Database) -> None:
    """Raise `BadSettings` if the API would be open to the network: no token, and no loopback address.

    A database that cannot be read is no error: the tokens are unknown then, and every request without one is refused.
    """
    if settings.loopback or settings.api_tokens:
        return
    try:
        if Tokens(database).list():
            return
    except sa.exc.SQLAlchemyError:
        return
    hint = (
        "create one with `bucketwire token create minio --scope ingest`, set BUCKETWIRE_API_TOKENS, "
        "or listen on 127.0.0.1"
    )
    problem = "is reachable from other hosts, and there is no token"
    raise BadSettings([Problem("BUCKETWIRE_LISTEN", str(settings.listen), problem, hint)])


AUDITED = "session:console"  # what entries of the audit log are about
_sessions = tables.console_sessions.c


class Sessions:
    """The sessions that are active now, by the numbers in the browsers' cookies."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @repeated_after_deadlock
    def begin(self, number: str, subject: str, lifetime: int) -> None:
        """Begin a session of so many seconds; `subject` is a SHA-256 digest of the token or the person.

        With more than `SESSIONS.max_sessions` of the subject, its oldest end.
        """
        with self._database.reading() as connection:
            now = database_now(connection)
            expired = sa.select(_sessions.id).where(_sessions.ends_at < now).order_by(_sessions.ends_at)
            newest = sa.select(_sessions.id).where(_sessions.subject == subject).order_by(_sessions.ends_at.desc())
            ended = {
                *connection.execute(expired.limit(SESSIONS.batch_expired)).scalars(),
                *connection.execute(newest.offset(SESSIONS.max_sessions - 1).limit(SESSIONS.batch_expired)).scalars(),
            }
        row = {"id": _digest(number), "subject": subject, "ends_at": now + lifetime * 1000}
        with self._database.writing() as connection:
            # By their ids and in order: a range would lock its gaps on MySQL, and two sign-ins wait for each other.
            for session_id in sorted(ended):
                connection.execute(tables.console_sessions.delete().where(_sessions.id == session_id))
            connection.execute(tables.console_sessions.insert().values(**row))
            audit.record(connection, "session.begin", AUDITED)

    def is_active(self, number: str) -> bool:
        """Return whether a session has begun and has not been ended; whether it has expired, its cookie says.

        One round trip. Raises `DatabaseUnavailable`.
        """
        with self._database.reading() as connection:
            query = sa.select(_sessions.id).where(_sessions.id == _digest(number))
            return connection.execute(query).first() is not None

    @repeated_after_deadlock
    def end(self, number: str) -> None:
        """End a session everywhere; does nothing if it has ended. Raises `DatabaseUnavailable`."""
        with self._database.writing() as connection:
            if connection.execute(tables.console_sessions.delete().where(_sessions.id == _digest(number))).rowcount:
                audit.record(connection, "session.end", AUDITED)


def end_sessions(connection: sa.Connection, subject: str) -> None:
    """End every session of a subject, in the caller's transaction."""
    ids = connection.execute(sa.select(_sessions.id).where(_sessions.subject == subject)).scalars().all()
    for session_id in sorted(ids):
        connection.execute(tables.console_sessions.delete().where(_sessions.id == session_id))


def _digest(number: str) -> str:
    return hashlib.sha256(number.encode()).hexdigest()
