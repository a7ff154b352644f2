"""The reference page of settings, written from their declarations.

`python -m app.config.formats.reference_page` writes docs/reference/settings.md, which a test holds against the
declarations.
"""

import sys
from pathlib import Path

from app.config.fields.fields import Field, fields_of
from app.config.formats.environment import variable
from app.config.settings import Settings
from app.config.targets.base import TargetSettings
from app.config.targets.registry import TYPES

PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"
_INTRODUCTION = """\
# Settings

Written by `python -m app.config.formats.reference_page` from the declarations that also read and check the settings.

A target can be set in four ways, with the same keys and checks in each:

| way | form |
|---|---|
| variables | `MINIO_NOTIFY_<TYPE>_<KEY>[_<NAME>]`; `MINIO_NOTIFY_<TYPE>_ENABLE[_<NAME>]=on` makes the target |
| text | `bucketwire config set notify_<type>[:<name>] key=value …`, `bucketwire target set <type>:<name> key=value …` |
| a `config.json` of before 2019 | `bucketwire config import`; names in camel case, such as `queueLimit` |
| API | `PUT /v1/targets/<type>/<name>` with a JSON object of the keys |

Variables go before what is stored. A target with an unknown key, a bad value or a missing required key is refused
with the key, what is wrong with the value, and what would be right; no other target suffers for it.

A secret is kept encrypted and shown as `*redacted*`. In place of a secret, and of a URL that may hold one, can stand
`file:/path` or `env:NAME`: it is read where the service runs, each time that the target is opened. The file has to
stand directly in `BUCKETWIRE_SECRETS_DIR` (`/run/secrets` unless set, the same for API, workers and command line) and
be none that the service itself uses; the variable must not begin with `BUCKETWIRE_`, `MINIO_`, `AWS_` or `FLOWER_`.
This holds for settings from everywhere, `MINIO_NOTIFY_…` too; the service's own variables may name any file.

On/off is `on` or `off`, `true` or `false`, `1` or `0`, `enabled` or `disabled`. A duration is a number with its unit:
`300ms`, `10s`, `2m`, `1h30m`. An empty value is the default.
"""


def reference_page() -> str:
    """All settings in Markdown: what every target has, each type, and the service."""
    common = fields_of(TargetSettings)
    parts = [_INTRODUCTION, "## Every target", ""]
    parts += _table([(f"`…_{key.env or name.upper()}[_<NAME>]`", key) for name, key in common.items()])
    for cls in TYPES.values():
        # A type may have a key of its own in place of the common one.
        own = [(variable(cls, name), key) for name, key in fields_of(cls).items() if key != common.get(name)]
        parts += [
            "",
            f"## {cls.title}",
            "",
            f"Text `{cls.section}[:<name>] key=value …`, ARN type `{cls.type_name}`.",
            "",
        ]
        parts += _table([(f"`{name}[_<NAME>]`", key) for name, key in own])
    parts += ["", "## The service", ""]
    parts += _table(
        [(f"`{key.env or 'BUCKETWIRE_' + name.upper()}`", key) for name, key in fields_of(Settings).items()]
    )
    return "\n".join(parts) + "\n"


def _table(rows: list[tuple[str, Field]]) -> list[str]:
    lines = ["| key | variable | value | default | meaning |", "|---|---|---|---|---|"]
    for variable_name, key in rows:
        default = "required" if key.required else f"`{key.default}`" if key.default else "empty"
        notes = key.about + ("; secret" if key.secret else "")
        names = " or ".join(f"`{name}`" for name in (key.name, *key.aliases))
        cells = (names, variable_name, key.kind.label, default, notes)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


if __name__ == "__main__":
    sys.stdout.write(f"{PAGE}: {PAGE.write_text(reference_page())} characters\n")
