"""Hands the parts of answers to a socket without a copy in this process.

A large range of a file is sent by the system (`sendfile`), which takes the pages of the file that it has in memory, and
copies nothing. What precedes it is sent together with the range's first bytes, so that no header takes a separate
packet.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

from muster.broker.net.outgoing import LARGE, Part, in_memory
from muster.model import FileRange
from muster.protocol.primitives import Buffer

_MAX_BUFFERS = min(os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16, 1024)
CANNOT_BE_SENT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors with which the system refuses to send a file."""

COPIED = 256 * 1024
"""Bytes of a range that are copied and sent together with the parts before it. A peer on this machine then reads the
first bytes out of the processor's caches while the others are sent."""


class PlainSocket(Protocol):
    """A socket whose transport adds nothing to the bytes."""

    def fileno(self) -> int:
        """The socket's file descriptor."""


def hand_over(plain: PlainSocket, parts: list[Part]) -> tuple[int, int]:
    """Hand over the first parts. Returns the bytes that the system took, and how many it was offered.

    Raises OSError: BlockingIOError if it takes none now."""
    first = parts[0]
    if isinstance(first, FileRange):
        return _send_file(plain, first)
    group: list[Buffer] = []
    for part in parts[:_MAX_BUFFERS]:
        if isinstance(part, FileRange) and len(part) >= COPIED + LARGE:
            group.append(part.view[:COPIED])
            break
        group.append(in_memory(part))
    return os.writev(plain.fileno(), group), sum(map(len, group))


def _send_file(plain: PlainSocket, part: FileRange) -> tuple[int, int]:
    try:
        sent = os.sendfile(plain.fileno(), part.file.fileno(), part.start, len(part))
    except OSError as error:
        if error.errno not in CANNOT_BE_SENT:
            raise
        sent = os.writev(plain.fileno(), [part.view])
    if not sent:  # another process has cut the file short
        raise OSError(errno.EIO, "the file does not have the bytes that were promised")
    return sent, len(part)
