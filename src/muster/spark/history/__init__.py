"""The history of consumer groups as DataFrames, and as a query that keeps writing it.

from muster.spark import history, session

spark = session("history")
found = history.tables(spark, bootstrap="localhost:9092")
found.rebalances.where("cause = 'session_expired'").select("at", "group", "evidence").show()

How it works: packed.py (how rows travel), buckets.py (the state), folding.py (what Spark calls), source.py (what is
read, and how time advances), sink.py (what is written).
"""

from importlib.util import find_spec

if find_spec("pandas") is None:
    raise ModuleNotFoundError(
        "muster.spark.history needs pandas, which is not installed: pip install 'muster-kafka[spark]'", name="pandas"
    )

from muster.spark.history.job import History, alone, check, entries, follow, read, tables
from muster.spark.history.whole import whole

__all__ = ["History", "alone", "check", "entries", "follow", "read", "tables", "whole"]
