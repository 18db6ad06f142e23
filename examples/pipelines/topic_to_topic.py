"""From topic to topic: orders in, large orders out. Each record is handled at least once.

pip install 'muster-kafka[spark]'
"""

from pyspark.sql.functions import col, from_json

from muster.spark import session

KAFKA = {"kafka.bootstrap.servers": "localhost:9092"}
ORDER = "order_id STRING, customer STRING, amount DOUBLE, at TIMESTAMP"

spark = session("large-orders")
orders = (
    spark.readStream.format("muster")
    .options(**KAFKA, subscribe="orders", groupId="large-orders", startingOffsets="earliest")
    .load()
)
order = from_json(col("value").cast("string"), ORDER)
query = (
    orders.where(order["amount"] >= 100)
    .select("key", "value")
    .writeStream.format("muster")
    .options(**KAFKA, topic="large-orders", checkpointLocation="checkpoints/large-orders")
    .trigger(availableNow=True)  # all existing records; leave it out to run forever
    .start()
)
query.awaitTermination()
