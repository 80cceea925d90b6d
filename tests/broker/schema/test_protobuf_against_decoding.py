"""Protobuf verdicts against real decoding: what is called compatible is parsed, whole, and says the same."""

from __future__ import annotations

import os

import pytest
from google.protobuf.message import DecodeError
from pydanube_broker.schema.differences import Direction
from pydanube_broker.schema.protobuf.compat import compare_protobuf

from tests.broker.schema.proto_samples import Data, Files, difference, loaded, raw_twin


def held(seeds: range) -> tuple[int, int, int]:
    """(compatible, refused, refused and shown to be so) of as many pairs."""
    compatible = refused = shown = 0
    for seed in seeds:
        files = Files(seed)
        old = files.file()
        new = files.changed(old)
        found = compare_protobuf(loaded(old), loaded(new), Direction.BACKWARD)
        writer, raw, reader = (loaded(each).message_class() for each in (old, raw_twin(old), new))
        data = Data(seed)
        fault = None
        for _ in range(15):
            payload = data.fill(raw()).SerializeToString(deterministic=True)
            try:
                read = reader.FromString(payload)
            except DecodeError as error:
                fault = f"it is not parsed: {error}"
                break
            # What is no text is written by nobody as text in Python: only that it is parsed can be seen.
            try:
                fault = difference(writer.FromString(payload), read)
            except UnicodeDecodeError:
                continue
            if fault:
                break
        if found:
            refused += 1
            shown += fault is not None
        else:
            compatible += 1
            assert fault is None, f"seed {seed}: {fault}\n{old}\n{new}"
    return compatible, refused, shown


def test_what_is_called_compatible_says_the_same_when_it_is_read() -> None:
    compatible, refused, shown = held(range(2_500))
    assert compatible >= 1_000
    assert refused >= 150
    assert shown >= refused * 0.3, f"{shown} of {refused}"


@pytest.mark.long
def test_what_is_called_compatible_says_the_same_when_it_is_read_at_length() -> None:
    held(range(1_000, 1_000 + int(os.environ.get("PYDANUBE_SCHEMA_PAIRS", "30000"))))
