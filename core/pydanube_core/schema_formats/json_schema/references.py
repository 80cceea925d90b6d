"""References within a document and their targets: JSON pointers, anchors, and resources with an `$id` of their own.

A schema with an `$id` is a resource: `#/…` below it begins there, not at the document's root (Core 8.2). Documents
are read by the newest dialects' rules. The caller passes arguments for older dialects (which ignore `$id` beside
`$ref`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

Schema: TypeAlias = Mapping[str, Any] | bool

DYNAMIC: Final = frozenset({"$dynamicRef", "$recursiveRef", "$recursiveAnchor", "$dynamicAnchor"})
_ONE: Final = (
    "not", "if", "then", "else", "items", "additionalItems", "unevaluatedItems", "contains",
    "additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema",
)  # fmt: skip
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS: Final = (
    "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions",
)  # fmt: skip


def inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """Yield (keys to it, schema) for each object schema directly within one."""
    for word in _ONE:
        if isinstance(schema.get(word), Mapping):
            yield (word,), schema[word]
    for word in _LISTS:
        if isinstance(schema.get(word), list):
            for index, inner in enumerate(schema[word]):
                if isinstance(inner, Mapping):
                    yield (word, index), inner
    for word in _MAPS:
        if isinstance(schema.get(word), Mapping):
            for name, inner in schema[word].items():
                if isinstance(inner, Mapping):
                    yield (word, name), inner


class References:
    """Index of one document.

    Args:
        id_word: `$id`, or `id` in draft 4.
        ref_alone: whether `$ref` hides its siblings, as in old dialects.
    """

    __slots__ = (
        "_homes", "_named", "_resources", "_root_uri", "dynamic_anchors", "is_dynamic", "paths", "root",
        "schemas",
    )  # fmt: skip

    def __init__(self, root: Schema, *, id_word: str = "$id", ref_alone: bool = False) -> None:
        self.root = root
        self.schemas: list[Mapping[str, Any]] = []  # all objects in a schema's position
        self.paths: dict[int, tuple[str | int, ...]] = {}  # id of a schema → its keys from the root
        self.dynamic_anchors: dict[str, list[Mapping[str, Any]]] = {}
        self.is_dynamic = False  # whether targets depend on the path of evaluation
        self._homes: dict[int, str] = {}  # id of a schema → address of its resource
        self._resources: dict[str, Schema] = {}
        self._named: dict[str, Mapping[str, Any]] = {}  # address#anchor
        self._root_uri = ""
        if not isinstance(root, Mapping):
            return
        work: list[tuple[Mapping[str, Any], str, tuple[str | int, ...]]] = [(root, "", ())]
        while work:
            schema, home, path = work.pop()
            if id(schema) in self._homes:
                continue
            alone = ref_alone and "$ref" in schema
            home = self._entered(schema, home, None if alone else schema.get(id_word), first=not path)
            self._homes[id(schema)] = home
            self.paths[id(schema)] = path
            self.schemas.append(schema)
            self.is_dynamic = self.is_dynamic or not DYNAMIC.isdisjoint(schema)
            work += [(inner, home, (*path, *keys)) for keys, inner in inner_schemas(schema)]

    def _entered(self, schema: Mapping[str, Any], home: str, named: Any, *, first: bool) -> str:
        """Return the address of the resource that a schema belongs to or begins, and index its anchors."""
        if isinstance(named, str):
            address, fragment = urldefrag(_joined(home, named))
            if fragment and not fragment.startswith("/"):  # an anchor, as drafts 4 to 7 spell it
                self._named.setdefault(f"{address}#{fragment}", schema)
            if address != home or first:
                home = address
                self._resources.setdefault(home, schema)
        if first:
            self._root_uri = home
            self._resources.setdefault(home, schema)
        for word in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(word)
            if isinstance(anchor, str):
                self._named.setdefault(f"{home}#{anchor}", schema)
                if word == "$dynamicAnchor":
                    self.dynamic_anchors.setdefault(anchor, []).append(schema)
        return home

    def target(self, reference: str, within: Mapping[str, Any] | None = None) -> Schema | None:
        """Return the target of a reference in `within`. None if it is not in the document."""
        home = self._root_uri if within is None else self._homes.get(id(within), self._root_uri)
        try:
            address, fragment = urldefrag(_joined(home, reference))
        except ValueError:
            return None
        resource = self.root if address == self._root_uri else self._resources.get(address)
        if resource is None:
            return None
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._named.get(f"{address}#{fragment}")
        return _at(resource, fragment)


def _joined(home: str, reference: str) -> str:
    """Join two URIs like `urljoin`, but also for addresses such as `urn:…`, which `urljoin` cannot join."""
    if reference.startswith("#"):
        return home + reference
    return urljoin(home, reference)


def _at(schema: Schema, pointer: str) -> Schema | None:
    found: Any = schema
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and token in found:
            found = found[token]
        elif isinstance(found, list) and token.isdecimal() and int(token[:9]) < len(found):
            found = found[int(token[:9])]
        else:
            return None
    return found if isinstance(found, (Mapping, bool)) else None
