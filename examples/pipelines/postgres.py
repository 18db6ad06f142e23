"""Upserts into PostgreSQL: the last state of each order, each batch once, in one transaction.

The time column is a `timestamptz`: without a time zone PostgreSQL would use the server's.

pip install 'muster-kafka[spark]' 'psycopg[binary]'
"""

import os

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json, max_by, struct

from muster.spark import session
from muster.spark.upsert import into_database

ADDRESS = os.environ.get("ORDERS_DATABASE", "postgresql://localhost/orders")
ORDER = "order_id STRING, customer STRING, amount DOUBLE, at TIMESTAMP"

with psycopg.connect(ADDRESS) as database:
    database.execute(
        "create table if not exists orders "
        "(order_id text primary key, customer text, amount double precision, at timestamptz)"
    )

spark = session("orders-to-postgres", **{"spark.sql.session.timeZone": "UTC"})
orders = (
    spark.readStream.format("muster")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .options(subscribe="orders", groupId="orders-to-postgres", startingOffsets="earliest")
    .load()
    .select("partition", "offset", from_json(col("value").cast("string"), ORDER).alias("order"))
    .where("order.order_id is not null")
)
write = into_database(lambda: psycopg.connect(ADDRESS), "orders", ["order_id"])


def write_last(batch: DataFrame, number: int) -> None:
    """The last record of each order in a batch: they are in one partition, in the order of their offsets."""
    last = batch.groupBy("order.order_id").agg(max_by("order", struct("partition", "offset")).alias("order"))
    write(last.select("order.*"), number)


query = (
    orders.writeStream.foreachBatch(write_last)
    .option("checkpointLocation", "checkpoints/orders-to-postgres")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
