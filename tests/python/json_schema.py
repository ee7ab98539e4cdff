"""The part of JSON Schema (draft 2020-12) that the schema of the report uses; an unknown keyword is an error."""

from __future__ import annotations

from typing import Any

_NOTES = {"$schema", "$id", "$defs", "title", "description"}
_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, path: str = "$") -> list[str]:
    """What is wrong with a value; empty if nothing is."""
    root = schema if root is None else root
    found: list[str] = []
    for keyword, wanted in schema.items():
        if keyword in _NOTES:
            continue
        if keyword == "$ref":
            target: Any = root
            for part in wanted.removeprefix("#/").split("/"):
                target = target[part]
            found += violations(value, target, root, path)
        elif keyword == "type":
            if not any(_has_type(value, name) for name in ([wanted] if isinstance(wanted, str) else wanted)):
                found.append(f"{path}: expected {wanted}, got {value!r:.80}")
        elif keyword == "const":
            if value != wanted:
                found.append(f"{path}: expected {wanted!r}, got {value!r:.80}")
        elif keyword == "enum":
            if value not in wanted:
                found.append(f"{path}: expected one of {wanted}, got {value!r:.80}")
        elif keyword == "minimum":
            if _is_number(value) and value < wanted:
                found.append(f"{path}: expected at least {wanted}, got {value}")
        elif keyword == "maximum":
            if _is_number(value) and value > wanted:
                found.append(f"{path}: expected at most {wanted}, got {value}")
        elif keyword == "minItems":
            if isinstance(value, list) and len(value) < wanted:
                found.append(f"{path}: expected at least {wanted} items, got {len(value)}")
        elif keyword == "maxItems":
            if isinstance(value, list) and len(value) > wanted:
                found.append(f"{path}: expected at most {wanted} items, got {len(value)}")
        elif keyword == "required":
            if isinstance(value, dict):
                found += [f"{path}: {name} is missing" for name in wanted if name not in value]
        elif keyword == "properties":
            if isinstance(value, dict):
                for name, inner in wanted.items():
                    if name in value:
                        found += violations(value[name], inner, root, f"{path}.{name}")
        elif keyword == "additionalProperties":
            if isinstance(value, dict) and wanted is False:
                extra = set(value) - set(schema.get("properties", {}))
                found += [f"{path}: {name} is not in the schema" for name in sorted(extra)]
        elif keyword == "items":
            if isinstance(value, list):
                for index, item in enumerate(value):
                    found += violations(item, wanted, root, f"{path}[{index}]")
        else:
            raise NotImplementedError(f"{path}: keyword {keyword}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _has_type(value: Any, name: str) -> bool:
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        # JSON has no infinity and no "not a number".
        return _is_number(value) and abs(value) != float("inf") and value == value
    return isinstance(value, _TYPES[name])
