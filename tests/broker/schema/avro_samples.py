"""Random Avro schemas, changes of them, and data: for holding verdicts and checks against fastavro."""

from __future__ import annotations

import copy
import random
from typing import Any

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTED = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"],
            "string": ["bytes"], "bytes": ["string"]}  # fmt: skip


class Schemas:
    """Schemas from one seed. Named types are R0, E1, …; a later one may refer to an earlier one by name."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._named: list[str] = []
        self._count = 0

    def schema(self, depth: int = 0) -> Any:
        roll = self.random.random()
        if depth > 3 or roll < 0.4:
            if self._named and roll < 0.06:
                return self.random.choice(self._named)
            return self.random.choice(PRIMITIVES)
        if roll < 0.5:
            return {"type": "array", "items": self.schema(depth + 1)}
        if roll < 0.58:
            return {"type": "map", "values": self.schema(depth + 1)}
        if roll < 0.66:
            return {"type": "enum", "name": self._name("E"), "symbols": self.random.sample(list("ABCDE"), 3)}
        if roll < 0.71:
            return {"type": "fixed", "name": self._name("F"), "size": self.random.randrange(1, 5)}
        if roll < 0.82:
            return self._union(depth)
        return self.record(depth)

    def record(self, depth: int = 0) -> dict[str, Any]:
        name = self._name("R", later=True)
        fields = [
            {"name": f"f{index}", "type": self.schema(depth + 1)}
            for index in range(self.random.randrange(1, 5))
        ]
        self._named.append(name)
        return {"type": "record", "name": name, "fields": fields}

    def _union(self, depth: int) -> list[Any]:
        branches: dict[str, Any] = {}
        for _ in range(self.random.randrange(1, 4)):
            branch = self.schema(depth + 2)
            if not isinstance(branch, list):
                kind = branch if isinstance(branch, str) else branch.get("name", branch["type"])
                branches.setdefault(kind, branch)
        return list(branches.values()) or ["null"]

    def _name(self, letter: str, *, later: bool = False) -> str:
        name = f"{letter}{self._count}"
        self._count += 1
        if not later:
            self._named.append(name)
        return name

    def changed(self, schema: Any) -> Any:
        """A schema a person might register next: a few small changes, good and bad."""
        made = copy.deepcopy(schema)
        for _ in range(self.random.randrange(1, 4)):
            made = self._change(made)
        return made

    def _change(self, schema: Any) -> Any:
        pick = self.random.random()
        if isinstance(schema, str):
            if pick < 0.5 and schema in PROMOTED:
                return self.random.choice(PROMOTED[schema])
            if pick < 0.7 and schema != "null":
                return ["null", schema]
            return self.random.choice(PRIMITIVES) if pick < 0.8 else schema
        if isinstance(schema, list):
            if pick < 0.3 and "null" not in schema:
                return ["null", *schema]
            if pick < 0.45 and len(schema) > 1:
                return schema[1:]
            at = self.random.randrange(len(schema))
            inner = self._change(schema[at])
            return schema if isinstance(inner, list) else [*schema[:at], inner, *schema[at + 1 :]]
        match schema["type"]:
            case "array":
                return {**schema, "items": self._change(schema["items"])}
            case "map":
                return {**schema, "values": self._change(schema["values"])}
            case "enum":
                if pick < 0.4:
                    return {
                        **schema,
                        "symbols": [*schema["symbols"], "Z"]
                        if "Z" not in schema["symbols"]
                        else schema["symbols"],
                    }
                if pick < 0.7:
                    return {
                        **schema,
                        "symbols": schema["symbols"][:-1] or ["A"],
                        "default": schema["symbols"][0],
                    }
                return {**schema, "symbols": schema["symbols"][1:] or ["A"]}
            case "fixed":
                return schema if pick < 0.8 else {**schema, "size": schema["size"] + 1}
            case _:
                return self._change_record(schema, pick)

    def _change_record(self, schema: dict[str, Any], pick: float) -> dict[str, Any]:
        fields = list(schema["fields"])
        if pick < 0.25:
            self._count += 1
            fields.insert(
                self.random.randrange(len(fields) + 1),
                {"name": f"n{self._count}", "type": "int", "default": 7},
            )
        elif pick < 0.3:
            self._count += 1
            fields.append({"name": f"n{self._count}", "type": "string"})
        elif pick < 0.45 and len(fields) > 1 and not any(_defines(each["type"]) for each in fields):
            fields.pop(self.random.randrange(len(fields)))
        elif pick < 0.55:
            at = self.random.randrange(len(fields))
            self._count += 1
            fields[at] = {**fields[at], "name": f"n{self._count}", "aliases": [fields[at]["name"]]}
        elif pick < 0.6:
            self.random.shuffle(fields) if not any(_defines(each["type"]) for each in fields) else None
        else:
            at = self.random.randrange(len(fields))
            fields[at] = {**fields[at], "type": self._change(fields[at]["type"])}
            fields[at].pop("default", None)
        return {**schema, "fields": fields}


def _defines(schema: Any) -> bool:
    """Whether a named type is defined inside: others may refer to it."""
    if isinstance(schema, list):
        return any(map(_defines, schema))
    return isinstance(schema, dict) and (
        "name" in schema or _defines(schema.get("items", schema.get("values")))
    )


class Data:
    """Random data of a schema, in fastavro's Python form."""

    def __init__(self, seed: int, schema: Any) -> None:
        self.random = random.Random(seed)
        self._named: dict[str, Any] = {}
        self._schema = schema
        self._learn(schema)

    def _learn(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._learn(branch)
        elif isinstance(schema, dict):
            if "name" in schema:
                self._named[schema["name"]] = schema
            for inner in (
                schema.get("items"),
                schema.get("values"),
                *(f["type"] for f in schema.get("fields", [])),
            ):
                self._learn(inner)

    def datum(self) -> Any:
        return self._datum(self._schema)

    def _datum(self, schema: Any) -> Any:
        roll = self.random
        if isinstance(schema, list):
            branch = roll.choice(schema)
            name = branch if isinstance(branch, str) else branch.get("name", branch["type"])
            return (name, self._datum(branch))  # fastavro: which branch
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "null":
                return None
            case "boolean":
                return roll.random() < 0.5
            case "int":
                return roll.choice([0, 1, -1, 2**31 - 1, -(2**31), roll.randrange(1000)])
            case "long":
                return roll.choice([0, -1, 2**63 - 1, -(2**63), roll.randrange(10**6)])
            case "float" | "double":
                return float(roll.randrange(-1000, 1000))
            case "bytes":
                return roll.choice([b"", b"abc", "Grüße".encode()])
            case "string":
                return roll.choice(["", "abc", "Grüße ☕"])
            case "fixed":
                return roll.randbytes(schema["size"])
            case "enum":
                return roll.choice(schema["symbols"])
            case "array":
                return [self._datum(schema["items"]) for _ in range(roll.randrange(3))]
            case "map":
                return {str(i): self._datum(schema["values"]) for i in range(roll.randrange(3))}
            case "record":
                return {field["name"]: self._datum(field["type"]) for field in schema["fields"]}
            case _:
                return self._datum(self._named[kind])
