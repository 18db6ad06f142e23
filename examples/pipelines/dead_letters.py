"""Dead letters: good orders go to one topic, damaged ones to another, with the reason and their position in a header.

One query writes both: the column `topic` has the topic of each row.

pip install 'muster-kafka[spark]'
"""

from pyspark.sql.functions import array, col, concat_ws, encode, from_json, lit, struct, when

from muster.spark import session

KAFKA = {"kafka.bootstrap.servers": "localhost:9092"}
ORDER = "order_id STRING, customer STRING, amount DOUBLE, at TIMESTAMP"

spark = session("check-orders")
records = (
    spark.readStream.format("muster")
    .options(**KAFKA, subscribe="orders", groupId="check-orders", startingOffsets="earliest")
    .load()
)
order = from_json(col("value").cast("string"), ORDER)
fault = (
    when(order.isNull() | order["order_id"].isNull(), "not an order")
    .when(order["amount"].isNull() | (order["amount"] < 0), "bad amount")
    .when(order["at"].isNull(), "bad time")
)
place = concat_ws("-", "topic", "partition", "offset")
headers = array(
    struct(lit("fault").alias("key"), encode(fault, "utf-8").alias("value")),
    struct(lit("source").alias("key"), encode(place, "utf-8").alias("value")),
)
checked = records.select(
    "key",
    "value",
    when(fault.isNull(), "orders-good").otherwise("orders-dead").alias("topic"),
    when(fault.isNotNull(), headers).alias("headers"),
)
query = (
    checked.writeStream.format("muster")
    .options(**KAFKA, checkpointLocation="checkpoints/check-orders")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
