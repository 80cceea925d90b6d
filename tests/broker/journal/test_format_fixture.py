"""Journals of format 1, written once and committed: every later version opens them and reads the same."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from pydanube_broker.journal import RecordKind
from pydanube_broker.journal.index import SegmentIndex
from pydanube_broker.journal.records import RULES, encode_file_header, encode_header

from tests.broker.journal.record_order import check_order

ROOT = Path(__file__).resolve().parents[3]
FIXTURE = ROOT / "tests" / "data" / "format-1"
Opened = tuple[dict[str, Any], int]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_format_fixture", ROOT / "tools" / "make_format_fixture.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def opened(tool: ModuleType) -> Callable[[Path], Opened]:
    """Opens a journal and says what is in it, and how many records of an unproven tail were copied."""

    async def scenario(folder: Path) -> Opened:
        journal, hub = tool.open_journal(folder)
        try:
            with anyio.fail_after(30):
                tail = len(journal.recover().tail)
                await journal.begin()
                return json.loads(json.dumps(tool.contents(journal, hub))), tail
        finally:
            await journal.close()

    return lambda folder: anyio.run(scenario, folder)


@pytest.mark.parametrize("name", ["stopped", "abandoned"])
@pytest.mark.parametrize("sidecars", [True, False])
def test_a_journal_of_format_1_is_read_as_it_was_written(
    tmp_path: Path, opened: Callable[[Path], Opened], name: str, sidecars: bool
) -> None:
    expected = json.loads((FIXTURE / "expected.json").read_text())[name]
    folder = tmp_path / "journal"
    shutil.copytree(FIXTURE / name / "journal", folder)
    assert len(list(folder.glob("*.index"))) > 2
    if not sidecars:
        for path in folder.glob("*.index"):
            path.unlink()
    found, tail = opened(folder)
    assert found == expected
    assert bool(tail) == (name == "abandoned")
    found, tail = opened(folder)
    assert found == expected, "and once more behind the head that this version has written"
    assert tail == 0


def test_the_fixture_holds_what_it_is_there_for() -> None:
    expected = json.loads((FIXTURE / "expected.json").read_text())["abandoned"]
    assert set(expected) == {"11", "12", "14"}, "13 was deleted"
    codecs = {batch["codec"] for topic in expected.values() for batch in topic["batches"]}
    assert codecs == {"NONE", "LZ4", "ZSTD"}
    full = expected["12"]["batches"][-1]
    assert full["schemas"]
    assert full["producer_index"]
    assert None in full["keys"]
    assert "" in full["keys"]
    assert full["attributes"][1]["händler"] == "östlich"
    assert full["offsets"][1] - full["offsets"][0] == 3
    assert expected["12"]["start_offset"] == 1012
    assert expected["11"]["cursors"]["77"]["generation"] == 2
    assert expected["11"]["producers"][0]["recent"]
    heads = [path.read_bytes()[:12] for path in FIXTURE.glob("*/journal/*.journal")]
    assert set(heads) == {b"DANUBEJL\x01\0\0\0"}, "the file says its format"


def test_the_bytes_of_format_1_are_these() -> None:
    """A change here is a change of format: it needs a number, and a fixture of its own beside this one."""
    header = encode_header(
        RecordKind.CURSOR, 0x1122334455667788, 0x0102030405060708, 0xAABB, 1000, 0xDEADBEEF, 1, 3
    )
    assert header.hex() == (
        "11da0201e8030000" "8877665544332211" "0807060504030201" "bbaa000000000000"
        "efbeadde03000000" "524f504ede689cfc"
    )  # fmt: skip
    assert encode_file_header(1 << 33, 64 << 20).hex() == (
        "44414e5542454a4c" "0100000000000000" "0000000002000000" "0000000400000000" + "00" * 28 + "dfa709d2"
    )  # fmt: skip
    index = SegmentIndex(4096)
    index.end_lsn = 9000
    index.add(7, 5, 9, -2, 300, 120)
    index.add(2, 0, 1, 10, 64, 168)
    assert b"".join(index.encode()).hex() == (
        "44414e5542454958" "0100000002000000" "0010000000000000" "2823000000000000" "99dbf2f500000000"
        "0200000000000000" "0100000000000000" "0700000000000000" "0100000000000000"
        "0000000000000000" "0100000000000000" "0a00000000000000" "a800000040000000"
        "0500000000000000" "0900000000000000" "feffffffffffffff" "780000002c010000"
    )  # fmt: skip


@pytest.mark.parametrize("name", ["stopped", "abandoned"])
def test_records_of_the_fixture_stand_where_their_kinds_may(name: str) -> None:
    found = check_order(FIXTURE / name / "journal", older=True)
    assert {
        RecordKind.HEAD,
        RecordKind.MARK,
        RecordKind.BATCH,
        RecordKind.CURSOR,
        RecordKind.PRODUCER,
        RecordKind.TOPIC_CLOSE,
    } <= set(found)


def test_every_kind_has_its_row_in_the_table() -> None:
    assert set(RULES) == set(RecordKind)
