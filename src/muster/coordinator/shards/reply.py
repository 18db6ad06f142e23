"""An answer on its way to a client, as the rules of every coordinator and the code that keeps its shards use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Ticket: TypeAlias = Any
"""Stands for a request that has to be answered. The rules keep it and hand it back; they never look into it."""


@dataclass(slots=True)
class Reply:
    """The answer to a ticket: a response, or one group's part of it if the request is about many groups, or for a
    short way what the ticket can make the response of."""

    ticket: Ticket
    response: Any
