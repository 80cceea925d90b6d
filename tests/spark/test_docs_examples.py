"""The Python of docs/spark.md, typed as it stands there, against a real broker; and what a deleted topic is to a stream."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydanube.sync import connect

from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400), pytest.mark.long]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
ORDER = {
    "type": "object",
    "properties": {"customer": {"type": "string"}, "amount": {"type": "number"}},
}
STREAMED_S = 120


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs(
    spark: Any,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DANUBE_BROKER_URL", broker.info["grpc"])
    monkeypatch.setenv("DANUBE_ADMIN_ENDPOINT", broker.info["admin"])
    monkeypatch.chdir(tmp_path)
    with connect(broker.info["grpc"]) as client:
        client.schemas.register("documented", "json_schema", json.dumps(ORDER))
        with client.producer("documented", schema="documented") as producer:
            for number in range(6):
                payload = json.dumps({"customer": f"c{number % 2}", "amount": number}).encode()
                producer.send(payload, key=f"c{number % 2}")
    table, stream, write, decode = (text.replace("orders", "documented") for text in blocks())
    said: dict[str, Any] = {}
    exec(table, said)
    assert "c0" in capsys.readouterr().out

    # As in the page, but for where the table is, which is Spark's own matter.
    into_table = 'writeStream.option("checkpointLocation", "checkpoint").toTable("documented")'
    assert into_table in stream
    path = str(tmp_path / "rows")
    exec(
        stream.replace(
            f"stream.{into_table}",
            f'query = stream.writeStream.option("checkpointLocation", "checkpoint").start({path!r}, format="parquet")',
        ),
        said,
    )
    query = said["query"]
    try:
        query.processAllAvailable()
        said["frame"] = spark.createDataFrame([("c7", 70.0), ("c8", 80.0)], "customer string, amount double")
        exec(write, said)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row.key for row in spark.read.parquet(path).collect()) == ["c7", "c8"]

    exec(decode, said)
    shown = capsys.readouterr().out
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
