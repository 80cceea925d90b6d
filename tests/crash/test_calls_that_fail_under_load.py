"""EIO, ENOSPC and EMFILE from the system under load: nothing acknowledged is lost, and what is refused is refused by name.

`failing_calls.c` is put before the C library of the broker and of its helpers. What was acknowledged is judged by
`tests.support.history`, which knows nothing of the broker.
"""

from __future__ import annotations

import errno
import mmap
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio import to_thread
from pydanube import ClusterError, connect
from pydanube_admin.remote import OpsClient

from tests.crash.test_changes_on_a_full_disk import reasons
from tests.support.broker_process import BrokerProcess
from tests.support.history import History
from tests.support.load import PATIENCE, Load, read_topic
from tests.support.waiting import wait_until

ORDERS = "/default/orders"
WRITES, SYNCS, OPENS = 1, 2, 4
SEED: Final = 1
ROUNDS: Final = 2
_FIELDS: Final = struct.Struct("<iiii")  # errno, which calls, how many are left to fail, how many failed


class _UntilRefused(Load):
    """Producers end with the first refusal: a read-only broker refuses at once, again and again."""

    def _failed(self, name: str, numbers: list[int], error: ClusterError) -> None:
        super()._failed(name, numbers, error)
        self.stop()


class Faults:
    """What the broker's calls of the system come to; the file is shared with it."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("NOT RUN: there is no C compiler `cc` here")
        self._library, self._path = folder / "failing_calls.so", folder / "faults"
        source = Path(__file__).with_name("failing_calls.c")
        made = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"],
            capture_output=True,
            check=False,
        )
        if made.returncode != 0:
            pytest.skip(f"NOT RUN: `cc` does not make it here: {made.stderr.decode()[-500:]}")
        self._path.write_bytes(bytes(_FIELDS.size))
        with self._path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _FIELDS.size)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "FAULTS": str(self._path)}

    def begin(self, error: int, calls: int, count: int) -> None:
        self._shared[:] = _FIELDS.pack(error, calls, count, 0)

    def end(self) -> None:
        self._shared[:4] = bytes(4)

    @property
    def failed(self) -> int:
        return int(_FIELDS.unpack(self._shared[:])[3])


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    found = Faults(tmp_path)
    yield found
    found.end()


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("error", "calls", "count"),
    [
        (errno.EIO, SYNCS, 1),
        (errno.EIO, WRITES, 1),
        (errno.EIO, WRITES | SYNCS, 1 << 30),
        (errno.ENOSPC, WRITES, 1),
        (errno.ENOSPC, WRITES, 1 << 30),
        (errno.EMFILE, OPENS, 20),
        (errno.EMFILE, OPENS, 1 << 30),
    ],
    ids=lambda value: errno.errorcode.get(value, str(value)) if value > 4 else str(value),
)
async def test_what_was_acknowledged_is_there_whatever_the_system_refuses(
    make_broker: Callable[..., BrokerProcess], faults: Faults, error: int, calls: int, count: int
) -> None:
    history, rng = History(SEED), random.Random(f"{SEED}/{error}/{calls}/{count}")
    broker = make_broker(
        face="broker",
        environment={
            "DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB",
            "DANUBE_DATA__MIN_FREE_BYTES": "1MiB",
            **faults.environment,
        },
    )
    left, reached = 0, anyio.Event()

    def progressed() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            reached.set()

    async def progress(answers: int) -> None:
        nonlocal left, reached
        left, reached = answers, anyio.Event()
        await reached.wait()

    with anyio.fail_after(560):
        await to_thread.run_sync(broker.start)
        for number in range(ROUNDS):
            load = _UntilRefused(broker.url, history, progressed)
            async with anyio.create_task_group() as producing:
                producing.start_soon(load.lone, f"lone-{number}", ORDERS, SEED)
                producing.start_soon(load.bursts, f"bursts-{number}", ORDERS, SEED)
                producing.start_soon(load.batches, f"plain-{number}", ORDERS, SEED)
                await progress(rng.choice((20, 80, 200)))
                faults.begin(error, calls, count)
                await to_thread.run_sync(wait_until, lambda: faults.failed > 0)
                if calls != OPENS:  # a record may not be on the disk: nothing is taken until the restart
                    await to_thread.run_sync(wait_until, lambda: "JOURNAL_READ_ONLY" in reasons(broker))
                    async with OpsClient(broker.admin) as ops:
                        peeked = await ops.call("messages.peek", {"topic": ORDERS, "limit": 5})
                        assert peeked["items"], "what is there can be read"
                faults.end()
                load.stop()
            assert broker.running
            await to_thread.run_sync(broker.kill)
            await to_thread.run_sync(broker.start)
        async with connect(broker.url, retry=PATIENCE) as client:
            rows = await read_topic(client, ORDERS)
        history.check_log(ORDERS, rows)
        told = [failure for outcome in history.producers.values() for failure in outcome.failures]
        assert not [failure for failure in told if "INTERNAL" in failure], told
        print(
            f"{sum(len(one.acknowledged) for one in history.producers.values())} acknowledged, {len(told)} refused"
        )
        assert await to_thread.run_sync(broker.stop) == 0
