"""What is written to the dead letter topic: the original record, with headers that say where it came from and why it
failed.

The headers are those of dead letters in Kafka Streams (KIP-1034), with `muster` instead of `streams`, plus the number
of attempts and the group.
"""

from __future__ import annotations

from muster.client.core.concurrent.work import Job
from muster.model import Headers

PREFIX = "__muster.errors."
MAX_STACKTRACE = 4_000
"""How many characters of a stack trace are kept, from its end: a dead letter must not be refused for its size."""
MAX_MESSAGE = 1_000


def headers(job: Job, group_id: str, *, brief: bool = False) -> Headers:
    """The headers of a job's dead letter: the record's own and those added here; without a stack trace if `brief`."""
    record, failure = job.record, job.failure
    fields = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "group": group_id,
        "attempts": str(job.attempts),
    }
    if failure is not None:
        fields |= {
            "exception": failure.exception,
            "message": failure.message[:MAX_MESSAGE],
            "stacktrace": "" if brief else failure.stacktrace[-MAX_STACKTRACE:],
        }
    own = [header for header in record.headers if not header[0].startswith(PREFIX)]
    return own + [(PREFIX + name, value.encode("utf-8", "backslashreplace")) for name, value in fields.items()]
