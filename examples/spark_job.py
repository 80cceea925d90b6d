"""A Spark job: what each customer spent, over all messages of a topic, the ones of this second included.

pip install "pydanube[spark]";  python spark_job.py orders totals.parquet
"""

import sys

from pydanube_spark import open_session, read_topic
from pyspark.sql import functions as f


def main(topic: str, out: str) -> None:
    spark = open_session()
    # Objects of the cold tier are read where they lie; what is younger comes from the broker.
    orders = read_topic(spark, topic).select(
        "key",
        f.get_json_object(f.col("payload").cast("string"), "$.total").cast("decimal(12,2)").alias("total"),
    )
    totals = orders.groupBy("key").agg(f.count("*").alias("orders"), f.sum("total").alias("spent"))
    totals.orderBy(f.desc("spent")).write.mode("overwrite").parquet(out)
    print(totals.count(), "customers")


if __name__ == "__main__":
    main(*sys.argv[1:3])
