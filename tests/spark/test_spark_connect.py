"""A session of Spark Connect, the program and the server each a process: reads, writes and streams as any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

pytest.importorskip("pyspark.sql.connect.session", exc_type=ImportError)
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PROGRAM = """
import sys
from pydanube_spark import read_topic, register
from pyspark.sql import SparkSession

url, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
spark.range(5).selectExpr("cast(id as string) payload").write.format("danube").options(broker=url, topic="a").mode(
    "append"
).save()
stream = spark.readStream.format("danube").options(broker=url, topic="a").load().select("payload")
sink = stream.writeStream.format("danube").options(broker=url, topic="b", checkpointLocation=checkpoint)
sink.trigger(availableNow=True).start().awaitTermination()
print(type(spark).__module__, read_topic(spark, "a", broker=url).count())
print(sorted(row[0] for row in spark.read.format("danube").options(broker=url, topic="b").load().selectExpr(
    "cast(payload as string)").collect()))
"""


def test_a_session_of_spark_connect_reads_and_writes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.url, str(tmp_path / "checkpoint")],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["pyspark.sql.connect.session 5", "['0', '1', '2', '3', '4']"]
