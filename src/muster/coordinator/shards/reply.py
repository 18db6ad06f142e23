"""Answers to requests, as used by the rules of every coordinator and by the code that keeps its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Ticket: TypeAlias = Any
"""Stands for a request that must be answered. The rules keep it and hand it back; to them it is opaque."""


@dataclass(slots=True)
class Reply:
    """The answer to a ticket: a response; one group's part of it if the request is about several groups; or, on a fast
    path, what the ticket makes the response from."""

    ticket: Ticket
    response: Any
