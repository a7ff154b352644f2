"""JSON schemas of Kubernetes' objects for kubeconform, strict, from the API server's own OpenAPI description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(swagger: Path, folder: Path) -> int:
    """Write a schema for each kind that has one group and version; return their number. Unknown members are refused."""
    definitions: dict[str, Any] = json.loads(swagger.read_text())["definitions"]
    for name, definition in definitions.items():
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
        if name.endswith(("intstr.IntOrString", "api.resource.Quantity")):
            definition.clear()
            definition["type"] = ["string", "number"]
    written = 0
    for definition in definitions.values():
        kinds = definition.get("x-kubernetes-group-version-kind", [])
        if len(kinds) == 1:
            [kind] = kinds
            used: set[str] = set()
            _collect(definition, definitions, used)
            (folder / _file(kind)).write_text(json.dumps(_schema(definition, kind, definitions, used)))
            written += 1
    return written


def _file(kind: dict[str, str]) -> str:
    """The name by which kubeconform finds it: `deployment-apps-v1.json`."""
    parts = (kind["kind"].lower(), kind["group"].partition(".")[0], kind["version"])
    return "-".join(filter(None, parts)) + ".json"


def _schema(
    definition: dict[str, Any], kind: dict[str, str], definitions: dict[str, Any], used: set[str]
) -> dict[str, Any]:
    version = f"{kind['group']}/{kind['version']}" if kind["group"] else kind["version"]
    named = {"apiVersion": {"enum": [version]}, "kind": {"enum": [kind["kind"]]}}
    return {
        **definition,
        "properties": {**definition["properties"], **named},
        "required": sorted({*definition.get("required", []), *named}),
        "definitions": {name: definitions[name] for name in used},
    }


def _collect(node: Any, definitions: dict[str, Any], used: set[str]) -> None:
    """Add the names of all definitions that a schema refers to."""
    if isinstance(node, list):
        for member in node:
            _collect(member, definitions, used)
    elif isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str) and (name := reference.rpartition("/")[2]) not in used:
            used.add(name)
            _collect(definitions[name], definitions, used)
        for member in node.values():
            _collect(member, definitions, used)
