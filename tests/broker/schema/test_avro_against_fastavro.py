"""Avro verdicts and payload checks against a second library: fastavro, with writer's and reader's schema."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import fastavro
import pytest
from pydanube_broker.schema.formats import differences_between, parse_schema, payload_check
from pydanube_broker.schema.vocabulary import CompatibilityMode, SchemaType
from pydanube_core.errors import PayloadInvalid, SchemaInvalid

from tests.broker.schema.avro_samples import Data, Schemas


def encoded(schema: Any, datum: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(copy.deepcopy(schema)), datum)
    return target.getvalue()


def parsed(schema: Any) -> Any:
    return parse_schema(SchemaType.AVRO, json.dumps(schema).encode())


def test_what_is_called_compatible_is_read_by_fastavro() -> None:
    """At least 1 000 data, written with the old schema and read with the new one."""
    read = compatible = incompatible = refused_there = 0
    for seed in range(700):
        schemas = Schemas(seed)
        old = schemas.record()
        new = schemas.changed(old)
        try:
            one, other = parsed(old), parsed(new)
        except SchemaInvalid:
            continue  # a change that made no schema: a name defined twice, a union with two of a kind
        found = differences_between(one, other, CompatibilityMode.BACKWARD)
        data = Data(seed, old)
        reader = fastavro.parse_schema(copy.deepcopy(new))
        writer = fastavro.parse_schema(copy.deepcopy(old))
        failures = []
        for _ in range(6):
            datum = data.datum()
            try:
                fastavro.schemaless_reader(io.BytesIO(encoded(old, datum)), writer, reader)
            except Exception as error:
                failures.append((datum, error))
        if found:
            incompatible += 1
            refused_there += bool(failures)
        else:
            compatible += 1
            read += 6
            assert not failures, f"seed {seed}: {old} → {new}: {failures[0]}"
    assert read >= 1000
    assert compatible >= 150
    assert incompatible >= 150
    # Incompatible is a statement about some data; six of them at random show it most of the time.
    assert refused_there >= incompatible * 0.6


@pytest.mark.parametrize("seed", range(60))
def test_payloads_are_taken_where_fastavro_wrote_them_and_refused_when_cut(seed: int) -> None:
    schema = Schemas(seed).record()
    check = payload_check(parsed(schema))
    data = Data(seed, schema)
    for _ in range(5):
        payload = encoded(schema, data.datum())
        check(payload)
        with pytest.raises(PayloadInvalid):
            check(payload + b"\0")
        if payload:
            with pytest.raises(PayloadInvalid):
                check(payload[:-1])


def test_noise_is_taken_only_where_fastavro_reads_it() -> None:
    """Any bytes: our walk and fastavro agree, but for what fastavro lets pass or cannot show."""
    schemas = [Schemas(seed).schema(depth=2) for seed in range(60)]
    rng = Schemas(99).random
    taken = 0
    for schema in schemas:
        check = payload_check(parsed(schema))
        reader = fastavro.parse_schema(copy.deepcopy(schema))
        for _ in range(50):
            noise = rng.randbytes(rng.randrange(12))
            try:
                check(noise)
            except PayloadInvalid:
                continue
            taken += 1
            source = io.BytesIO(noise)
            fastavro.schemaless_reader(source, reader, None)
            assert source.tell() == len(noise)
    assert taken >= 20
