"""The Spark source: a query that is a member of a Kafka consumer group.

from muster.spark import session

spark = session("delays")
flights = spark.readStream.format("muster").options(
    **{"kafka.bootstrap.servers": "localhost:9092", "subscribe": "flights", "groupId": "delays"}
).load()
"""

from importlib.util import find_spec

for _needed in ("pyspark", "pyarrow"):
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(
            f"muster.spark needs {_needed}, which is not installed: pip install 'muster-kafka[spark]'", name=_needed
        )

from muster.spark.progress.reports import Progress, progress  # noqa: E402 - after the check
from muster.spark.sessions import on_progress, register, serve_metrics, session  # noqa: E402

__all__ = ["Progress", "on_progress", "progress", "register", "serve_metrics", "session"]
