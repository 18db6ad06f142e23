"""Each record once in Parquet, although Spark may run a batch twice: a batch is a folder, which a replay rewrites.

A batch of muster's source has the same records each time it is run, so the folder of a batch id has them once. A
checkpoint belongs to one folder: a query with a new checkpoint numbers its batches from 0 again.

pip install 'muster-kafka[spark]'
"""

from pyspark.sql import DataFrame

from muster.spark import session


def write_batch(rows: DataFrame, batch_id: int) -> None:
    """One folder per batch, complete or replaced."""
    rows.write.mode("overwrite").parquet(f"flights/batch={batch_id}")


if __name__ == "__main__":
    spark = session("flights-to-parquet")
    source = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "flights", "groupId": "to-parquet"}
    flights = spark.readStream.format("muster").options(**source, startingOffsets="earliest").load()
    rows = flights.selectExpr("topic", "partition", "offset", "cast(value as string) as flight")
    query = rows.writeStream.foreachBatch(write_batch).option("checkpointLocation", "checkpoints/parquet")
    query.trigger(availableNow=True).start().awaitTermination()
