"""Backfill, then live: everything from a given time, in batches of limited size, and then new records.

The first run starts at the first record at or after the given time; later runs continue from the group's commits. To
backfill from another time, use another group and checkpoint.

python backfill.py 2026-11-01T00:00:00Z
pip install 'muster-kafka[spark]'
"""

import sys
from datetime import datetime

from muster.spark import on_progress, session

SINCE = datetime.fromisoformat(sys.argv[1])

spark = session("orders-archive")
on_progress(spark, lambda told: print(f"{told.rows} records, {told.total_lag} to go", flush=True))
orders = (
    spark.readStream.format("muster")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .options(subscribe="orders", groupId="orders-archive", maxOffsetsPerTrigger=100_000)
    .option("startingTimestamp", int(SINCE.timestamp() * 1_000))
    .option("startingOffsetsByTimestampStrategy", "latest")  # a partition without such a record starts at its end
    .load()
)
query = (
    orders.selectExpr("partition", "offset", "timestamp", "cast(value as string) as value")
    .writeStream.format("parquet")
    .options(path="orders-archive", checkpointLocation="checkpoints/orders-archive")
    .trigger(processingTime="5 seconds")
    .start()
)
query.awaitTermination()
