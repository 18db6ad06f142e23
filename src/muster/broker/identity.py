"""This broker's identity: cluster id, node id and directory id, kept in the data folder as Kafka keeps them.

`meta.properties` is Kafka's own file, version 1, so Kafka's tools accept the folder. A folder belongs to one cluster
and node for good: a broker configured as another one does not start.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import NamedTuple

from muster.errors import ConfigError
from muster.log import DISK, Files, write_whole

FILE = "meta.properties"
STARTS = "muster-starts"
IN_CLUSTER = "zookeeper"
"""A line in the file that Kafka does not write, and ignores."""


class Identity(NamedTuple):
    """The contents of `meta.properties`."""

    cluster_id: str
    node_id: int
    directory_id: str
    in_cluster: bool = False
    """Whether the folder belongs to a broker of a cluster."""


def random_uuid() -> bytes:
    """A new id of sixteen bytes: not one that Kafka reserves, and its text does not begin with '-'."""
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
    """Parse an id. Raises ValueError if it is not valid."""
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not an id")
    return raw


def load_identity(folder: Path, node_id: int, files: Files = DISK, cluster_id: str | None = None) -> Identity:
    """The folder's identity; a new folder gets one. `cluster_id` is that of the cluster to join, None for a standalone
    broker.

    Raises:
        ConfigError: the folder belongs to another node or cluster, or its file cannot be parsed.
    """
    identity = read_identity(folder, node_id, cluster_id)
    if identity is None:
        fresh = cluster_id or uuid_text(random_uuid())
        identity = Identity(fresh, node_id, uuid_text(random_uuid()), in_cluster=cluster_id is not None)
        _write(files, folder / FILE, identity)
    return identity


def read_identity(folder: Path, node_id: int, cluster_id: str | None = None) -> Identity | None:
    """The folder's identity, None if it has none yet.

    A standalone broker does not open a cluster's folder: the other brokers' partitions would look empty, and accept
    records that the cluster never sees.

    Raises:
        ConfigError: the folder belongs to another node or cluster, or its file cannot be parsed.
    """
    path = folder / FILE
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
    found = dict(_properties(text))
    try:
        in_cluster = found.get(IN_CLUSTER) == "true"
        identity = Identity(found["cluster.id"], int(found["node.id"]), found.get("directory.id", ""), in_cluster)
        version = found["version"]
    except (KeyError, ValueError):
        raise ConfigError(f"{path} has no version, cluster.id or node.id; is this a broker's data folder?") from None
    if version != "1":
        raise ConfigError(f"{path} has version {version}; only version 1 is supported")
    if identity.node_id != node_id:
        raise ConfigError(f"{folder} belongs to node {identity.node_id}, but node.id is {node_id}")
    if cluster_id not in (None, identity.cluster_id):
        raise ConfigError(f"{folder} belongs to cluster {identity.cluster_id}, but this is cluster {cluster_id}")
    if cluster_id is None and in_cluster:
        raise ConfigError(
            f"{folder} belongs to a broker of cluster {identity.cluster_id}, which needs --zookeeper; to serve its "
            f"partitions standalone from now on, delete the line {IN_CLUSTER}=true from {FILE}"
        )
    return identity


def last_start(folder: Path) -> tuple[int, str]:
    """Number and name of a cluster broker's last start with the folder; 0 and "" if unknown."""
    try:
        number, name = (folder / STARTS).read_text().split()
        return int(number), name
    except (FileNotFoundError, ValueError):
        return 0, ""


def write_start(folder: Path, number: int, name: str, files: Files = DISK) -> None:
    """Record the last start; durable when this returns. Raises OSError."""
    write_whole(files, folder / STARTS, f"{number} {name}\n".encode())


def _properties(text: str) -> list[tuple[str, str]]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _write(files: Files, path: Path, identity: Identity) -> None:
    lines = ["#", "cluster.id=" + identity.cluster_id, f"directory.id={identity.directory_id}"]
    lines += [f"node.id={identity.node_id}", "version=1"]
    lines += [f"{IN_CLUSTER}=true", ""] if identity.in_cluster else [""]
    write_whole(files, path, "\n".join(lines).encode())
