"""Record batches to Arrow columns, for Spark and for data analysis, without a Python object for each record."""

from muster.arrow.decode import Decoder, Fetched
from muster.arrow.engine import Engine, warm
from muster.arrow.schema import COLUMNS, EXTRA, HEADERS, IS_TRANSACTIONAL, LEADER_EPOCH, arrow_schema

__all__ = [
    "COLUMNS",
    "EXTRA",
    "HEADERS",
    "IS_TRANSACTIONAL",
    "LEADER_EPOCH",
    "Decoder",
    "Engine",
    "Fetched",
    "arrow_schema",
    "warm",
]
