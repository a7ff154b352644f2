"""Answer MinIO's admin API: verify the signature, run the operation, or refuse it in the JSON that `mc` prints.

The operations are `mc admin config get|set|reset|export|import` for the settings of targets and their help,
`mc admin info` and `mc admin service restart`. Sections of settings are written as MinIO does: a line for each target,
variables of the environment as comments.

A body is encrypted with the secret key of the caller: `salt (32) | algorithm (1) | nonce (8)` and a stream of sealed
chunks of 16 KiB, each with a tag of 16 bytes. The key is derived from the secret key. The nonce of a chunk ends in its
number, from 1; what is authenticated with it is 0x00, or 0x80 for the last chunk, and the tag of an empty text under
number 0. So no chunk can be changed, moved, left out or added. The derivation costs 64 MiB, whatever the body says: the
format fixes it. One at a time is derived in a process.
"""

import logging
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from threading import Lock
from urllib.parse import unquote

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from werkzeug.wrappers import Request, Response

from app.api.s3.errors import S3Error
from app.api.s3.signature import Received, Seal, read_signed_body
from app.api.s3.wsgi_app import SignedApp, actor_of
from app.api.services import Services
from app.api.wsgi_layers import set_route
from app.config.api_settings import ABOUT, SECTION, ApiSettings, api_texts, sync_events
from app.config.arn import UNNAMED, TargetId
from app.config.declared_types import section_type, sections
from app.config.errors import REDACTED, BadSettings, nearest
from app.config.fields.fields import fields_of
from app.config.formats.environment import variable
from app.config.formats.notify_lines import (
    api_helps,
    describe_section,
    is_api_line,
    key_helps,
    parse_api_line,
    take_api_lines,
    to_line,
)
from app.config.target_settings import joined, parse_line, parse_lines, redacted
from app.config.targets.base import TargetSettings, ordered_fields
from app.manifest.plan import set_keys
from app.outbox import audit
from app.outbox.buckets import count_buckets
from app.outbox.declared import OPENED, StoredTarget, UnknownTarget
from app.outbox.delivery.availability import with_failing
from app.outbox.registry import ReadOnlyTarget, Registry, TargetInUse
from app.resources.refusal import ADMIN_ROUTE

LIMIT = 262_272  # bytes of an encrypted body; MinIO's own limit
_ARGON2_AES, _ARGON2_CHACHA, _PBKDF2_AES = 0, 1, 2
_SALT, _NONCE, _TAG, _CHUNK = 32, 8, 16, 16 * 1024  # bytes
_HEADER = _SALT + 1 + _NONCE
_deriving = Lock()


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A request with a valid signature of a key that has the scope admin."""

    parts: Services
    request: Request
    received: Received
    seal: Seal
    uptime: int  # seconds

    def parameter(self, name: str) -> str:
        """Return a query parameter, an empty text if it is missing."""
        return self.received.parameter(name) or ""

    def text(self) -> str:
        """Read and decrypt the body. Raises `S3Error`; a body over the limit is not read."""
        length = self.request.content_length
        if length is None:
            raise S3Error("MissingContentLength")
        if length > LIMIT:
            raise S3Error("XMinioAdminConfigTooLarge", f"The body has {length} bytes; at most {LIMIT} are allowed.")
        try:
            return decrypt(read_signed_body(self.request.stream, length, self.seal), self.seal.key.secret_key).decode()
        except (BadBody, UnicodeDecodeError) as error:
            problem = error if isinstance(error, BadBody) else "the text is not UTF-8"
            raise S3Error("XMinioAdminConfigBadJSON", f"{problem}.".capitalize()) from None

    def encrypted(self, text: str) -> Response:
        """Return a response that only the caller can read."""
        return Response(encrypt(text.encode(), self.seal.key.secret_key), mimetype="application/json")


def json_answer(value: object) -> Response:
    """Return a response in JSON."""
    return Response(orjson.dumps(value), mimetype="application/json")


class BadBody(ValueError):
    """The body was not encrypted with this secret key, or it was changed or cut off."""


def encrypt(text: bytes, secret: str) -> bytes:
    """Return the text as a body that `mc` and minio-py decrypt with the same secret key."""
    salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
    stream = _Stream(_ARGON2_AES, secret, salt, nonce)
    return b"".join([salt, bytes([_ARGON2_AES]), nonce, *stream.seal(text)])


def decrypt(body: bytes, secret: str) -> bytes:
    """Return the text of a body. Raises `BadBody`; nothing is derived for a body that cannot be one."""
    if len(body) < _HEADER + _TAG:
        raise BadBody("the body is too short to be encrypted with the secret key")
    salt, algorithm, nonce = body[:_SALT], body[_SALT], body[_SALT + 1 : _HEADER]
    if algorithm not in (_ARGON2_AES, _ARGON2_CHACHA, _PBKDF2_AES):
        raise BadBody("the body is not encrypted by an algorithm of MinIO's admin API")
    try:
        return b"".join(_Stream(algorithm, secret, salt, nonce).open(body[_HEADER:]))
    except InvalidTag:
        raise BadBody("the body is not encrypted with this secret key, or it was changed or cut off") from None


class _Stream:
    """The chunks of one body."""

    def __init__(self, algorithm: int, secret: str, salt: bytes, nonce: bytes) -> None:
        key = _derive(algorithm, secret.encode(), salt)
        self._cipher = ChaCha20Poly1305(key) if algorithm == _ARGON2_CHACHA else AESGCM(key)
        self._nonce = nonce
        self._associated = self._cipher.encrypt(self._numbered(0), b"", b"")

    def seal(self, text: bytes) -> Iterator[bytes]:
        """Yield the sealed chunks of a text."""
        for number, chunk, associated in self._chunks(text, _CHUNK):
            yield self._cipher.encrypt(self._numbered(number), chunk, associated)

    def open(self, sealed: bytes) -> Iterator[bytes]:
        """Yield the text of sealed chunks. Raises `InvalidTag`."""
        for number, chunk, associated in self._chunks(sealed, _CHUNK + _TAG):
            yield self._cipher.decrypt(self._numbered(number), chunk, associated)

    def _chunks(self, content: bytes, size: int) -> Iterator[tuple[int, bytes, bytes]]:
        starts = range(0, max(len(content), 1), size)  # an empty text has a chunk too
        for number, start in enumerate(starts, 1):
            mark = b"\x80" if start == starts[-1] else b"\x00"
            yield number, content[start : start + size], mark + self._associated

    def _numbered(self, number: int) -> bytes:
        return self._nonce + number.to_bytes(4, "little")


def _derive(algorithm: int, secret: bytes, salt: bytes) -> bytes:
    with _deriving:
        if algorithm == _PBKDF2_AES:
            return PBKDF2HMAC(SHA256(), 32, salt, 8192).derive(secret)
        return Argon2id(salt=salt, length=32, iterations=1, lanes=4, memory_cost=64 * 1024).derive(secret)


log = logging.getLogger("bucketwire.api")
# MinIO's sections of settings that are not targets: a backup of a MinIO has them.
_ELSEWHERE = frozenset(
    {
        "audit_kafka", "audit_webhook", "batch", "browser", "cache", "callhome", "compression", "crawler",
        "credentials", "drive", "etcd", "heal", "identity_ldap", "identity_openid", "identity_plugin", "identity_tls",
        "ilm", "lambda_webhook", "logger_webhook", "policy_opa", "policy_plugin", "region", "scanner", "site",
        "storage_class", "subnet",
    }
)  # fmt: skip
_APPLIED = {"x-minio-config-applied": "true"}  # so that `mc` asks for no restart
_MAX_MESSAGE_CHARACTERS = 4096  # characters of a message
_NO_HISTORY = re.compile(r"(list|clear|restore)-config-history-kv")


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """A target as it is to be written. A `problem` is written instead of texts that cannot be read."""

    target: TargetId
    texts: Mapping[str, str]
    enabled: bool
    from_environment: bool = False
    problem: str = ""


def unset_target(cls: type[TargetSettings]) -> ShownTarget:
    """Return the unnamed target of a section in which it is not set: off, with every default."""
    return ShownTarget(TargetId(cls.type_name, UNNAMED), {}, enabled=False)


def section_text(cls: type[TargetSettings], targets: Iterable[ShownTarget], *, backup: bool = False) -> str:
    """Write targets of a section, one line for each.

    As in MinIO, keys of a secret that is set are left out, `enable` if it is on, and `comment` if it is empty. For a
    `backup` secrets are `*redacted*`, so that importing it keeps the stored ones, and what an import should not set is
    a comment.
    """
    return "".join(f"{line}\n" for target in targets for line in _lines(cls, target, backup=backup))


def _lines(cls: type[TargetSettings], shown: ShownTarget, *, backup: bool) -> list[str]:
    if shown.problem:
        return [_comment(shown.problem)]
    try:
        if shown.from_environment:
            line = to_line(shown.target, {})
            return [*_variables(cls, shown, backup=backup), _comment(line) if backup else line]
        line = to_line(shown.target, _values(cls, shown, backup=backup))
    except BadSettings as error:  # a value that no line can hold
        return [_comment(str(error.about(str(shown.target))))]
    return [line if shown.enabled or not backup else _comment(line)]


def _comment(text: str) -> str:
    return "# " + " ".join(text.splitlines())


def _values(cls: type[TargetSettings], shown: ShownTarget, *, backup: bool) -> dict[str, str]:
    values = {name: key.default or "" for name, key in ordered_fields(cls).items()} | dict(shown.texts)
    left_out = set() if backup else _secrets(cls, shown.texts)
    left_out |= {"enable"} if shown.enabled else set()
    left_out |= set() if values["comment"] else {"comment"}
    off = {} if shown.enabled else {"enable": "off"}
    return {name: text for name, text in (values | off).items() if name not in left_out}


def _variables(cls: type[TargetSettings], shown: ShownTarget, *, backup: bool) -> Iterator[str]:
    texts = redacted(cls.type_name, shown.texts)
    left_out = set() if backup else _secrets(cls, shown.texts)
    for name in ordered_fields(cls):
        if texts.get(name) and name not in left_out:
            yield f"# {variable(cls, name, shown.target.name)}={texts[name]}"


def _secrets(cls: type[TargetSettings], texts: Mapping[str, str]) -> set[str]:
    keys = ordered_fields(cls)
    shown = redacted(cls.type_name, texts)
    return {name for name, text in shown.items() if text == REDACTED and (name not in keys or keys[name].secret)}


def get_config(call: AdminCall) -> Response:
    """Answer `GET get-config-kv?key=<section>[:<name>]`: the section's targets, or one; a name may be empty or `_`."""
    section, colon, name = call.parameter("key").partition(":")
    if section == SECTION:
        return call.encrypted(_api_text(call))
    cls = _section(section)
    shown = _shown(call.parts.registry, cls)
    if colon:
        wanted = name or UNNAMED
        names = [target.target.name for target in shown]
        shown = [target for target in shown if target.target.name == wanted]
        if not shown:
            close = nearest(wanted, names)
            hint = f"; did you mean {close}?" if close else ""
            message = f"there is no target `{wanted[:64]}` for subsystem `{section}`{hint}"
            raise S3Error("XMinioConfigError", message)
    return call.encrypted(section_text(cls, shown))


def set_config(call: AdminCall) -> Response:
    """Answer `PUT set-config-kv`: set the keys of each line's target; keys that are left out keep their values."""
    text = call.text()
    _refuse_elsewhere(text)
    if "\n" not in text.strip():
        api, targets = (parse_api_line(text), {}) if is_api_line(text) else ({}, joined([parse_line(text)]))
    else:
        api, others = take_api_lines(text)
        targets = joined(parse_lines(others))
    _set(call, targets, api)
    return Response(headers=_APPLIED)


def reset_config(call: AdminCall) -> Response:
    """Answer `DELETE del-config-kv`: reset keys of a target to their defaults, or without keys remove the target.

    A target in use is not removed, because its undelivered events would be lost.
    """
    text = call.text()
    _refuse_elsewhere(text)
    head, *keys = text.split() or [""]
    if head == SECTION:
        _set(call, {}, api_texts(dict.fromkeys(keys or fields_of(ApiSettings), "")))
        return Response(headers=_APPLIED)
    target, _ = parse_line(head)
    registry = call.parts.registry
    try:
        registry.target(target)
    except UnknownTarget:
        if target.name == UNNAMED and not keys:
            return Response(headers=_APPLIED)  # it is at its defaults already
        raise
    if keys:
        _set(call, {target: dict.fromkeys(keys, "")}, {})
    else:
        registry.remove(target)
        log.info("%s was removed by the key %s", target, call.seal.key.name)
    return Response(headers=_APPLIED)


def config_help(call: AdminCall) -> Response:
    """Answer `GET help-config-kv?subSys=<section>&key=<key>[&env]`: the sections, or the keys of one."""
    section, key = call.parameter("subSys").partition(":")[0], call.parameter("key")
    if not section:
        known = [_help(SECTION, ABOUT)]
        known += [_help(name, describe_section(cls), several=True) for name, cls in sections().items()]
        return json_answer({"subSys": "", "description": "", "multipleTargets": False, "keysHelp": known})
    variables = call.received.parameter("env") is not None
    if section == SECTION:
        keys, about, several = api_helps(variables=variables), ABOUT, False
    else:
        cls = _section(section)
        keys, about, several = key_helps(cls, variables=variables), describe_section(cls), True
    if key and key not in keys:
        close = nearest(key, keys)
        hint = f"; did you mean {close}?" if close else ""
        raise S3Error("XMinioConfigError", f"unknown key {key[:64]} for sub-system {section}{hint}")
    described = [
        _help(each.name, each.about, kind=each.kind, optional=not each.mandatory)
        for name, each in keys.items()
        if not key or name in (key, "enable")
    ]
    facts = {"subSys": section, "description": about, "multipleTargets": several}
    return json_answer(facts | {"keysHelp": described})


def export_config(call: AdminCall) -> Response:
    """Answer `GET config`: every section. Secrets are redacted, unlike MinIO's; an import keeps the stored ones."""
    registry = call.parts.registry
    texts = [section_text(cls, _shown(registry, cls), backup=True) for cls in sections().values()]
    return call.encrypted(_api_text(call) + "".join(texts))


def import_config(call: AdminCall) -> Response:
    """Answer `PUT config`: set the targets and the section `api` of a backup, also of a MinIO's, all or none.

    Targets that are not in it stay as they are. MinIO's other sections are left out.
    """
    api, text = take_api_lines(call.text(), backup=True)
    lines = text.split("\n")
    heads = [line.split(maxsplit=1) for line in lines]
    left_out = {head[0].partition(":")[0] for head in heads if head} & _ELSEWHERE
    if left_out:
        log.warning("import: left out %s, which are not settings of targets", ", ".join(sorted(left_out)))
    # A line without keys is that of a target of the environment. Empty lines keep the numbers of the others.
    kept = [
        line if len(head) > 1 and head[0].partition(":")[0] not in _ELSEWHERE else ""
        for line, head in zip(lines, heads, strict=True)
    ]
    _set(call, joined(parse_lines("\n".join(kept))), api)
    return Response()


def _set(call: AdminCall, settings: Mapping[TargetId, Mapping[str, str]], api: Mapping[str, str]) -> None:
    plan = set_keys(call.parts.registry, settings, api)
    call.parts.wakeups.request()  # new settings are tried at once, also of a target that was unavailable
    for change in plan.changes:
        log.info("%s was set by the key %s", change.resource, call.seal.key.name)
        for sentence in change.warnings:
            log.warning("%s: %s", change.resource, sentence)
    for key, text in plan.api.items():
        log.info("%s %s=%s was set by the key %s", SECTION, key, text, call.seal.key.name)


def _api_text(call: AdminCall) -> str:
    """Write the section `api` as MinIO does; a variable that takes precedence is a comment before the stored value."""
    variable = call.parts.settings.sync_events
    comment = f"# {fields_of(ApiSettings)['sync_events'].env}={variable}\n" if variable else ""
    return f"{comment}{SECTION} sync_events={sync_events('', call.parts.registry.api_settings()).value}\n"


def _section(section: str) -> type[TargetSettings]:
    _refuse_elsewhere(section)
    try:
        return section_type(section)
    except BadSettings as error:
        raise S3Error("XMinioConfigError", f"unknown sub-system {section[:64]}; {error.problems[0].hint}") from None


def _refuse_elsewhere(text: str) -> None:
    """Raise `S3Error` for text that begins with a section of MinIO that this service does not have."""
    head = re.match(r"\s*([^\s:]+)", text)
    if head and head[1] in _ELSEWHERE:
        known = ", ".join([SECTION, *sections()])
        raise S3Error("XMinioConfigError", f"{head[1]} is not part of this service, whose sections are {known}")


def _shown(registry: Registry, cls: type[TargetSettings]) -> list[ShownTarget]:
    """Return the targets of a section, the unnamed one first, whether it is set or not."""
    stored = [row for row in registry.targets() if row.target.type == cls.type_name]
    shown = sorted((_one(registry, row) for row in stored), key=lambda target: target.target.name != UNNAMED)
    return shown if shown and shown[0].target.name == UNNAMED else [unset_target(cls), *shown]


def _one(registry: Registry, row: StoredTarget) -> ShownTarget:
    texts, problem = {}, ""
    try:
        texts = registry.texts(row)
    except BadSettings as error:  # sealed with a key that is not known any more
        problem = str(error)
    return ShownTarget(row.target, texts, row.enabled, row.origin == "environment" and row.enabled, problem)


def _help(key: str, about: str, *, kind: str = "", optional: bool = True, several: bool = False) -> dict[str, object]:
    return {"key": key, "description": about, "optional": optional, "type": kind, "multipleTargets": several}


def info(call: AdminCall) -> Response:
    """Answer `GET info`: the ARNs of the enabled targets, their states, and this process as the only server.

    A target is online if a worker has opened it with its present settings, and nothing has failed at it since.
    """
    settings = call.parts.settings
    enabled = [stored for stored in call.parts.registry.targets() if stored.enabled]
    with call.parts.database.reading() as connection:
        targets = with_failing(connection, enabled)
    states = defaultdict(list)
    for stored in targets:
        state = "online" if stored.state == "running" and stored.opening == OPENED else "offline"
        states[stored.target.type].append({stored.target.name: {"status": state}})
    place = call.request.host
    server = {
        "state": "online",
        "endpoint": place,
        "uptime": call.uptime,
        "version": version("bucketwire"),
        "network": {place: "online"},
        "edition": "Bucketwire",
    }
    message = {
        "mode": "online",
        "region": settings.region,
        "sqsARN": [stored.target.arn(settings.region) for stored in targets],
        "buckets": {"count": count_buckets(call.parts.database)},
        "services": {"notifications": [{kind: named} for kind, named in states.items()]},
        "backend": {"backendType": "Bucketwire"},
        "servers": [server],
    }
    return json_answer(message)


def service(call: AdminCall) -> Response:
    """Answer `POST service?action=restart`: yes, and nothing happens, because settings are in force at once."""
    action = call.parameter("action")
    if action != "restart":
        message = f"{action[:40]} is not part of this service: stop its processes by what started them."
        raise S3Error("NotImplemented", message)
    if call.parameter("type") != "2":  # clients before 2024
        return Response()
    dry_run = call.parameter("dry-run") == "true"
    return json_answer({"action": action, "dryRun": dry_run, "results": [{"host": call.request.host}]})


# By method and the path below /minio/admin/v3/.
_CALLS: Mapping[tuple[str, str], Callable[[AdminCall], Response]] = {
    ("GET", "get-config-kv"): get_config,
    ("PUT", "set-config-kv"): set_config,
    ("DELETE", "del-config-kv"): reset_config,
    ("GET", "help-config-kv"): config_help,
    ("GET", "config"): export_config,
    ("PUT", "config"): import_config,
    ("GET", "info"): info,
    ("POST", "service"): service,
}


class AdminApp(SignedApp):
    """MinIO's admin API of one process, as a WSGI application. Every call needs a key with the scope admin."""

    route = ADMIN_ROUTE

    def __init__(self, parts: Services) -> None:
        super().__init__(parts)
        self._started = time.monotonic()

    def answer(self, request: Request, received: Received, number: str) -> Response:  # noqa: ARG002 - only S3 needs it
        """Verify the signature, for any region as MinIO does, and run the operation."""
        seal = self.authenticate(received, scope="admin", region="")
        uptime = int(time.monotonic() - self._started)
        name = unquote(received.path).removeprefix("/minio/admin/v3/")
        handler = _find_handler(received.method, name)
        via = f"{received.method} /minio/admin/v3/{name}"
        set_route(request.environ, via)
        try:
            with audit.acting(actor_of(seal, request, via)):
                return handler(AdminCall(self._parts, request, received, seal, uptime))
        except BadSettings as error:
            raise S3Error("XMinioConfigError", str(error)[:_MAX_MESSAGE_CHARACTERS]) from None
        except UnknownTarget as error:
            raise S3Error("XMinioConfigNotFoundError", str(error)) from None
        except ReadOnlyTarget as error:
            raise S3Error("XMinioAdminConfigEnvOverridden", str(error)) from None
        except TargetInUse as error:
            raise S3Error("XMinioConfigError", f"{error} (`bucketwire target rm --force`)") from None

    def refuse(self, error: S3Error, request: Request, number: str) -> Response:
        """Write the error as MinIO's admin API does."""
        members = {"Code": error.code, "Message": error.message, "Resource": request.path}
        body = orjson.dumps(members | {"RequestId": number, "HostId": ""})
        return Response(b"" if request.method == "HEAD" else body, error.status, mimetype="application/json")


def _find_handler(method: str, name: str) -> Callable[[AdminCall], Response]:
    handler = _CALLS.get((method, name))
    if handler is not None:
        return handler
    if _NO_HISTORY.fullmatch(name):
        raise S3Error("NotImplemented", "Bucketwire keeps no history of settings; `mc admin config export` saves them.")
    raise S3Error(
        "NotImplemented",
        f"{name[:80]} is not part of this service: Bucketwire delivers notifications, and has settings of targets "
        "(config), info and service restart. Send other commands to the storage.",
    )
