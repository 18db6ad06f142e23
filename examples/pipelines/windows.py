"""Windows by event time: revenue per customer and hour, upserted into SQLite. An order may arrive two hours late.

A query with windows keeps state, so it has its own group. Each batch is in the database once, even if Spark runs it
again after a crash.

pip install 'muster-kafka[spark]'
"""

import sqlite3

from pyspark.sql.functions import col, count, from_json, sum, window

from muster.spark import session
from muster.spark.upsert import into_database

KAFKA = {"kafka.bootstrap.servers": "localhost:9092"}
ORDER = "order_id STRING, customer STRING, amount DOUBLE, at TIMESTAMP"
CHECKPOINT = "checkpoints/revenue"

with sqlite3.connect("revenue.sqlite") as database:
    database.execute(
        "create table if not exists revenue "
        "(customer text, hour text, orders integer, amount real, primary key (customer, hour))"
    )

spark = session("revenue", **{"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"})
orders = (
    spark.readStream.format("muster")
    .options(**KAFKA, subscribe="orders", groupId="revenue", startingOffsets="earliest", checkpointLocation=CHECKPOINT)
    .load()
    .select(from_json(col("value").cast("string"), ORDER).alias("order"))
    .select("order.*")
    .where("customer is not null")  # part of the table's key; `from_json` returns null for records that do not match
)
revenue = (
    orders.withWatermark("at", "2 hours")
    .groupBy("customer", window("at", "1 hour"))
    .agg(count("*").alias("orders"), sum("amount").alias("amount"))
    .select("customer", col("window.start").alias("hour"), "orders", "amount")
)
query = (
    revenue.writeStream.outputMode("update")
    .foreachBatch(into_database(lambda: sqlite3.connect("revenue.sqlite"), "revenue", ["customer", "hour"]))
    .option("checkpointLocation", CHECKPOINT)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
