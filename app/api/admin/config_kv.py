"""The settings of targets in MinIO's admin API: `mc admin config get|set|reset|export|import`, and their help."""

import logging
import re
from collections.abc import Mapping

from werkzeug.wrappers import Response

from app.api.admin.call import AdminCall, json_answer
from app.api.admin.config_text import ShownTarget, section_text, unset
from app.api.s3.errors import S3Error
from app.config.arn import UNNAMED, TargetId
from app.config.errors import BadSettings, nearest
from app.config.formats.config_help import describe_section, key_helps
from app.config.target_settings import parse_line, parse_lines
from app.config.targets.base import TargetSettings
from app.config.targets.registry import section_type, sections
from app.manifest.changes import joined, set_keys
from app.outbox.registry import Registry
from app.outbox.targets import StoredTarget, UnknownTarget

log = logging.getLogger("bucketwire.api")

# MinIO's sections of settings that are not targets: a backup of a MinIO has them.
_ELSEWHERE = frozenset(
    {
        "api", "audit_kafka", "audit_webhook", "batch", "browser", "cache", "callhome", "compression", "crawler",
        "credentials", "drive", "etcd", "heal", "identity_ldap", "identity_openid", "identity_plugin", "identity_tls",
        "ilm", "lambda_webhook", "logger_webhook", "policy_opa", "policy_plugin", "region", "scanner", "site",
        "storage_class", "subnet",
    }
)  # fmt: skip
_APPLIED = {"x-minio-config-applied": "true"}  # so that `mc` asks for no restart


def get(call: AdminCall) -> Response:
    """Answer `GET get-config-kv?key=<section>[:<name>]`: the section's targets, or one; a name may be empty or `_`."""
    section, colon, name = call.parameter("key").partition(":")
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


def set_(call: AdminCall) -> Response:
    """Answer `PUT set-config-kv`: set the keys of each line's target; keys that are left out keep their values."""
    text = call.text()
    _refuse_elsewhere(text)
    _set(call, joined([parse_line(text)] if "\n" not in text.strip() else parse_lines(text)))
    return Response(headers=_APPLIED)


def delete(call: AdminCall) -> Response:
    """Answer `DELETE del-config-kv`: reset keys of a target to their defaults, or without keys remove the target.

    A target in use is not removed, because its undelivered events would be lost.
    """
    text = call.text()
    _refuse_elsewhere(text)
    head, *keys = text.split() or [""]
    target, _ = parse_line(head)
    registry = call.parts.registry
    try:
        registry.target(target)
    except UnknownTarget:
        if target.name == UNNAMED and not keys:
            return Response(headers=_APPLIED)  # it is at its defaults already
        raise
    if keys:
        _set(call, {target: dict.fromkeys(keys, "")})
    else:
        registry.remove(target)
        log.info("%s was removed by the key %s", target, call.seal.key.name)
    return Response(headers=_APPLIED)


def help_(call: AdminCall) -> Response:
    """Answer `GET help-config-kv?subSys=<section>&key=<key>[&env]`: the sections, or the keys of one."""
    section, key = call.parameter("subSys").partition(":")[0], call.parameter("key")
    if not section:
        known = [_help(name, describe_section(cls), several=True) for name, cls in sections().items()]
        return json_answer({"subSys": "", "description": "", "multipleTargets": False, "keysHelp": known})
    cls = _section(section)
    keys = key_helps(cls, variables=call.received.parameter("env") is not None)
    if key and key not in keys:
        close = nearest(key, keys)
        hint = f"; did you mean {close}?" if close else ""
        raise S3Error("XMinioConfigError", f"unknown key {key[:64]} for sub-system {section}{hint}")
    described = [
        _help(each.name, each.about, kind=each.kind, optional=not each.mandatory)
        for name, each in keys.items()
        if not key or name in (key, "enable")
    ]
    about = {"subSys": section, "description": describe_section(cls), "multipleTargets": True}
    return json_answer(about | {"keysHelp": described})


def export(call: AdminCall) -> Response:
    """Answer `GET config`: every section. Secrets are redacted, unlike MinIO's; an import keeps the stored ones."""
    registry = call.parts.registry
    texts = [section_text(cls, _shown(registry, cls), backup=True) for cls in sections().values()]
    return call.encrypted("".join(texts))


def import_(call: AdminCall) -> Response:
    """Answer `PUT config`: set the targets of a backup, also of a MinIO's, all of them or none.

    Targets that are not in it stay as they are. MinIO's other sections are left out.
    """
    lines = call.text().split("\n")
    heads = [line.split(maxsplit=1) for line in lines]
    left_out = {head[0].partition(":")[0] for head in heads if head} & _ELSEWHERE
    if left_out:
        log.warning("import: left out %s, which are not settings of targets", ", ".join(sorted(left_out)))
    # A line without keys is that of a target of the environment. Empty lines keep the numbers of the others.
    kept = [
        line if len(head) > 1 and head[0].partition(":")[0] not in _ELSEWHERE else ""
        for line, head in zip(lines, heads, strict=True)
    ]
    _set(call, joined(parse_lines("\n".join(kept))))
    return Response()


def _set(call: AdminCall, settings: Mapping[TargetId, Mapping[str, str]]) -> None:
    plan = set_keys(call.parts.registry, settings)
    call.parts.wakeups.request()  # new settings are tried at once, also of a target that was unavailable
    for change in plan.changes:
        log.info("%s was set by the key %s", change.target, call.seal.key.name)
        for sentence in change.warnings:
            log.warning("%s: %s", change.target, sentence)


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
        known = ", ".join(sections())
        raise S3Error("XMinioConfigError", f"{head[1]} is not part of this service, whose sections are {known}")


def _shown(registry: Registry, cls: type[TargetSettings]) -> list[ShownTarget]:
    """Return the targets of a section, the unnamed one first, whether it is set or not."""
    stored = [row for row in registry.targets() if row.target.type == cls.type_name]
    shown = sorted((_one(registry, row) for row in stored), key=lambda target: target.target.name != UNNAMED)
    return shown if shown and shown[0].target.name == UNNAMED else [unset(cls), *shown]


def _one(registry: Registry, row: StoredTarget) -> ShownTarget:
    texts, problem = {}, ""
    try:
        texts = registry.texts(row)
    except BadSettings as error:  # sealed with a key that is not known any more
        problem = str(error.about(str(row.target)))
    return ShownTarget(row.target, texts, row.enabled, row.origin == "environment" and row.enabled, problem)


def _help(key: str, about: str, *, kind: str = "", optional: bool = True, several: bool = False) -> dict[str, object]:
    return {"key": key, "description": about, "optional": optional, "type": kind, "multipleTargets": several}
