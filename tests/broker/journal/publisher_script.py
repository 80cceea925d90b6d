"""Appends to a journal as fast as it can and says on stdout what it appends and what is acknowledged.

Run by `test_killed_process` as: publisher_script.py FOLDER SEED SEGMENT_BYTES. Lines: `a topic base count size seed`
before an append, `d topic end` when it is durable.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import deque
from pathlib import Path

from pydanube_broker.journal import Disk, HelperPreparer, Journal, JournalOptions
from pydanube_broker.journal.helper import HelperSyncer
from pydanube_core.batch import broker_part
from pydanube_core.errors import Overloaded

from tests.broker.journal.ledger import Ledger, make_data


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def main(folder: Path, seed: int, segment_bytes: int) -> None:
    chance = random.Random(seed)
    ledger = Ledger()
    waiting: deque[tuple[int, int, int]] = deque()

    def durable(lsn: int) -> None:
        while waiting and waiting[0][0] <= lsn:
            _, topic, end = waiting.popleft()
            # On stable storage by now: the batch and everything before it, by a completed fdatasync.
            say(f"d {topic} {end}")

    ledger.on_durable = durable
    journal = Journal(
        folder,
        JournalOptions(segment_bytes=segment_bytes),
        ledger,
        disk=Disk(),
        syncer=HelperSyncer(),
        preparer=HelperPreparer(),
    )
    journal.recover()
    await journal.begin()
    while True:
        for _ in range(chance.randint(1, 8)):
            topic, count, size = chance.randint(1, 3), chance.randint(1, 4), chance.choice((1, 90, 700, 5000))
            base = ledger.next.get(topic, 0)
            data = make_data(topic, base, count, size, seed)
            try:
                journal.check_room(len(data))
            except Overloaded:
                await asyncio.sleep(0.001)
                continue
            say(f"a {topic} {base} {count} {size} {seed}")
            part = broker_part(
                base_offset=base, last_offset=base + count - 1, epoch=1, append_time_ms=1000 + base
            )
            lsn = journal.append_batch(
                topic, part, data, base=base, end=base + count, count=count, time_ms=1000 + base
            )
            ledger.next[topic] = base + count
            waiting.append((lsn, topic, base + count))
        await asyncio.sleep(0 if chance.random() < 0.8 else 0.002)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
