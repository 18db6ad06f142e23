"""Each record once in a database, though Spark may run a batch twice: a record's place in Kafka is the key of its row.

The place (topic, partition, offset) is never given to another record. So it does not matter which batch, query or
member of the group brings a record, or how often: the row is there once. Any database with a primary key will do.

pip install 'muster-kafka[spark]'
"""

import sqlite3

from pyspark.sql import DataFrame

from muster.spark import session

TABLE = """
    create table if not exists flights (
        topic text, part integer, position integer, flight text, primary key (topic, part, position)
    )
"""


def write_batch(rows: DataFrame, batch_id: int) -> None:
    """All rows in one transaction; those that are there already stay as they are."""
    with sqlite3.connect("flights.sqlite") as database:
        database.execute(TABLE)
        found = (tuple(row) for row in rows.toLocalIterator())
        database.executemany("insert or ignore into flights values (?, ?, ?, ?)", found)


if __name__ == "__main__":
    spark = session("flights-to-sqlite")
    source = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "flights", "groupId": "to-sqlite"}
    flights = spark.readStream.format("muster").options(**source, startingOffsets="earliest").load()
    rows = flights.selectExpr("topic", "partition", "offset", "cast(value as string) as flight")
    query = rows.writeStream.foreachBatch(write_batch).option("checkpointLocation", "checkpoints/sqlite")
    query.trigger(availableNow=True).start().awaitTermination()
