"""What is written to the topic of dead letters: the record as it was, and in headers where it came from and why.

The headers are those that Kafka Streams gives its dead letters (KIP-1034), with `muster` in place of `streams`, and the
number of attempts and the group beside them.
"""

from __future__ import annotations

from muster.client.core.concurrent.work import Job
from muster.model import Headers

PREFIX = "__muster.errors."
MAX_STACKTRACE = 4_000
"""Characters of a stack trace, its end: a dead letter must not be refused because of its size."""
MAX_MESSAGE = 1_000


def headers(job: Job, group_id: str, *, brief: bool = False) -> Headers:
    """The headers of the dead letter that a job becomes: its own, and ours; `brief` without a stack trace."""
    record, failure = job.record, job.failure
    told = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "group": group_id,
        "attempts": str(job.attempts),
    }
    if failure is not None:
        told |= {
            "exception": failure.exception,
            "message": failure.message[:MAX_MESSAGE],
            "stacktrace": "" if brief else failure.stacktrace[-MAX_STACKTRACE:],
        }
    own = [header for header in record.headers if not header[0].startswith(PREFIX)]
    return own + [(PREFIX + name, value.encode("utf-8", "backslashreplace")) for name, value in told.items()]
