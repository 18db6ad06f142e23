"""This broker's identity: cluster id, node id and directory id, kept in the data folder as Kafka keeps them.

`meta.properties` is Kafka's own file of version 1, so its tools know the folder. A folder belongs to one cluster and
node for ever: a broker that is configured as another is refused.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import NamedTuple

from muster.errors import ConfigError
from muster.log import DISK, Files, write_whole

FILE = "meta.properties"


class Identity(NamedTuple):
    """What `meta.properties` says."""

    cluster_id: str
    node_id: int
    directory_id: str


def random_uuid() -> bytes:
    """A fresh id of sixteen bytes, never one that Kafka reserves and none that begins with '-' as text."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if not uuid_text(bytes(raw)).startswith("-"):
            return bytes(raw)


def uuid_text(raw: bytes) -> str:
    """An id as Kafka writes it: base64 for URLs without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """The id that a text stands for. Raises ValueError if it is not an id."""
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"{text!r} is no id")
    return raw


def load_identity(folder: Path, node_id: int, files: Files = DISK, cluster_id: str | None = None) -> Identity:
    """The folder's identity; a new folder is given one. `cluster_id` is that of the cluster to join, if there is one.

    Raises:
        ConfigError: the folder belongs to another node or cluster, or its file cannot be understood.
    """
    identity = read_identity(folder, node_id)
    if identity is not None and cluster_id not in (None, identity.cluster_id):
        raise ConfigError(f"{folder} belongs to cluster {identity.cluster_id}, but this is cluster {cluster_id}")
    if identity is None:
        identity = Identity(cluster_id or uuid_text(random_uuid()), node_id, uuid_text(random_uuid()))
        _write(files, folder / FILE, identity)
    return identity


def read_identity(folder: Path, node_id: int) -> Identity | None:
    """The folder's identity, None if it has none yet.

    Raises:
        ConfigError: the folder belongs to another node, or its file cannot be understood.
    """
    path = folder / FILE
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
    found = dict(_properties(text))
    try:
        identity = Identity(found["cluster.id"], int(found["node.id"]), found.get("directory.id", ""))
        version = found["version"]
    except (KeyError, ValueError):
        raise ConfigError(
            f"{path} lacks version, cluster.id or node.id; is this the data folder of a broker?"
        ) from None
    if version != "1":
        raise ConfigError(f"{path} is of version {version}, this broker knows version 1")
    if identity.node_id != node_id:
        raise ConfigError(f"{folder} belongs to node {identity.node_id}, but node.id is {node_id}")
    return identity


def _properties(text: str) -> list[tuple[str, str]]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _write(files: Files, path: Path, identity: Identity) -> None:
    lines = ["#", "cluster.id=" + identity.cluster_id, f"directory.id={identity.directory_id}"]
    lines += [f"node.id={identity.node_id}", "version=1", ""]
    write_whole(files, path, "\n".join(lines).encode())
