"""Two streams joined: orders with the payment made within a day, into Parquet.

Both topics have the order's id as the key, and the same number of partitions. So the join can be spread over several
queries, each with a fixed share of both topics: `python stream_join.py 0/2` and `python stream_join.py 1/2`.

pip install 'muster-kafka[spark]'
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, expr, from_json

from muster.spark import session

SHARE = sys.argv[1] if len(sys.argv) > 1 else "0/1"
NAME = f"paid-orders-{SHARE.replace('/', '-of-')}"
CHECKPOINT = f"checkpoints/{NAME}"

spark = session(NAME, **{"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"})


def events(topic: str, schema: str) -> DataFrame:
    return (
        spark.readStream.format("muster")
        .option("kafka.bootstrap.servers", "localhost:9092")
        .options(subscribe=topic, share=SHARE, groupId=f"paid-orders-{topic}", startingOffsets="earliest")
        .load()
        .select(from_json(col("value").cast("string"), schema).alias("event"))
        .select("event.*")
    )


orders = events("orders", "order_id STRING, customer STRING, amount DOUBLE, at TIMESTAMP")
payments = events("payments", "paid_order STRING, paid DOUBLE, paid_at TIMESTAMP")
paid = orders.withWatermark("at", "1 day").join(
    payments.withWatermark("paid_at", "1 day"),
    expr("order_id = paid_order AND paid_at BETWEEN at AND at + INTERVAL 1 DAY"),
)
query = (
    paid.writeStream.format("parquet")
    .options(path=f"paid-orders/{NAME}", checkpointLocation=CHECKPOINT)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
