"""Merges many small files into few: a job that reads every minute writes more than a thousand a day.

Past days are compacted, once a day and when a job starts: `day=D/batch=0`, `batch=1`, … become
`day=D/batch=-1`. Only batches in Spark's commit log are compacted, that is, those before the one being
written: any other could run again, which would duplicate its rows. A day with rows of that batch is left for another
time. Later rows for a past day (a generation belongs to the day on which it began) are in separate folders
again, until there are enough of them.

The day is rewritten under `DIR/_compact`, and then replaces the old one. On a local Linux file system the two are
exchanged atomically; elsewhere the old one is moved away first, and for that moment `read` finds it there. A kill at
any time leaves one of the two intact: leftovers under `DIR/_compact` are restored or deleted when the next job starts,
and Spark's unfinished files are deleted. A query that started earlier may fail, since its files are gone; no row is
duplicated.
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

    from muster.spark.history.hadoop_folder import HadoopFolder

log = logging.getLogger("muster.spark.history")

FOLDER = "_compact"
OLD, NEW = f"{FOLDER}/old", f"{FOLDER}/new"
COMPACTED = -1
"""The number of the batch that holds compacted rows."""
ENOUGH = 8
"""A day with this many folders is compacted."""
FILE_BYTES = 128 << 20

_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)")
_BATCH = re.compile(r"batch=(-?\d+)")
_UNFINISHED = ".spark-staging-"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class Compaction:
    """Compacts the tables of one folder."""

    def __init__(self, spark: SparkSession, place: HadoopFolder, tables: Mapping[str, StructType]) -> None:
        self._spark, self._place = spark, place
        self._tables = tables
        self._day: date | None = None

    def run(self, batch: int, today: date) -> None:
        """Compact what is due, before this batch is written. On failure, files stay as they are."""
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
            log.warning("cannot compact small files: %s", str(error).partition("\n")[0])
            recover(self._place)

    def _days(self, name: str, today: date) -> list[str]:
        """The folders of past days."""
        matches = (_DAY.fullmatch(folder) for folder in self._place.listed(name))
        return sorted(found[0] for found in matches if found and date.fromisoformat(found[1]) < today)

    def _compact(self, name: str, day: str, batch: int) -> None:
        numbers = [int(found[1]) for each in self._place.listed(f"{name}/{day}") if (found := _BATCH.fullmatch(each))]
        if len(numbers) < ENOUGH or max(numbers) >= batch:
            return
        folders = [f"{name}/{day}/batch={number}" for number in sorted(numbers)]
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


def swap(place: HadoopFolder, name: str, fresh: str, old: str) -> None:
    """Replace one folder with another, atomically where possible."""
    if not _exchange(place.local(name), place.local(fresh)):
        place.rename(name, old)
        place.rename(fresh, name)


def replace(place: HadoopFolder, name: str, frame: DataFrame) -> None:
    """Replace the table in a folder. The old one stays until the new one is complete: a job that is stopped or killed
    in between loses no rows. Where folders cannot be exchanged atomically, the table is missing for a moment."""
    fresh = f"{NEW}/{name}"
    frame.write.mode("overwrite").parquet(place.full(fresh))
    if not _exchange(place.local(name), place.local(fresh)):
        place.delete(name)
        place.rename(fresh, name)
    place.delete(fresh)


def recover(place: HadoopFolder) -> None:
    """Restore tables that a killed job had moved away, and delete the rest."""
    for name in away(place):
        place.rename(f"{OLD}/{name}", name)
    place.delete(FOLDER)


def away(place: HadoopFolder) -> list[str]:
    """Days, such as `lag/day=2026-11-22`, that are moved away while they are being replaced."""
    moved = [f"{name}/{day}" for name in place.listed(OLD) for day in place.listed(f"{OLD}/{name}")]
    return [name for name in moved if not place.exists(name)]


def _sweep(place: HadoopFolder, name: str) -> None:
    """Delete a table's files that Spark left unfinished when it was killed; none are being written now."""
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
