"""The JSON Schemas of src/cutrace/schemas, by the kind of output that they describe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any


def _kinds(schema: object) -> Iterator[str]:
    """The values of ``kind`` that a schema accepts."""
    if isinstance(schema, dict):
        kind = schema.get("properties", {}).get("kind", {})
        yield from kind.get("enum", [kind["const"]] if "const" in kind else [])
        for part in schema.values():
            yield from _kinds(part)


def _closed(schema: Any) -> Any:
    """Make a schema reject keys that it does not describe. Published schemas allow them, because keys may be added
    later."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: part if key == "if" else _closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


FILES = {path.name: json.loads(path.read_text()) for path in files("cutrace").joinpath("schemas").iterdir()}
#: The file of the schema of each kind.
KINDS = {kind: name for name, schema in FILES.items() for kind in _kinds(schema)}


def check(data: dict[str, Any]) -> None:
    """Fail if an output has no schema, does not match it, or has a key that it does not describe."""
    from jsonschema import Draft202012Validator

    schema = FILES[KINDS[data["kind"]]]
    Draft202012Validator(_closed(schema)).validate(data)
    assert schema["$id"].endswith(f":{data['format']}")
