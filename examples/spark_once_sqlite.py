"""Each record once in a database, although Spark may run a batch twice: the key of a row is its record's position in
Kafka.

The position (topic, partition, offset) identifies the record. So it does not matter which batch, query or member of the
group delivers it, or how often: there is one row. Any database with primary keys will do.

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
    """All rows in one transaction; existing ones are left as they are."""
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
