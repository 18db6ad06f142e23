"""The Spark source: a query that is a member of a Kafka consumer group.

from muster.spark import session

spark = session("delays")
flights = spark.readStream.format("muster").options(
    **{"kafka.bootstrap.servers": "localhost:9092", "subscribe": "flights", "groupId": "delays"}
).load()
"""

from muster.spark.sessions import register, session

__all__ = ["register", "session"]
