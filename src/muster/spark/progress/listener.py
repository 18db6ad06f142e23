"""What Spark's driver reports about its queries: finished batches, and whether a query keeps state."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from muster.spark.progress.batch_done import notify
from muster.spark.progress.reports import Progress, progresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("muster.spark")

_INSTALLED = "_muster_listener"


def listen(spark: SparkSession) -> ProgressListener | None:
    """Install the listener, once per session. None if the session does not allow it."""
    installed: ProgressListener | None = getattr(spark, _INSTALLED, None)
    if installed is not None:
        return installed
    listener = ProgressListener()
    try:
        spark.streams.addListener(listener)
    except Exception as error:  # Spark Connect may not allow it; the source works without it
        log.info("finished batches are committed at the next trigger: cannot install a listener (%s)", error)
        return None
    setattr(spark, _INSTALLED, listener)
    return listener


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Called for each batch once it is in Spark's commit log."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Progress], None]] = []
        self.ends: list[Callable[[str], None]] = []
        """Called with the ID of each query that has ended."""

    # --- Spark's names -----------------------------------------------------------------------------------------------

    @property
    def _jlistener(self) -> Any:
        """The object that the JVM gets; pyspark's default asks for a report piece by piece (see `TextListener`)."""
        from pyspark import SparkContext

        if not hasattr(self, "_jlistenerobj"):
            self._jlistenerobj = SparkContext._jvm.PythonStreamingQueryListenerWrapper(TextListener(self))
        return self._jlistenerobj

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        for source in progress.sources:
            end = end_offset(source.endOffset)
            if end is not None:
                notify(end, bool(progress.stateOperators))
        if self.callbacks:
            for report in progresses(json.loads(progress.json)):
                self._call(report)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.ended(str(event.id))

    def ended(self, query: str) -> None:
        """The query with this ID has ended."""
        for callback in self.ends:
            callback(query)

    def _call(self, report: Progress) -> None:
        for callback in self.callbacks:
            try:
                callback(report)
            except Exception:  # an error in user code must not keep batches from being committed
                log.exception("the progress callback failed; it will be called again for the next report")


class TextListener:
    """What the JVM calls, for every query in the session, whatever its source. pyspark's own makes an object of each
    part of a report and asks the JVM for each: 45 ms of JVM CPU per batch. This one asks for the text."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    # --- Spark's names -----------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        report = StreamingQueryProgress.fromJson(json.loads(event.progress().json()))
        self._listener.onQueryProgress(QueryProgressEvent(report))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        if self._listener.ends:
            self._listener.ended(event.id().toString())

    class Java:
        """For py4j."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def end_offset(text: str | None) -> dict[str, Any] | None:
    """The end offset of a source in a progress report, if it is this kind of source."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"v", "seq", "claims", "query"} <= found.keys() else None
