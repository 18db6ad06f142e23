"""Backfill, then live: everything from a time on, in batches of bounded size, and then what comes.

The first start begins at the first record of the time given or later; after that the group's commits say where the
query goes on. To fill again from another time, name another group and checkpoint.

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
    .option("startingOffsetsByTimestampStrategy", "latest")  # a partition without a record so young begins at its end
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
