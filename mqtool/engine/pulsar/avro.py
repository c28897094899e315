"""Checks whether data written with one Avro schema can be read with another.

Cost: bounded; schemas that would take longer are refused.
(Rules: the specification of Avro, "Schema Resolution".)
"""

import json
from typing import Any

from mqtool.errors import FormatError

_PRIMITIVE = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_MAX_DEPTH = 64
_MAX_STEPS = 100_000


def parse_schema(data: bytes) -> Any:
    """Return a schema in which each name is replaced by the type that it refers to.

    Raises:
        FormatError: it is not an Avro schema.
    """
    try:
        return _Parser().parse(json.loads(data), "", 0)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not an Avro schema: {error}", 0) from error


def can_read(reader: Any, writer: Any) -> bool:
    """Tell whether all data written with one parsed schema can be read with another.

    Raises:
        FormatError: the comparison takes too long.
    """
    return _Comparison().can_read(reader, writer)


class _Parser:
    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def parse(self, schema: Any, space: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise FormatError(f"an Avro schema deeper than {_MAX_DEPTH}", 0)
        if isinstance(schema, list):
            return {"type": "union", "branches": [self.parse(branch, space, depth + 1) for branch in schema]}
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return {"type": schema}
            full = schema if "." in schema or not space else f"{space}.{schema}"
            if (known := self._names.get(full, self._names.get(schema))) is None:
                raise FormatError(f"an Avro schema with an unknown type {schema}", 0)
            return known
        if not isinstance(schema, dict):
            raise FormatError("an Avro schema that is not a type", 0)
        kind = schema.get("type")
        if not isinstance(kind, str):
            return self.parse(kind, space, depth + 1)
        match kind:
            case "array":
                return {"type": kind, "of": self.parse(schema.get("items"), space, depth + 1)}
            case "map":
                return {"type": kind, "of": self.parse(schema.get("values"), space, depth + 1)}
            case "record" | "error" | "enum" | "fixed":
                return self._parse_named(schema, kind, space, depth)
        return self.parse(kind, space, depth + 1)

    def _parse_named(self, schema: dict[str, Any], kind: str, space: str, depth: int) -> Any:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise FormatError(f"an Avro {kind} without a name", 0)
        if "." in name:
            space = name.rpartition(".")[0]
        elif schema.get("namespace") is not None:
            space = str(schema["namespace"])
        short = name.rpartition(".")[2]
        parsed: dict[str, Any] = {"type": "record" if kind == "error" else kind, "name": short}
        self._names[f"{space}.{short}" if space else short] = parsed
        if kind == "enum":
            parsed["symbols"] = [str(symbol) for symbol in _list(schema.get("symbols"))]
            parsed["has_default"] = "default" in schema
        elif kind == "fixed":
            parsed["size"] = schema.get("size")
        else:
            parsed["fields"] = fields = {}
            for field in _list(schema.get("fields")):
                if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                    raise FormatError("an Avro record with a field that has no name", 0)
                fields[field["name"]] = {
                    "type": self.parse(field.get("type"), space, depth + 1),
                    "has_default": "default" in field,
                    "aliases": [str(alias) for alias in _list(field.get("aliases", []))],
                }
        return parsed


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError("an Avro schema with something other than a list", 0)
    return value


class _Comparison:
    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}  # of records; readable while under comparison
        self._steps = 0

    def can_read(self, reader: Any, writer: Any) -> bool:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise FormatError("Avro schemas that are too large to compare", 0)
        if writer["type"] == "union":
            return all(self.can_read(reader, branch) for branch in writer["branches"])
        if reader["type"] == "union":
            return any(self.can_read(branch, writer) for branch in reader["branches"])
        kind = writer["type"]
        if reader["type"] != kind:
            return reader["type"] in _PROMOTIONS.get(kind, ())
        match kind:
            case "array" | "map":
                return self.can_read(reader["of"], writer["of"])
            case "enum":
                is_known = reader["has_default"] or {*writer["symbols"]} <= {*reader["symbols"]}
                return reader["name"] == writer["name"] and is_known
            case "fixed":
                return (reader["name"], reader["size"]) == (writer["name"], writer["size"])
            case "record":
                return self._can_read_record(reader, writer)
        return True

    def _can_read_record(self, reader: Any, writer: Any) -> bool:
        pair = id(reader), id(writer)
        if pair not in self._known:
            self._known[pair] = True
            self._known[pair] = all(
                self._can_read_field(name, field, writer["fields"]) for name, field in reader["fields"].items()
            )
        return self._known[pair]

    def _can_read_field(self, name: str, field: Any, written: dict[str, Any]) -> bool:
        counterpart = next(
            (written[candidate] for candidate in (name, *field["aliases"]) if candidate in written), None
        )
        return field["has_default"] if counterpart is None else self.can_read(field["type"], counterpart["type"])
