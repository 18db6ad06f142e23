"""What commands need of Spark: nothing of it is imported before a command asks for it."""

from __future__ import annotations

from typing import Any, Final

from muster.errors import MusterError

QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "FATAL"}
"""What fails is told in a sentence; Spark tells it in pages."""


def spark_tools() -> tuple[Any, Any, Any]:
    """muster.spark's history, what makes a session, and what makes sentences of errors.

    Raises:
        MusterError: Spark is not installed; the sentence says how to.
    """
    try:
        from muster.spark import history, session
        from muster.spark.history.sentences import hush, said
    except ModuleNotFoundError as error:
        raise MusterError(str(error)) from None

    def quiet(*given: Any, **settings: Any) -> Any:
        made = session(*given, **settings)
        hush(made)
        return made

    return history, quiet, said
