"""The helper process that syncs dies: what it had seen is lost with it, so the journal is read-only until a restart."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube import ClusterError, Retry, connect

from tests.support.broker_process import BrokerProcess
from tests.support.load import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(200)]


def ready(broker: BrokerProcess) -> tuple[int, dict[str, Any]]:
    """Status code and body of `/readyz`."""
    try:
        with urllib.request.urlopen(f"{broker.metrics}/readyz", timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


async def test_a_killed_sync_helper_makes_the_journal_read_only_until_a_restart(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    broker = make_broker(face="broker")
    with anyio.fail_after(180):
        await to_thread.run_sync(broker.start)
        helper = broker.helper_running()[0]
        async with connect(broker.url, retry=Retry(max_elapsed_s=0)) as client:
            async with client.producer("t") as producer:
                await producer.send_many([b"kept"] * 50)
                # The sync that the next message waits for never returns: nobody will know what it would have said.
                os.kill(helper, signal.SIGSTOP)
                waiting = producer.send_nowait(b"unknown")
                await anyio.sleep(0.2)
                os.kill(helper, signal.SIGKILL)
                with pytest.raises(ClusterError) as caught:
                    await waiting
                assert caught.value.code == "JOURNAL_READ_ONLY"
                assert not caught.value.retryable
                assert caught.value.details["outcome"] == "unknown"
            with pytest.raises(ClusterError) as refused:
                async with client.producer("t") as producer:
                    await producer.send(b"refused")
            assert refused.value.code == "JOURNAL_READ_ONLY"
            # Reads go on.
            async with client.reader("t", stop="head") as reader:
                assert [message.payload async for message in reader] == [b"kept"] * 50
        code, body = await to_thread.run_sync(ready, broker)
        assert (code, body["ready"], [r["code"] for r in body["reasons"]]) == (
            503,
            False,
            ["JOURNAL_READ_ONLY"],
        )
        status = await to_thread.run_sync(broker.status)
        assert status["read_only"] is True
        assert await to_thread.run_sync(broker.stop) == 0, "it still stops in order"

        await to_thread.run_sync(broker.start)
        code, body = await to_thread.run_sync(ready, broker)
        assert (code, body["ready"], body["reasons"]) == (200, True, [])
        async with connect(broker.url, retry=PATIENCE) as client:
            async with client.reader("t", stop="head") as reader:
                payloads = [message.payload async for message in reader]
            # The unknown one is there or not: both are what its producer was told.
            assert payloads in ([b"kept"] * 50, [b"kept"] * 50 + [b"unknown"])
            async with client.producer("t") as producer:
                assert (await producer.send(b"on")).offset == len(payloads)
    broker.check_log(allow=["journal_read_only", "journal_failed", "audit_records_dropped"])
