"""`cp -a` of a data directory in use: a start of the copy is refused by name, or has a whole beginning of every topic."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from pydanube import connect

from tests.support.broker_process import BrokerDied, BrokerProcess

COPIES = 3


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_copy_made_while_the_broker_runs_is_refused_or_whole_up_to_a_point(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    environment = {"DANUBE_TIER__FLUSH_AGE": "300ms", "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB"}
    broker = make_broker(environment=environment)
    broker.start()
    over = threading.Event()
    sent = [0]

    async def load() -> None:
        async with connect(broker.url) as client:
            while not over.is_set():
                async with client.producer(f"t{sent[0] // 2000}") as producer:
                    await producer.send_many([b"%d %s" % (sent[0] + i, b"x" * 200) for i in range(200)])
                sent[0] += 200

    loader = threading.Thread(target=anyio.run, args=(load,))
    loader.start()
    copies = []
    try:
        for number in range(COPIES):
            before = sent[0]
            while sent[0] < before + 2400:
                time.sleep(0.02)
            copies.append((tmp_path / f"copy-{number}", sent[0]))
            # It says of files that went meanwhile that they did, and goes on
            subprocess.run(["cp", "-a", str(broker.data_dir), str(copies[-1][0])], check=False)
    finally:
        over.set()
        loader.join()
    assert broker.stop() == 0

    for folder, acknowledged in copies:
        copy = make_broker(data_dir=folder, environment=environment)
        refused: BrokerDied | None = None
        try:
            copy.start()
        except BrokerDied as died:
            refused = died
        if refused is not None:
            assert refused.exit_code == 5, refused.log
            assert "Traceback" not in refused.log
            assert "CORRUPT" in refused.log or "STORE_OWNED" in refused.log
            continue
        found = []
        for number in range(acknowledged // 2000):
            got = copy.command("consume", f"t{number}", "--exit", "--format", "raw").stdout.splitlines()
            found += [int(line.split()[0]) for line in got]
        assert found == list(range(acknowledged // 2000 * 2000)), "what was there before the copy was begun"
        assert "Traceback" not in copy.log()
        assert copy.stop() == 0
