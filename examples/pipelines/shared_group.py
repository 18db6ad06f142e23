"""Two teams' queries in one group: each reads a part of the orders, and takes over when the other one is down.

Start it twice: `python shared_group.py north` and `python shared_group.py south`. This is for stateless queries;
windows and joins need their own group or fixed shares.

pip install 'muster-kafka[spark]'
"""

import sys

from pyspark.sql import DataFrame

from muster.spark import session

TEAM = sys.argv[1]

spark = session(f"audit-{TEAM}")
orders = (
    spark.readStream.format("muster")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .options(subscribe="orders", groupId="audit", startingOffsets="earliest")
    .load()
    .selectExpr("topic", "partition", "offset", "cast(value as string) as value")
)


def write(rows: DataFrame, batch: int) -> None:
    """A folder per batch, which a second run of the batch replaces."""
    rows.write.mode("overwrite").parquet(f"audit/team={TEAM}/batch={batch}")


query = (
    orders.writeStream.foreachBatch(write)
    .option("checkpointLocation", f"checkpoints/audit-{TEAM}")
    .trigger(processingTime="1 second")
    .start()
)
query.awaitTermination()
