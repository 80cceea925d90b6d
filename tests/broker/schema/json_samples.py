"""Random JSON Schemas, changes of them, and instances that are likely to be valid."""

from __future__ import annotations

import copy
import random
from typing import Any

NAMES = ["a", "b", "c", "x1", "x2"]
WORDS = ["", "a", "ab", "abc", "xyz", "2024-01-01"]


def of_known_names(schema: Any) -> Any:
    """The schema of documents that have only names it speaks of (`unevaluatedProperties`, dialects from 2019 on)."""
    made = _of_known_names(schema)
    return {"unevaluatedProperties": False, **made} if isinstance(made, dict) else made


def _of_known_names(schema: Any) -> Any:
    """The same of a schema in place: the one around it says that there are no other names."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if made.get("additionalProperties") in (True, {}):
        del made["additionalProperties"]
    for word, value in made.items():
        match word:
            case "properties" | "patternProperties":
                made[word] = {name: of_known_names(inner) for name, inner in value.items()}
            case "items" | "contains" | "additionalProperties" | "unevaluatedItems":
                made[word] = of_known_names(value)
            case "prefixItems":
                made[word] = [of_known_names(inner) for inner in value]
            case "allOf" | "anyOf" | "oneOf":
                made[word] = [_of_known_names(inner) for inner in value]
            case "$defs":
                made[word] = {name: _of_known_names(inner) for name, inner in value.items()}
    return made


class Schemas:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._refers = True

    def schema(self, depth: int = 0) -> Any:
        roll, pick = self.random, self.random.random()
        if depth == 0 or (depth < 3 and pick < 0.25):
            return self._object(depth)
        if pick < 0.35 and depth < 3:
            made: dict[str, Any] = {"type": "array", "items": self.schema(depth + 1)}
            self._maybe(made, "maxItems", roll.randrange(3))
            self._maybe(made, "minItems", roll.randrange(2))
            self._maybe(made, "uniqueItems", True)
            if roll.random() < 0.2:
                made["prefixItems"] = [self.schema(depth + 1)]
            return made
        if pick < 0.42 and depth < 3:
            word = roll.choice(["anyOf", "oneOf", "allOf"])
            return {word: [self.schema(depth + 1) for _ in range(roll.randrange(1, 3))]}
        if pick < 0.5:
            return {"enum": roll.sample([1, 2, "a", "ab", None, True, [1], {"a": 1}], 3)}
        if pick < 0.53 and self._refers:
            return {"$ref": "#/$defs/shared"}
        if pick < 0.56:
            return roll.choice([True, {}, {"const": "a"}, {"not": {"type": "string"}}])
        if pick < 0.75:
            made = {"type": roll.choice(["integer", "number", ["integer", "null"]])}
            self._maybe(made, "minimum", roll.randrange(-3, 3))
            self._maybe(made, "exclusiveMaximum", roll.randrange(3, 8))
            self._maybe(made, "multipleOf", roll.randrange(1, 4))
            return made
        made = {"type": roll.choice(["string", "string", ["string", "boolean"], "boolean", "null"])}
        self._maybe(made, "minLength", roll.randrange(2))
        self._maybe(made, "maxLength", roll.randrange(1, 5))
        self._maybe(made, "pattern", roll.choice(["^a", "b", "^[a-z]*$"]))
        return made

    def whole(self) -> Any:
        """A document: an object at the root, and one shared definition."""
        made = self.schema()
        self._refers = False  # a definition that is nothing but itself has no meaning
        made["$defs"] = {"shared": self.schema(2)}
        return made

    def _object(self, depth: int) -> dict[str, Any]:
        roll = self.random
        names = roll.sample(NAMES, roll.randrange(1, 4))
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.schema(depth + 1) for name in names},
        }
        self._maybe(made, "required", roll.sample(names, roll.randrange(len(names) + 1)))
        self._maybe(made, "additionalProperties", roll.choice([False, {"type": "string"}, True]))
        if roll.random() < 0.15:
            made["patternProperties"] = {"^x": self.schema(depth + 2)}
        if roll.random() < 0.1:
            made["maxProperties"] = roll.randrange(2, 5)
        return made

    def _maybe(self, made: dict[str, Any], word: str, value: Any) -> None:
        if self.random.random() < 0.35:
            made[word] = value

    def changed(self, schema: Any) -> Any:
        made = copy.deepcopy(schema)
        for _ in range(self.random.randrange(1, 3)):
            made = self._change(made)
        if isinstance(made, dict):
            made.setdefault("$defs", schema.get("$defs", {}))
        return made

    def _change(self, schema: Any) -> Any:
        roll = self.random
        if not isinstance(schema, dict) or not schema:
            return schema
        word = roll.choice([*schema])
        value = schema[word]
        if roll.random() < 0.25 and word not in ("type", "properties", "$ref", "$defs"):
            return {name: inner for name, inner in schema.items() if name != word}  # fewer demands
        match word:
            case "properties":
                name = roll.choice(NAMES)
                if name in value and roll.random() < 0.7:
                    return {**schema, word: {**value, name: self._change(value[name])}}
                if name in value:
                    return {**schema, word: {n: s for n, s in value.items() if n != name}}
                return {**schema, word: {**value, name: self.schema(2)}}
            case "type":
                wider = {"integer": "number", "string": ["string", "null"], "boolean": ["boolean", "integer"]}
                known = isinstance(value, str) and value in wider
                return {**schema, word: wider[value] if known and roll.random() < 0.7 else value}
            case "required":
                return {
                    **schema,
                    word: value[1:] if roll.random() < 0.7 else [*value, "b"] if "b" not in value else value,
                }
            case "enum":
                return {**schema, word: [*value, 99] if roll.random() < 0.7 else value[1:]}
            case "maxItems" | "maxLength" | "exclusiveMaximum" | "maxProperties":
                return {**schema, word: value + roll.choice([1, 1, 0, -1]) if value > 0 else value}
            case "minItems" | "minLength":
                return {**schema, word: max(0, value + roll.choice([-1, -1, 1]))}
            case "minimum":
                return {**schema, word: value + roll.choice([-1, -1, 1])}
            case "multipleOf":
                return {**schema, word: value * roll.choice([1, 2])}
            case "items" | "additionalProperties":
                return {**schema, word: self._change(value)}
            case "anyOf" | "oneOf" | "allOf":
                if roll.random() < 0.5:
                    return {**schema, word: [*value, self.schema(2)]}
                return {**schema, word: [self._change(value[0]), *value[1:]]}
            case "$defs":
                return {**schema, word: {"shared": self._change(value["shared"])}}
            case _:
                return schema


class Instances:
    """Instances for one document: mostly as its keywords ask, sometimes anything."""

    def __init__(self, seed: int, document: Any) -> None:
        self.random = random.Random(seed)
        self._document = document

    def instance(self) -> Any:
        return self._of(self._document, 0)

    def anything(self) -> Any:
        roll = self.random
        return roll.choice(
            [None, True, 0, 1, 5, -2, 2.5, *WORDS, [], [1], ["a", "a"], {}, {"a": 1}, {"x1": "q"}]
        )

    def _of(self, schema: Any, depth: int) -> Any:
        roll = self.random
        if not isinstance(schema, dict) or roll.random() < 0.04 or depth > 8:
            return self.anything()
        if "$ref" in schema:
            return self._of(self._document["$defs"]["shared"], depth + 1)
        if "enum" in schema:
            return roll.choice(schema["enum"]) if schema["enum"] else None
        if "const" in schema:
            return schema["const"]
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                return self._of(roll.choice(schema[word]), depth + 1)
        kind = schema.get("type")
        match roll.choice(kind) if isinstance(kind, list) else kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                size = roll.randrange(
                    schema.get("minItems", 0), max(schema.get("maxItems", 3), schema.get("minItems", 0)) + 1
                )
                firsts = schema.get("prefixItems", [])
                return [
                    self._of(firsts[i] if i < len(firsts) else schema.get("items", True), depth + 1)
                    for i in range(size)
                ]
            case "integer":
                return roll.choice(
                    [roll.randrange(-4, 9), roll.randrange(0, 3) * schema.get("multipleOf", 1)]
                )
            case "number":
                return roll.choice([roll.randrange(-4, 9), 2.5, 0.0, 6.0])
            case "string":
                return roll.choice(WORDS)
            case "boolean":
                return roll.random() < 0.5
            case "null":
                return None
            case _:
                return self.anything()

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        roll = self.random
        made = {
            name: self._of(inner, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in schema.get("required", []) or roll.random() < 0.6
        }
        for pattern, inner in schema.get("patternProperties", {}).items():
            if roll.random() < 0.5:
                made[pattern.removeprefix("^") + "7"] = self._of(inner, depth + 1)
        if schema.get("additionalProperties") is not False and roll.random() < 0.4:
            made[roll.choice([*NAMES, "other"])] = self._of(
                schema.get("additionalProperties", True), depth + 1
            )
        return made
