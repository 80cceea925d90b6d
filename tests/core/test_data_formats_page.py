"""docs/data-formats.md is held to the code: its tables are the structs, its dumps are bytes that our encoder makes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from struct import Struct
from zlib import crc32

import pytest
from pydanube_broker.copying.piece import FILE_HEADER, PIECE_HEADER
from pydanube_core.batch import BROKER_PART_BYTES, BatchColumn, BatchView, broker_part, encode_batch
from pydanube_core.batch.layout import (
    BATCH_TARGET_BYTES,
    BROKER_PART,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_INFLATED_BYTES,
    PRODUCER_PART,
)
from pydanube_core.batch.select import key_slots
from pydanube_core.batch.validate import validate_batch
from pydanube_core.frames import FRAME, PART, decode_delivery, encode_delivery
from pydanube_core.generated import danube_stream_pb2 as pb

PAGE = (Path(__file__).parents[2] / "docs" / "data-formats.md").read_text(encoding="utf-8")
LINE = re.compile(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})", re.MULTILINE)
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "4 bytes": "4s", "8 bytes": "8s"}


def chapter(title: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def table(title: str) -> list[list[str]]:
    """The body rows of the first table of a chapter."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in chapter(title).splitlines()
        if line.startswith("|")
    ]
    assert rows, title
    return rows[2:]


def dump(title: str) -> bytes:
    """The bytes of a chapter's hex dump; their addresses must follow each other."""
    data = b""
    for address, text in LINE.findall(chapter(title)):
        assert int(address, 16) == len(data)
        data += bytes.fromhex(text)
    return data


@pytest.mark.parametrize(
    ("title", "layout"),
    [
        ("Broker part", BROKER_PART),
        ("Producer part", PRODUCER_PART),
        ("Frame head", FRAME),
        ("Frame part", PART),
        ("Fragment header", FILE_HEADER),
        ("Piece header", PIECE_HEADER),
    ],
)
def test_tables_of_fixed_parts_are_the_structs(title: str, layout: Struct) -> None:
    at, codes = 0, "<"
    for address, kind, *_ in table(title):
        assert int(address) == at
        codes += CODES[kind]
        at = Struct(codes).size
    assert codes == layout.format
    assert at == layout.size


def test_the_table_of_columns_has_every_bit() -> None:
    assert [int(bit) for bit, *_ in table("Columns")] == [bit.bit_length() - 1 for bit in BatchColumn]


def test_limits_are_the_constants() -> None:
    limits = {name: int(number.replace(" ", "")) for name, number, *_ in table("Limits")}
    assert limits == {
        "messages in a batch": MAX_BATCH_MESSAGES,
        "bytes a producer aims at": BATCH_TARGET_BYTES,
        "bytes of producer part and body": MAX_BATCH_BYTES,
        "raw payload bytes": MAX_INFLATED_BYTES,
    }


HEAD = broker_part(base_offset=100, last_offset=101, epoch=3, append_time_ms=1_769_860_800_500)
BATCH = encode_batch(
    [b"hello", b"hi"],
    keys=[b"k1", None],
    producer_id=7,
    producer_epoch=1,
    first_sequence=42,
    publish_time_ms=1_769_860_800_000,
)
FRAME = encode_delivery(9, [(100, 102, 1, [HEAD, BATCH])])


def test_the_example_is_a_batch_our_encoder_makes() -> None:
    example = dump("A batch in full")
    assert example.hex(" ") == (HEAD + BATCH).hex(" ")
    assert validate_batch(example[BROKER_PART_BYTES:], max_message_bytes=5).count == 2
    view = BatchView.stored(example)
    assert (view.payloads(), view.keys(), list(view.offsets())) == (
        [b"hello", b"hi"],
        [b"k1", None],
        [100, 101],
    )


def test_the_example_can_be_read_by_hand() -> None:
    """As the page tells another language to do it, with none of our code."""
    example = dump("A batch in full")
    assert crc32(example[:44]) == int.from_bytes(example[44:48], "little")
    producer = example[48:]
    assert crc32(producer[:68] + producer[72:]) == int.from_bytes(producer[68:72], "little")
    body = producer[72:]
    offsets = [int.from_bytes(body[i : i + 4], "little") for i in (0, 4, 8)]
    data = body[16:]  # 3 offsets are 12 bytes, padded to 16
    assert [data[a:b] for a, b in pairwise(offsets)] == [b"hello", b"hi"]


def test_the_example_of_a_delivery_is_one_our_encoder_makes() -> None:
    example = dump("A delivery in full")
    assert example.hex(" ") == FRAME[: len(example)].hex(" ")
    session, [part] = decode_delivery(pb.ConsumeResponse.FromString(FRAME).delivery)
    assert (session, part.first, part.end, part.delivery_count) == (9, 100, 102, 1)
    assert (
        len(FRAME) - len(example) == part.batch.nbytes == len(HEAD + BATCH)
    )  # the batch itself is shown above


def test_the_slot_of_the_example_key() -> None:
    found = re.search(r"`123456789` (?:is|has) slot (\d+)", PAGE)
    assert found
    assert key_slots(encode_batch([b""], keys=[b"123456789"])).tolist() == [int(found[1])]
