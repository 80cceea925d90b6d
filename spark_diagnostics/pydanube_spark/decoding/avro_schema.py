"""An Avro schema for the decoder: names resolved, and the Arrow type of each part.

A union of null and one type is that type; of several, a struct `member0, member1, …` of which one is not null, as in
Spark's own `from_avro`. A type within itself is JSON text, since no column can hold it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pydanube_core.errors import MissingExtra

from pydanube_spark.decoding.fault import Fault

MAX_PRECISION: Final = 38  # of a decimal in Spark

#: a type with all that is said of it; `type` is the name of a type of Avro's own
Node = Mapping[str, Any]

_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_TIME: Final = pa.timestamp("us", tz="UTC")
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _TIME,
    ("long", "timestamp-micros"): _TIME,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("fixed", "uuid"): pa.string(),
}
_WIDE: Final = ({"int", "long"}, {"float", "double"})


class AvroTree:
    """The tree of one Avro schema."""

    def __init__(self, definition: bytes) -> None:
        try:
            from fastavro.schema import parse_schema
        except ImportError as error:
            raise MissingExtra(
                "Avro payloads need fastavro: pip install 'pydanube[spark,schema]'", extra="schema"
            ) from error
        self._named: dict[str, Any] = {}
        self.root: Any = parse_schema(json.loads(definition), named_schemas=self._named, _write_hint=False)

    def node(self, schema: Any) -> Node:
        """Return the type of a part of the schema, references resolved."""
        found = schema
        while True:
            if isinstance(found, list):
                return {"type": "union", "branches": found}
            if isinstance(found, str):
                if found in _PLAIN:
                    return {"type": found}
                found = self._named[found]
            elif isinstance(found["type"], str) and (found["type"] not in self._named):
                return found if found["type"] != "error" else {**found, "type": "record"}
            else:
                found = found["type"]

    def arrow(self, schema: Any, above: frozenset[str] = frozenset()) -> Any:
        """Return the Arrow type of a part."""
        node = self.node(schema)
        match node["type"]:
            case "record":
                if node["name"] in above:
                    return pa.string()
                inside = above | {node["name"]}
                return pa.struct([(f["name"], self.arrow(f["type"], inside)) for f in node["fields"]])
            case "array":
                return pa.list_(self.arrow(node["items"], above))
            case "map":
                return pa.map_(pa.string(), self.arrow(node["values"], above))
            case "union":
                members = branches(self, node)
                wide = wide_type(self, members)
                if wide is not None:
                    return _PLAIN[wide]
                if len(members) == 1:
                    return self.arrow(members[0], above)
                return pa.struct(
                    [(f"member{number}", self.arrow(each, above)) for number, each in enumerate(members)]
                )
            case kind:
                return _leaf(kind, node)


def branches(tree: AvroTree, node: Node) -> list[Any]:
    """Return the branches of a union without null."""
    return [each for each in node["branches"] if tree.node(each)["type"] != "null"] or ["null"]


def wide_type(tree: AvroTree, members: list[Any]) -> str | None:
    """Return the number type that holds all of a union's, if they are all integers or all floats."""
    if len(members) != 2:
        return None
    nodes = [tree.node(each) for each in members]
    kinds = {node["type"] for node in nodes}
    if any("logicalType" in node for node in nodes) or kinds not in _WIDE:
        return None
    return "long" if "long" in kinds else "double"


def _leaf(kind: str, node: Node) -> Any:
    logical = node.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(node["precision"]), int(node.get("scale", 0))
        return pa.decimal128(precision, scale) if precision <= MAX_PRECISION else pa.string()
    if logical == "uuid" and kind == "fixed" and node["size"] != 16:
        return pa.binary()
    found = _LOGICAL.get((kind, str(logical)), _PLAIN.get(kind))
    if found is None:
        raise Fault(f"Avro has no type {kind}")
    return found
