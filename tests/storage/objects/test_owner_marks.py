"""Marks that somebody has written by hand, or a disk has damaged: named with the remedy, never believed, never a crash."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydanube_core.errors import CorruptObject
from pydanube_storage.objects import LocalStore, OwnerMark, make_mark, newest_mark

MARK = OwnerMark(
    incarnation=7,
    life="0a0a0a0a",
    place="p",
    broker_id="1",
    host="h",
    data_dir="/d",
    pid=1,
    since="2026-11-22",
)
BODY = json.loads(MARK.to_json())


def _said(folder: Path, data: bytes) -> OwnerMark | None:
    store = LocalStore(folder)
    file = folder / "c" / "owner" / f"{8:020d}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return newest_mark(store, "c")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"\xff\xfe", b"[" * 50_000, b'{"a":' * 50_000, b" " * (1 << 20),
        json.dumps({**BODY, "incarnation": "8"}).encode(),
        json.dumps({**BODY, "incarnation": 1.5}).encode(),
        json.dumps({**BODY, "incarnation": -1}).encode(),
        json.dumps({**BODY, "incarnation": 1 << 80}).encode(),
        json.dumps({**BODY, "pid": True}).encode(),
        json.dumps({**BODY, "life": None}).encode(),
        json.dumps({**BODY, "incarnation": 0}).replace(': 0,', ': 1e999,').encode(),
    ],
)  # fmt: skip
def test_a_mark_that_is_none_is_named_with_what_to_do(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptObject, match=r"owner mark c/owner/0+8\.json .*or remove it"):
        _said(tmp_path, data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_mark_or_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptObject):
        _said(tmp_path, data)


def test_marks_of_several_brokers_are_not_those_of_a_lone_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    several = replace(MARK, incarnation=900)
    assert make_mark(store, "c", several, "12") == several
    assert newest_mark(store, "c") is None
    assert make_mark(store, "c", MARK) == MARK
    assert newest_mark(store, "c", "12") == several


def test_other_files_beside_the_marks_are_nobodys(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert make_mark(store, "c", MARK) == MARK
    for name in ("zzz.json", "9.json", f"{9:020d}.json.bak", "notes.txt"):
        (tmp_path / "c" / "owner" / name).write_bytes(b"{}")
    assert newest_mark(store, "c") == MARK
