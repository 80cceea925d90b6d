"""Avro verdicts held against Avro's Java library, which reads what is called compatible."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydanube_broker.schema.formats import differences_between
from pydanube_broker.schema.vocabulary import CompatibilityMode
from pydanube_core.errors import SchemaInvalid

from tests.broker.schema.avro_samples import Data, Schemas
from tests.broker.schema.java_avro import Case, JavaAvro, renamed
from tests.broker.schema.test_avro_against_fastavro import encoded, parsed


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, *aliases: str, type: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **({"aliases": list(aliases)} if aliases else {}), **more}


def rules(old: Any, new: Any) -> list[str]:
    found = differences_between(parsed(old), parsed(new), CompatibilityMode.BACKWARD)
    return [difference.rule for difference in found]


SHARED: dict[str, tuple[Any, Any]] = {
    "by_two_fields": (record(field("a")), record(field("b", "a"), field("c", "a"))),
    "with_a_fields_name": (record(field("a")), record(field("a"), field("b", "a"))),
    "of_two_sources": (record(field("a"), field("b")), record(field("c", "a", "b"))),
    "of_a_field_that_is_there": (record(field("a"), field("b")), record(field("b", "a"))),
    "in_a_chain": (record(field("a")), record(field("b", "a"), field("c", "b", default=1))),
    "by_two_types": (
        record(field("x", type={"type": "enum", "name": "E", "symbols": ["A"]})),
        record(
            field("x", type={"type": "enum", "name": "E", "symbols": ["A"]}),
            field("y", type={"type": "enum", "name": "F", "symbols": ["A"], "aliases": ["E"]}, default="A"),
        ),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_an_alias_that_leads_to_two_is_not_compatible(name: str) -> None:
    old, new = SHARED[name]
    assert rules(old, new)


def test_an_alias_that_leads_to_one_is_compatible() -> None:
    assert not rules(record(field("a")), record(field("b", "a")))
    assert not rules(
        record(field("a"), field("c")), record(field("b", "a"), field("c"), field("d", default=1))
    )


def test_what_is_the_same_but_for_texts_is_compatible_whatever_its_aliases() -> None:
    schema = record(field("a"), field("b", "a"))
    assert not rules(schema, schema | {"doc": "a text"})


def test_a_fixed_in_a_union_goes_by_its_full_name() -> None:
    small = {"type": "fixed", "name": "F", "size": 4}
    assert rules(
        record(field("a", type=["null", small])),
        record(field("a", type=["null", small | {"namespace": "n"}])),
    )
    assert not rules(record(field("a", type=small)), record(field("a", type=small | {"namespace": "n"})))


@pytest.mark.long
@pytest.mark.skipif(not JavaAvro.is_there(), reason="needs java, javac and mvn")
def test_what_is_called_compatible_is_read_by_java(tmp_path: Path) -> None:
    java = JavaAvro(Path(os.environ.get("PYDANUBE_AVRO_JAVA", tmp_path / "java")))
    java.prepare()
    cases, verdicts = [], []
    for seed in range(int(os.environ.get("PYDANUBE_SCHEMA_PAIRS", "12000"))):
        schemas = Schemas(seed)
        old = schemas.record() if seed % 3 else schemas.schema()
        new = schemas.changed(old) if seed % 2 else old
        new = renamed(new, seed) if seed % 5 else new
        try:
            one, other = parsed(old), parsed(new)
        except SchemaInvalid:
            continue
        data = Data(seed, old)
        cases.append(Case(writer=old, reader=new, data=[encoded(old, data.datum()) for _ in range(12)]))
        verdicts.append(differences_between(one, other, CompatibilityMode.BACKWARD))
    compatible = refused = needlessly = 0
    for case, found, answer in zip(cases, verdicts, java.verdicts(cases), strict=True):
        if found:
            refused += 1
            needlessly += answer == "read"  # or the data did not show it
        else:
            compatible += 1
            assert answer == "read", f"{case.writer} → {case.reader}: {answer}"
    assert compatible >= len(cases) * 0.4
    assert needlessly <= refused * 0.1
