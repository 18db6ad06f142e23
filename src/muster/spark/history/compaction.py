"""Makes few files of many: a job that looks every minute writes some thousand a day.

Days that are past are compacted, once a day and when a job begins: `day=D/batch=0`, `batch=1`, … become
`day=D/batch=-1`. Only batches that Spark has in its commit log are taken, which are those before the one that is
written: another could be run again, and its rows would be there twice. A day that has rows of it is left for another
time. Rows that come later for a past day (a generation belongs to the day on which it began) are folders of their own
again, until there are enough.

The day is written anew under `DIR/_compact`, and then takes the place of the old one. On a local file system of Linux
the two are exchanged in one step; elsewhere the old one is moved away first, and for that moment `read` takes it from
where it is. A kill at any time leaves one of the two whole: what is left under `DIR/_compact` is put back or deleted
when the next job begins, and what Spark has left of files that it had begun is deleted. A query that began before may
fail, since its files are gone; no row is there twice.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from datetime import date
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from muster.spark.history.place import Place

log = logging.getLogger("muster.spark.history")

FOLDER = "_compact"
OLD, NEW = f"{FOLDER}/old", f"{FOLDER}/new"
COMPACTED = -1
"""The number of the batch that has what was compacted."""
ENOUGH = 8
"""With so many folders a day is compacted."""
FILE_BYTES = 128 << 20

_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)")
_BATCH = re.compile(r"batch=(-?\d+)")
_UNFINISHED = ".spark-staging-"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class Compaction:
    """Compacts the tables of one folder."""

    def __init__(self, spark: SparkSession, place: Place, tables: Mapping[str, StructType]) -> None:
        self._spark, self._place = spark, place
        self._tables = tables
        self._day: date | None = None

    def run(self, batch: int, today: date) -> None:
        """Compact what is due, before this batch is written. What fails is left as it is."""
        if self._day == today:
            return
        self._day = today
        try:
            recover(self._place)
            for name in self._tables:
                _sweep(self._place, name)
                for day in self._days(name, today):
                    self._compact(name, day, batch)
        except (Py4JJavaError, PySparkException, OSError) as error:
            log.warning("small files stay as they are: %s", str(error).partition("\n")[0])
            recover(self._place)

    def _days(self, name: str, today: date) -> list[str]:
        """Folders of days that are past."""
        matches = (_DAY.fullmatch(folder) for folder in self._place.listed(name))
        return sorted(found[0] for found in matches if found and date.fromisoformat(found[1]) < today)

    def _compact(self, name: str, day: str, batch: int) -> None:
        there = [int(found[1]) for each in self._place.listed(f"{name}/{day}") if (found := _BATCH.fullmatch(each))]
        if len(there) < ENOUGH or max(there) >= batch:
            return
        folders = [f"{name}/{day}/batch={number}" for number in sorted(there)]
        size = sum(map(self._place.size, folders))
        schema = self._tables[name]
        inner = type(schema)([field for field in schema.fields if field.name != "day"])
        fresh = f"{NEW}/{name}/{day}"
        (
            self._spark.read.schema(inner)
            .parquet(*map(self._place.full, folders))
            .coalesce(1 + size // FILE_BYTES)
            .write.mode("overwrite")
            .parquet(self._place.full(f"{fresh}/batch={COMPACTED}"))
        )
        swap(self._place, f"{name}/{day}", fresh, f"{OLD}/{name}/{day}")
        self._place.delete(FOLDER)


def swap(place: Place, name: str, fresh: str, old: str) -> None:
    """Put one folder in place of another, in one step where that can be."""
    if not _exchange(place.local(name), place.local(fresh)):
        place.rename(name, old)
        place.rename(fresh, name)


def replace(place: Place, name: str, frame: DataFrame) -> None:
    """Write a table in place of what a folder has, which stays until all is written: a job that is stopped or killed
    meanwhile takes no rows away. Where folders cannot be exchanged in one step, there are none for a moment."""
    fresh = f"{NEW}/{name}"
    frame.write.mode("overwrite").parquet(place.full(fresh))
    if not _exchange(place.local(name), place.local(fresh)):
        place.delete(name)
        place.rename(fresh, name)
    place.delete(fresh)


def recover(place: Place) -> None:
    """Put back what a kill has left away from its place, and delete the rest."""
    for name in away(place):
        place.rename(f"{OLD}/{name}", name)
    place.delete(FOLDER)


def away(place: Place) -> list[str]:
    """Days, as `lag/day=2026-11-22`, that are moved away while others take their place."""
    moved = [f"{name}/{day}" for name in place.listed(OLD) for day in place.listed(f"{OLD}/{name}")]
    return [name for name in moved if not place.exists(name)]


def _sweep(place: Place, name: str) -> None:
    """Delete what Spark has left of a table's files that were being written in a kill; no others are now."""
    for folder in place.listed(name):
        if folder.startswith(_UNFINISHED):
            place.delete(f"{name}/{folder}")


def _exchange(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False  # another system
    return int(call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)) == 0
