"""What every target type says of its secrets and files, whatever types there are."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from app.config.declared_types import SOURCE_TYPES, TYPES
from app.config.fields.addresses import RedisHost
from app.config.fields.field_types import Path
from app.config.fields.fields import Field, fields_of, host_settings
from app.config.sources.base import SourceSettings
from app.config.targets.base import TargetSettings
from app.config.targets.webhook import HttpHeaders

SECRET = "hunter2x"
WRITTEN: dict[str, tuple[Any, str]] = {  # a value with a secret, and the secret, of types with a form of their own
    "DsnString": (f"me:{SECRET}@tcp(h)/db", SECRET),
    "ConnectionString": (f"host=h password='{SECRET} {SECRET}'", f"{SECRET} {SECRET}"),
    "SigningSecrets": (f"whsec_a whsec_{SECRET}", SECRET),
    "HttpHeaders": (HttpHeaders().parse(f"X-Key: Token {SECRET}"), SECRET),
    "NodeUrls": (f"http://h/,http://me:{SECRET}%40@h/", f"{SECRET}@"),
}
FIELDS = [(name, field) for name, cls in TYPES.items() for field in fields_of(cls).values()]


def settings(type_name: str, **values: Any) -> TargetSettings:
    cls = TYPES[type_name]
    missing = {name: field.kind.empty for name, field in fields_of(cls).items() if field.required}
    return cls(**missing | values)


def names(cases: list[tuple[str, Field]]) -> list[str]:
    return [f"{type_name}.{field.name}" for type_name, field in cases]


def hides(field: Field) -> bool:
    if isinstance(field.kind, RedisHost):  # it refuses a login, and hides the one of a refused text
        return False
    return field.secret or SECRET not in field.kind.shown(f"http://me:{SECRET}@h/")


HIDING = [case for case in FIELDS if hides(case[1])]


@pytest.mark.parametrize(("type_name", "field"), HIDING, ids=names(HIDING))
def test_what_is_hidden_in_every_page_is_redacted_from_every_reason(type_name: str, field: Field) -> None:
    default = SECRET if field.secret else f"http://me:{SECRET}@h/"
    value, secret = WRITTEN.get(type(field.kind).__name__, (default, SECRET))
    assert secret in set(settings(type_name, **{field.name: value}).secrets())


PATHS = [case for case in FIELDS if isinstance(case[1].kind, Path) and case[1].name != "queue_dir"]


@pytest.mark.parametrize(("type_name", "field"), PATHS, ids=names(PATHS))
def test_every_file_that_a_setting_names_is_one_of_the_workers_host(type_name: str, field: Field) -> None:
    values = {"dsn_string": "me@tcp(h)/d", "broker": "tcp://h", "url": "amqp://h"}
    known = fields_of(TYPES[type_name])
    chosen = settings(type_name, **{name: text for name, text in values.items() if name in known} | {field.name: "/f"})
    assert (field.name, "/f") in set(chosen.host_files())


# Settings by which the workers may use what is their host's, besides those that are paths.
OF_HOST = {
    "amqp": {"url"},
    "bucket": {"inventory"},
    "mysql": {"dsn_string"},
    "postgresql": {"connection_string"},
    "redis": {"address"},
    "sqs": {"instance_role"},
}


@pytest.mark.parametrize("cls", [*TYPES.values(), *SOURCE_TYPES.values()])
def test_every_type_declares_what_is_of_the_workers_host(cls: type[TargetSettings | SourceSettings]) -> None:
    paths = {name for name, field in fields_of(cls).items() if isinstance(field.kind, Path)} - {"queue_dir"}
    assert set(host_settings(cls)) == paths | OF_HOST.get(cls.type_name, set())


def test_every_type_declares_what_the_pages_and_forms_show() -> None:
    for type_name, cls in TYPES.items():
        assert (cls.type_name, bool(cls.title), bool(cls.__doc__)) == (type_name, True, True)
        assert all(field.about for field in fields_of(cls).values())
    sections = list(chain.from_iterable((cls.section, cls.env) for cls in TYPES.values()))
    assert len(set(sections)) == len(sections)
