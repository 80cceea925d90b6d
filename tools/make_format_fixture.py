"""Write tests/data/format-1: journals of format 1 that every later version must open, and what is in them.

Run once for a format and commit the result; a changed fixture would prove nothing. It holds a journal that was
stopped and one that was abandoned with an unproven tail, each of several segments of 32 KiB, with batches of every
column and codec, cursors, trims, producer sessions, a deleted topic, and the sidecars of sealed segments.

    .venv/bin/python -m tools.make_format_fixture FOLDER
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydanube_broker.journal import Disk, Journal, JournalOptions, RecordKind
from pydanube_broker.journal.helper import InlineSyncer
from pydanube_broker.subscription.cursor import Attempts, CursorDelta, encode_delta
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import (
    LogState,
    encode_cursor_body,
    encode_open_body,
    encode_session_body,
    encode_trim_body,
)
from pydanube_broker.topics.producers import Opening
from pydanube_core.batch import BROKER_PART_BYTES, BatchView, Codec, broker_part, encode_batch
from pydanube_core.errors import Overloaded

from tests.broker.journal.ledger import InlinePreparer, SameThread

SEGMENT_BYTES = 32 << 10
TIME_MS = 1_760_000_000_000


def open_journal(folder: Path) -> tuple[Journal, Hub]:
    """A journal of small segments and the hub that owns it, not recovered yet."""
    hub, disk = Hub(), Disk()
    hub.journal = Journal(
        folder,
        JournalOptions(segment_bytes=SEGMENT_BYTES),
        hub,
        disk=disk,
        syncer=InlineSyncer(disk),
        preparer=InlinePreparer(disk),
        worker=SameThread(),
    )
    return hub.journal, hub


def contents(journal: Journal, hub: Hub) -> dict[str, Any]:
    """Everything that can be known of an open journal, as JSON has it."""
    hub.fold_replayed()
    return {str(topic_id): _topic(journal, state) for topic_id, state in sorted(hub.states.items())}


def _topic(journal: Journal, state: LogState) -> dict[str, Any]:
    batches: list[dict[str, Any]] = []
    offset = state.start_offset
    while offset < state.next_offset:
        found = journal.read(state.topic_id, offset, state.next_offset, 1 << 20)
        if found is None:
            found = journal.read_planned(
                journal.plan_read(state.topic_id, offset, state.next_offset, 1 << 20)
            )()
        if not found:
            break
        batches += [_batch(b"".join(batch.buffers)) for batch in found]
        offset = found[-1].end
    return {
        "epoch": state.epoch,
        "start_offset": state.start_offset,
        "next_offset": state.next_offset,
        "append_time_ms": state.append_time_ms,
        "messages": state.messages,
        "stored_bytes": state.stored_bytes,
        "next_producer_id": state.producers.next_id,
        "producers": [
            {
                "id": session.producer_id,
                "epoch": session.epoch,
                "name": session.name,
                "next_sequence": session.next_sequence,
                "recent": [
                    [batch.first_sequence, batch.count, batch.base_offset, batch.append_time_ms]
                    for batch in session.recent
                ],
            }
            for session in state.producers.sessions()
        ],
        "cursors": {
            str(subscription_id): {
                "generation": cursor.generation,
                "floor": cursor.floor,
                "acknowledged": [list(pair) for pair in cursor.acknowledged],
                "attempts": [[a.start, a.end, a.deliveries, a.failures] for a in cursor.attempts],
            }
            for subscription_id, cursor in sorted(state.cursors.items())
        },
        "batches": batches,
    }


def _short(payload: bytes) -> str:
    """A payload as text, or what it takes to recognise a long one."""
    return payload.hex() if len(payload) <= 8 else f"{len(payload)}:{sha256(payload).hexdigest()[:16]}"


def _batch(stored: bytes) -> dict[str, Any]:
    view = BatchView.stored(stored)
    part = view.part
    schemas = view.schemas()
    return {
        "bytes": len(stored) - BROKER_PART_BYTES,
        "append_time_ms": view.append_time_ms,
        "offsets": list(view.offsets()),
        "payloads": [_short(payload) for payload in view.payloads()],
        "keys": [None if key is None else key.hex() for key in view.keys() or []],
        "attributes": view.attributes(),
        "publish_times_ms": view.publish_times_ms(),
        "producers": view.producers(),
        "producer_index": list(view.producer_index() or ()),
        "sequences": list(view.sequences()),
        "schema": [part.schema_id, part.schema_version],
        "schemas": None if schemas is None else [schemas[0], list(schemas[1])],
        "codec": part.codec.name,
        "producer": [part.producer_id, part.producer_epoch],
    }


class Writer:
    """Appends as the broker's topics do, with a clock of its own."""

    def __init__(self, journal: Journal, hub: Hub) -> None:
        self.journal, self.hub = journal, hub
        self.now_ms = TIME_MS + sum(state.messages for state in hub.states.values())

    async def _room(self, data: bytes) -> None:
        while True:
            try:
                self.journal.check_room(len(data))
                return
            except Overloaded:
                await asyncio.sleep(0)

    def _record(self, kind: RecordKind, topic_id: int, body: bytes) -> LogState:
        self.journal.append(kind, topic_id, [body])
        state = self.hub.take_state(topic_id)
        header = type("Header", (), {"kind": kind})  # what `apply` looks at of a header
        state.apply(header, memoryview(body))  # type: ignore[arg-type]
        return state

    def open(self, topic_id: int, epoch: int, start: int = 0) -> None:
        self._record(RecordKind.TOPIC_OPEN, topic_id, encode_open_body(epoch, start))

    def trim(self, topic_id: int, start: int) -> None:
        self._record(RecordKind.TRIM_PREFIX, topic_id, encode_trim_body(start))

    def producer(self, topic_id: int, producer_id: int, epoch: int, name: str) -> None:
        opening = Opening(producer_id, epoch, token=producer_id << 32 | epoch, name=name)
        self._record(RecordKind.SESSION, topic_id, encode_session_body(opening))

    def cursor(self, topic_id: int, subscription_id: int, delta: CursorDelta) -> None:
        self._record(RecordKind.CURSOR, topic_id, encode_cursor_body(subscription_id, encode_delta(delta)))

    async def batch(self, topic_id: int, payloads: list[bytes], **columns: Any) -> None:
        state = self.hub.take_state(topic_id)
        data = encode_batch(payloads, **columns)
        await self._room(data)
        self.now_ms += 7
        base = state.next_offset
        deltas = columns.get("offset_deltas")
        last = base + (deltas[-1] if deltas else len(payloads) - 1)
        part = broker_part(base_offset=base, last_offset=last, epoch=state.epoch, append_time_ms=self.now_ms)
        self.journal.append_batch(
            topic_id,
            part,
            data,
            base=base,
            end=last + 1,
            count=len(payloads),
            time_ms=self.now_ms,
        )
        header = type("Header", (), {"kind": RecordKind.BATCH})
        state.apply(header, memoryview(part + data))  # type: ignore[arg-type]


def every_column(n: int, codec: Codec, first_sequence: int) -> Mapping[str, Any]:
    return {
        "keys": [None if i % 3 == 0 else f"key {i}".encode() if i % 3 == 1 else b"" for i in range(n)],
        "attributes": [{"händler": "östlich", "n": str(i)} if i % 2 else None for i in range(n)],
        "publish_times_ms": [TIME_MS + 10 - i for i in range(n)],
        "producers": [(41, "one"), (42, "zwei")],
        "producer_index": [i % 2 for i in range(n)],
        "sequences": [first_sequence + 2 * i for i in range(n)],
        "schemas": [(5, 1), (5, 2), (0, 0)],
        "schema_index": [i % 3 for i in range(n)],
        "offset_deltas": [3 * i for i in range(n)],
        "codec": codec,
    }


async def write(folder: Path, *, clean: bool) -> dict[str, Any]:
    """Two lives: the second appends behind a restart, and is stopped or abandoned."""
    for life in (1, 2):
        journal, hub = open_journal(folder)
        journal.recover()
        await journal.begin()
        writer = Writer(journal, hub)
        if life == 1:
            writer.open(11, 1)
            writer.open(12, 3, start=1000)
            writer.open(13, 1)
            writer.producer(11, 1, 1, "first")
            writer.producer(11, 2, 4, "zweiter")
        for step in range(9):
            await writer.batch(
                11,
                [f"{life}/{step}/{i}".encode() for i in range(20)],
                producer_id=1,
                producer_epoch=1,
                first_sequence=((life - 1) * 9 + step) * 20,
                publish_time_ms=TIME_MS + step,
            )
            for codec in Codec:
                await writer.batch(
                    12,
                    [bytes([step, i]) * (i * 40) for i in range(6)],
                    **every_column(6, codec, step),
                )
            if life == 1:
                await writer.batch(13, [bytes(1500), b""])  # sectors of zeros that are not missing
            writer.cursor(
                11,
                77,
                CursorDelta(
                    generation=life,
                    floor=step * 10,
                    acknowledged=((step * 10 + 2, step * 10 + 5),),
                    attempts=(Attempts(start=step * 10 + 7, end=step * 10 + 8, deliveries=3, failures=1),),
                ),
            )
            writer.cursor(12, 78, CursorDelta(generation=1, floor=1000 + step, acknowledged=(), attempts=()))
            await asyncio.sleep(0)
        writer.trim(12, 1010 + life)
        if life == 1:
            hub.drop(13)
        else:
            writer.open(14, 1)
            await writer.batch(14, [b"a topic that only the tail knows"], schema=(9, 2))
        while journal.waiting_bytes:  # noqa: ASYNC110 - the loop is ours alone
            await asyncio.sleep(0)
        found = contents(journal, hub)
        if clean or life == 1:
            await journal.close()
        else:
            journal.abandon()
    return found


def as_text(expected: dict[str, Any]) -> str:
    """JSON with a batch a line, so that a difference can be read."""
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    lines: list[str] = []
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if depth > 5 or (depth == 5 and line.strip() in ("}", "},", "]", "],")):
            lines[-1] += line.strip()
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    if folder.exists():
        raise SystemExit(f"{folder} is there already: a fixture is written once. Remove it to start anew")
    folder.mkdir(parents=True)
    expected = {}
    for name, clean in (("stopped", True), ("abandoned", False)):
        expected[name] = asyncio.run(write(folder / name / "journal", clean=clean))
    (folder / "expected.json").write_text(as_text(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
