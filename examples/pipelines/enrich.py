"""Enrichment: orders with their customer's name and country, to a topic.

The customers are in a compacted topic. They are read again for each batch, so a change takes effect with the next
batch.

pip install 'muster-kafka[spark]'
"""

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, col, from_json, max_by, struct, to_json

from muster.spark import session

KAFKA = {"kafka.bootstrap.servers": "localhost:9092"}

spark = session("enrich-orders")


def customers() -> DataFrame:
    """The last record of each key; a tombstone deletes a customer."""
    records = spark.read.format("muster").options(**KAFKA, subscribe="customers").load()
    latest = records.groupBy(col("key").cast("string").alias("customer")).agg(
        max_by(struct(col("value").cast("string").alias("text")), struct("partition", "offset")).alias("last")
    )
    known = latest.where("last.text IS NOT NULL")
    return known.select("customer", from_json("last.text", "name STRING, country STRING").alias("c")).select(
        "customer", "c.*"
    )


def enrich(orders: DataFrame, batch: int) -> None:
    joined = orders.join(broadcast(customers()), "customer", "left")
    records = joined.select(col("order_id").alias("key"), to_json(struct("*")).alias("value"))
    records.write.format("muster").mode("append").options(**KAFKA, topic="orders-enriched").save()


orders = (
    spark.readStream.format("muster")
    .options(**KAFKA, subscribe="orders", groupId="enrich-orders", startingOffsets="earliest")
    .load()
    .select(from_json(col("value").cast("string"), "order_id STRING, customer STRING, amount DOUBLE").alias("order"))
    .select("order.*")
)
query = (
    orders.writeStream.foreachBatch(enrich)
    .option("checkpointLocation", "checkpoints/enrich-orders")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
