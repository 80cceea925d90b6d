"""The Python of docs/spark.md, typed as it stands there, against a real broker; and what a deleted topic is to a stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydanube.sync import connect

from tests.support.broker_process import BrokerProcess, client_environment

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400), pytest.mark.long]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
ORDER = {
    "type": "object",
    "properties": {"customer": {"type": "string"}, "amount": {"type": "number"}},
}
STREAMED_S = 120


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    with connect(broker.info["grpc"]) as client:
        client.schemas.register("documented", "json_schema", json.dumps(ORDER))
        with client.producer("documented", schema="documented") as producer:
            for number in range(6):
                payload = json.dumps({"customer": f"c{number % 2}", "amount": number}).encode()
                producer.send(payload, key=f"c{number % 2}")
    table, stream, write, decode = (text.replace("orders", "documented") for text in blocks())
    # As on the page, but that it ends; a process of its own, since workers have the environment their JVM began in.
    assert stream.endswith('.toTable("documented")\n')
    program = tmp_path / "page.py"
    program.write_text(
        table
        + stream.replace("stream.writeStream", "query = stream.writeStream")
        + "query.processAllAvailable()\n"
        + 'frame = spark.createDataFrame([("c7", 70.0), ("c8", 80.0)], "customer string, amount double")\n'
        + write
        + "query.processAllAvailable()\nquery.stop()\n"
        + 'print("streamed", sorted(row.key for row in spark.table("documented").collect()))\n'
        + decode
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        env=client_environment(
            {"DANUBE_BROKER_URL": broker.info["grpc"], "DANUBE_ADMIN_ENDPOINT": broker.info["admin"]}
        ),
        timeout=300,
        check=False,
    )
    shown = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert re.search(r"c0\s*\|\s*3", shown), shown
    assert "streamed ['c7', 'c8']" in shown
    assert re.search(r"c0\s*\|\s*6\.0", shown), shown
    assert re.search(r"c7\s*\|\s*70\.0", shown), shown


def test_a_stream_does_not_take_a_topic_made_again_for_the_one_it_read(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    where = {"broker": broker.info["grpc"], "admin": broker.info["admin"], "start": "earliest"}

    def run() -> int:
        stream = spark.readStream.format("danube").options(topic="again", **where).load()
        started = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        )
        query = started.start(str(tmp_path / "rows"), format="parquet")
        assert query.awaitTermination(STREAMED_S), "it did not end"
        return int(spark.read.parquet(str(tmp_path / "rows")).count())

    def send(count: int) -> None:
        with connect(broker.info["grpc"]) as client, client.producer("again") as producer:
            producer.send_many(b"x" for _ in range(count))

    send(5)
    assert run() == 5
    send(2)
    assert run() == 7
    broker.command("topics", "delete", "again", "--yes")
    send(20)  # it has more than seven by now: offsets alone would not tell
    with pytest.raises(Exception, match="is not the topic of the checkpoint"):
        run()


def test_the_job_of_the_examples_sums_what_each_customer_spent(broker: BrokerProcess, tmp_path: Path) -> None:
    with connect(broker.info["grpc"]) as client, client.producer("spent") as producer:
        for number in range(6):
            producer.send(json.dumps({"total": number}).encode(), key=f"c{number % 2}")
    program = Path(__file__).resolve().parents[2] / "examples" / "spark_job.py"
    addresses = {"DANUBE_BROKER_URL": broker.info["grpc"], "DANUBE_ADMIN_ENDPOINT": broker.info["admin"]}
    done = subprocess.run(
        [sys.executable, str(program), "spent", "totals.parquet"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=tmp_path, env=client_environment(addresses),
        timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("2 customers\n"), done.stderr
    rows = pq.read_table(tmp_path / "totals.parquet").to_pylist()
    assert sorted((row["key"], row["orders"], int(row["spent"])) for row in rows) == [
        ("c0", 3, 6),
        ("c1", 3, 9),
    ]
