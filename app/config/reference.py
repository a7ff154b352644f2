"""The reference page of settings, written from their declarations."""

from app.config.environment import variable
from app.config.keys import Key, keys_of
from app.config.settings import Settings
from app.config.targets import TYPES, TargetSettings


def reference_page() -> str:
    """All settings in Markdown: what every target has, each type, and the service."""
    common = keys_of(TargetSettings)
    parts = ["# Settings", "", "## Every target", ""]
    parts += _table([(f"`…_{key.env or name.upper()}[_<NAME>]`", key) for name, key in common.items()])
    for cls in TYPES.values():
        own = [(variable(cls, name), key) for name, key in keys_of(cls).items() if name not in common]
        parts += [
            "",
            f"## {cls.title}",
            "",
            f"Text `{cls.section}[:<name>] key=value …`, ARN type `{cls.type_name}`.",
            "",
        ]
        parts += _table([(f"`{name}[_<NAME>]`", key) for name, key in own])
    parts += ["", "## The service", ""]
    parts += _table([(f"`{key.env or 'BUCKETWIRE_' + name.upper()}`", key) for name, key in keys_of(Settings).items()])
    return "\n".join(parts) + "\n"


def _table(rows: list[tuple[str, Key]]) -> list[str]:
    lines = ["| key | variable | value | default | meaning |", "|---|---|---|---|---|"]
    for variable_name, key in rows:
        default = "required" if key.required else f"`{key.default}`" if key.default else "empty"
        notes = key.about + ("; secret" if key.secret else "")
        names = " or ".join(f"`{name}`" for name in (key.name, *key.aliases))
        cells = (names, variable_name, key.kind.label, default, notes)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines
