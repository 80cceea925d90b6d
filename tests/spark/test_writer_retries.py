"""A task of a write is killed when some of its messages are stored: Spark tries it again, and each row is there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydanube.sync import connect

from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]

ROWS, STORED = 4000, 300
# The worker that makes the rows dies, and its task with it, once the broker has some of them. Small batches: the writer
# gets rows while others are still to come; and large rows, which do not wait in a buffer on the way.
WRITE = """
import os, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import pyarrow as pa
from pydanube_admin.remote import call_sync
from pydanube_spark import open_session

folder, grpc, admin, rows, stored = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
spark = open_session("local[2,4]", settings={"spark.sql.execution.arrow.maxRecordsPerBatch": "50"})
spark.sparkContext.setLogLevel("OFF")

def made(batches):
    from pyspark import TaskContext
    part = TaskContext.get().partitionId()
    killed = Path(folder, f"killed-{part}")
    count = 0
    for batch in batches:
        payloads = [f"p{number}".ljust(6000) for number in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_pydict({"payload": payloads})
        count += len(payloads)
        if count >= 1000 and not killed.exists():
            deadline = time.monotonic() + 60
            while call_sync(admin, "topics.describe", {"topic": "retried"})["messages"] < stored:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            killed.touch()
            os._exit(9)

frame = spark.range(0, rows, 1, 2).mapInArrow(made, "payload string")
frame.write.format("danube").options(topic="retried", broker=grpc, admin=admin).mode("append").save()
"""


def test_a_task_that_is_killed_half_way_writes_each_row_once(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.command("topics", "create", "retried")
    where = [str(tmp_path), broker.info["grpc"], broker.info["admin"], str(ROWS), str(STORED)]
    done = subprocess.run(
        [sys.executable, "-c", WRITE, *where],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-0", "killed-1"}, "no task was killed"
    with (
        connect(broker.info["grpc"]) as client,
        client.reader("retried", start="earliest", stop="head") as reader,
    ):
        found = [message.payload.decode().rstrip() for message in reader]
    assert sorted(found) == sorted(f"p{number}" for number in range(ROWS))
