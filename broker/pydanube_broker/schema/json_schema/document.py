"""A JSON Schema document: its dialect, and its references within itself.

References out of the document are refused at registration, because the meaning of a schema must not change later or
depend on a network. jsonschema-rs decides whether a document is a valid schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import jsonschema_rs
from pydanube_core.errors import SchemaInvalid
from pydanube_core.schema_formats.json_schema.references import References, Schema

# The first dialect with a keyword. Older ones ignore it.
_SINCE: Final = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "then": 7,
    "else": 7,
    "contentEncoding": 7,
    "contentMediaType": 7,
    "minContains": 2019,
    "maxContains": 2019,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019,
    "prefixItems": 2020,
    "$dynamicRef": 2020,
}
_YEARS: Final = (("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019))
# Dialects in which `$ref` hides its siblings ("JSON Reference"). From 2019-09 on siblings apply too.
_REF_ALONE: Final = ("draft-03", "draft-04", "draft-06", "draft-07")
# `cost.admit` refuses expressions that need backtracking. This limit is for schemas registered before that check.
PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=2_000)
MAX_REFERENCES: Final = 32  # maximum consecutive references without a step down in the instance


class Document:
    """One document. Instances are checked against `root`."""

    __slots__ = ("_year", "dialect", "ref_hides_siblings", "references", "root")

    def __init__(self, root: Schema) -> None:
        self.root = root
        declared = root.get("$schema") if isinstance(root, Mapping) else None
        self.dialect = declared if isinstance(declared, str) else ""
        self._year = next((year for name, year in _YEARS if name in self.dialect), 2020)
        self.ref_hides_siblings = any(draft in self.dialect for draft in _REF_ALONE)
        self.references = References(
            root, id_word="id" if self._year == 4 else "$id", ref_alone=self.ref_hides_siblings
        )

    @property
    def year(self) -> int:
        """Return the year of its dialect, or its draft number before 2019."""
        return self._year

    def knows(self, keyword: str) -> bool:
        """Return whether the keyword is part of this dialect."""
        return _SINCE.get(keyword, 0) <= self._year

    def get(self, schema: Mapping[str, Any], keyword: str) -> Any:
        """Return the value of a keyword. None if it is absent or not part of this dialect."""
        return schema.get(keyword) if self.knows(keyword) else None

    def target(self, reference: str, within: Mapping[str, Any] | None = None) -> Schema | None:
        """Return the target of a reference in `within`. None if it is not in the document."""
        return self.references.target(reference, within)

    @property
    def is_plain(self) -> bool:
        """Return whether no reference depends on the path by which its schema was reached."""
        return not self.references.is_dynamic


def pointer(path: str, *tokens: str | int) -> str:
    """Return `path` extended by these keys, as a JSON pointer (RFC 6901)."""
    return path + "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def parse_json_schema(value: Any) -> tuple[Document, jsonschema_rs.Validator]:
    """Return the document and its compiled validator.

    Raises `SchemaInvalid`: `details["path"]` is a JSON pointer to the error.
    """
    if not isinstance(value, (dict, bool)):
        raise _bad("", "a JSON Schema is an object, or true or false", value)
    try:
        validator = jsonschema_rs.validator_for(value, retriever=_no_network, pattern_options=PATTERNS)
    except jsonschema_rs.ValidationError as error:
        first = str(error).split("\n", 1)[0]
        raise _bad(pointer("", *error.instance_path), first, None) from None
    except (ValueError, TypeError, RecursionError, jsonschema_rs.ReferencingError) as error:
        raise _bad("", str(error).split("\n", 1)[0], None) from None
    return Document(value), validator


def _no_network(uri: str) -> NoReturn:
    raise ValueError("references must stay within the document: put their targets under $defs")


def _bad(path: str, why: str, value: Any) -> SchemaInvalid:
    return SchemaInvalid(
        f"the JSON Schema is wrong at {path or '/'}: {why[:300]}",
        field="schema_definition",
        path=path or "/",
        value=None if value is None else repr(value)[:120],
    )
