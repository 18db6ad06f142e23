"""An answer on its way to somebody: what the rules of every coordinator and the keepers of its shards speak of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from muster.protocol.primitives import Struct

Ticket: TypeAlias = Any
"""Stands for a request that is to be answered. The rules keep it and hand it back; they never look into it."""


@dataclass(slots=True)
class Reply:
    """The answer to a ticket: a response, or one group's part of it for requests that are about many."""

    ticket: Ticket
    response: Struct
