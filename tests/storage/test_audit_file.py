"""A file of the audit: only what is provably an export is continued, and nothing that is there is ever cut off."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from pydanube_core.errors import AlreadyExists, ClusterError, Conflict, InvalidArgument, InvalidName
from pydanube_storage.audit_file import NAME_BYTES, AuditFile


def chain(count: int, *, first: int = 0, prev: str = "0" * 64) -> list[bytes]:
    """Make audit records as the broker stores them."""
    lines = []
    for seq in range(first, first + count):
        text = json.dumps(
            {"key_id": "k", "operation": f"o{seq}", "prev_hash": prev, "seq": seq}, separators=(",", ":")
        ).encode()
        prev = hashlib.sha256(text).hexdigest()
        lines.append(text[:-1] + f',"hash":"{prev}","mac":"m{seq}"}}'.encode())
    return lines


RECORDS = chain(10)


def written(path: Path, count: int) -> bytes:
    with AuditFile(path) as file:
        file.append(RECORDS[:count])
    return path.read_bytes()


def rest(path: Path) -> None:
    """Continue the file to the end of the chain."""
    with AuditFile(path) as file:
        assert file.next_seq is not None
        file.append(RECORDS[file.next_seq :])


WHOLE = b"".join(line + b"\n" for line in RECORDS)


def test_a_new_file_and_its_continuation_hold_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, 4)
    rest(path)
    assert path.read_bytes() == WHOLE
    head = json.loads((tmp_path / "a.jsonl.head").read_bytes())
    assert (head["seq"], head["mac"], head["bytes"]) == (9, "m9", len(WHOLE))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.head"]
    assert all(each.stat().st_mode & 0o077 == 0 for each in tmp_path.iterdir())


def test_a_crash_at_any_place_is_continued_without_cutting_anything(tmp_path: Path) -> None:
    """The head is written before the first record and after each group: the file may have anything in between."""
    path, head = tmp_path / "a.jsonl", tmp_path / "a.jsonl.head"
    for group in (0, 3):
        ends = [index + 1 for index, byte in enumerate(WHOLE) if byte == ord("\n")]
        for size in sorted({0, 1, 100, *ends, *(end - 1 for end in ends), ends[4] + 50}):
            path.unlink(missing_ok=True)
            head.unlink(missing_ok=True)
            with AuditFile(path) as file:
                if group:
                    file.append(RECORDS[:group])
                    stored = head.read_bytes()
                    at = path.stat().st_size
                else:
                    file.append(RECORDS)
                    stored, at = b'{"seq":-1,"hash":"%s","mac":null,"key_id":null,"bytes":0}' % (b"0" * 64), 0
            if size < at:
                continue
            head.write_bytes(stored)
            path.write_bytes(WHOLE[:size])
            rest(path)
            assert path.read_bytes() == WHOLE


def test_a_file_that_was_moved_away_is_continued_in_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, 4)
    path.rename(tmp_path / "a.jsonl.1")
    rest(path)
    assert path.read_bytes() == b"".join(line + b"\n" for line in RECORDS[4:])


def test_a_head_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    path, head = tmp_path / "a.jsonl", tmp_path / "a.jsonl.head"
    written(path, 4)
    old = json.loads(head.read_bytes())
    del old["bytes"]
    head.write_text(json.dumps(old))
    rest(path)
    assert path.read_bytes() == WHOLE


def test_records_that_retention_deleted_may_be_missing_in_between(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, 2)
    with AuditFile(path) as file:
        file.append(RECORDS[5:])
    with AuditFile(path) as file:
        assert file.next_seq == 10


STRANGERS = {
    "a JSON object with a seq": b'{"seq": 5}\n',
    "a JSON object without a line end": b'{"seq": 7, "prev_hash": "x", "hash": "y"}',
    "a binary": bytes(range(256)) * 1600,
    "nothing": b"",
    "records without a head": WHOLE,
}


@pytest.mark.parametrize("what", STRANGERS)
def test_a_file_without_a_head_stays_as_it_is(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(STRANGERS[what])
    with pytest.raises(InvalidArgument, match="holds something else"):
        AuditFile(path)
    assert path.read_bytes() == STRANGERS[what]
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "behind", [b"mine\n", b"mine", RECORDS[3], RECORDS[6] + b"\n", b"\0" * 4096, b"\n"], ids=range(6)
)
def test_what_does_not_continue_the_head_stays_as_it_is(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "a.jsonl"
    before = written(path, 4) + behind
    path.write_bytes(before)
    if (
        behind == RECORDS[6] + b"\n"
    ):  # where retention deleted two, this is allowed: then the next is not record 4
        with AuditFile(path) as file:
            assert file.next_seq == 7
        return
    with pytest.raises(InvalidArgument, match="holds something else"), AuditFile(path) as file:
        file.append(RECORDS[4:])
    assert path.read_bytes() == before


def test_another_file_beside_a_head_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    before = written(path, 4)
    other = b"x" * len(before) + b"\nmine\n"
    path.write_bytes(other)
    with pytest.raises(InvalidArgument, match="holds something else"):
        AuditFile(path)
    path.write_bytes(before[:-10])
    with pytest.raises(InvalidArgument, match="shorter"):
        AuditFile(path)
    assert path.read_bytes() == before[:-10]


@pytest.mark.parametrize("content", [b"mine", b"[]", b'{"seq": "x"}', b""])
def test_a_file_with_the_name_of_the_head_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    beside = tmp_path / "a.jsonl.head"
    beside.write_bytes(content)
    with pytest.raises(AlreadyExists):
        written(tmp_path / "a.jsonl", 4)
    assert beside.read_bytes() == content
    assert [*tmp_path.iterdir()] == [beside]


def test_neither_a_symlink_nor_a_fifo_nor_a_folder_is_opened(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    path = tmp_path / "a.jsonl"
    for make in (
        lambda: path.symlink_to(target),
        lambda: path.symlink_to(tmp_path / "nothing"),
        lambda: os.mkfifo(path),
        path.mkdir,
    ):
        make()
        with pytest.raises(ClusterError, match="regular"):
            AuditFile(path)
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "a.jsonl.head").symlink_to(target)
    with pytest.raises(AlreadyExists):
        AuditFile(path)
    assert target.read_bytes() == b"mine"


def test_one_export_writes_a_file_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, 4)
    with AuditFile(path) as first:
        with pytest.raises(Conflict, match="another export"):
            AuditFile(path)
        first.append(RECORDS[4:])
    assert path.read_bytes() == WHOLE


def test_two_that_begin_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with AuditFile(path) as first, AuditFile(path) as second:
        first.append(RECORDS[:2])
        with pytest.raises(AlreadyExists):
            second.append(RECORDS)
        first.append(RECORDS[2:])
    assert path.read_bytes() == WHOLE


def test_a_name_leaves_room_for_the_names_beside_it(tmp_path: Path) -> None:
    written(tmp_path / ("n" * NAME_BYTES), 4)
    with pytest.raises(InvalidName):
        AuditFile(tmp_path / ("n" * (NAME_BYTES + 1)))
    with pytest.raises(InvalidName):
        AuditFile(tmp_path / ("ü" * (NAME_BYTES // 2 + 1)))


def test_a_start_that_does_not_continue_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, 4)
    with AuditFile(path) as file:
        assert (file.next_after(None), file.next_after(4)) == (4, 4)
        with pytest.raises(InvalidArgument, match="continues with record 4"):
            file.next_after(0)
