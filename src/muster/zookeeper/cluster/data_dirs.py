"""The data folder of each broker of the cluster: `/muster/brokers/[id]`, written when the broker registers.

A broker with a different folder (an empty volume, a wrong path) would lead its partitions from offset 0, and its
acknowledged records would be silently lost. So it is refused, until the operator names the folder to give up.

Each start has a number and a name, in the folder and here. A folder whose number is smaller than the one here, or whose
name differs for the same number, is an older copy, which lacks records acknowledged since. A larger number is harmless:
ZooKeeper was restored from a backup, or a start was interrupted.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from muster.errors import ConfigError
from muster.zookeeper.base.operations import (
    BadVersionError,
    Create,
    GetData,
    NodeExistsError,
    NoNodeError,
    Plan,
    SetData,
    ask,
)

DATA_DIRS = "/muster/brokers"


class DataDir(NamedTuple):
    """A data folder: its id (`directory.id` in meta.properties), and the last start of a broker with it."""

    directory_id: str
    starts: int
    start: str


def data_dir_path(broker_id: int) -> str:
    """The znode that names a broker's folder."""
    return f"{DATA_DIRS}/{broker_id}"


def registered_data_dir(broker_id: int) -> Plan[DataDir | None]:
    """The folder that a broker had when it last registered; None if it never did.

    Raises:
        ConfigError: its contents cannot be parsed.
    """
    found, _ = yield from _read(broker_id)
    return found


def claim_data_dir(broker_id: int, mine: DataDir, given_up: str | None) -> Plan[None]:
    """Register the broker's folder. `given_up` is the id of a folder that may be replaced.

    Raises:
        ConfigError: the broker has another folder, or has continued with another copy of this one.
    """
    while True:
        found, version = yield from _read(broker_id)
        if found == mine:
            return
        why = refusal(broker_id, found, mine, given_up)
        if why is not None:
            raise ConfigError(why)
        content = {"version": 1, "directory": mine.directory_id, "starts": mine.starts, "start": mine.start}
        data = json.dumps(content).encode()
        try:
            if found is None:
                yield from ask(Create(data_dir_path(broker_id), data))
            else:
                yield from ask(SetData(data_dir_path(broker_id), data, version))
            return
        except (NodeExistsError, BadVersionError):
            continue


def refusal(broker_id: int, found: DataDir | None, mine: DataDir | None, given_up: str | None) -> str | None:
    """Why a broker may not use a folder; None if it may. `mine` is None for a new folder."""
    if found is None or found.directory_id == given_up:
        return None
    to_go_on = f"to continue without them, permanently: -o replaced.data.dir={found.directory_id}"
    if mine is None or found.directory_id != mine.directory_id:
        what = "is new" if mine is None else f"has the id {mine.directory_id}"
        return (
            f"broker {broker_id} has its records in the data folder with the id {found.directory_id} (directory.id in "
            f"its meta.properties), but this one {what}: use that one; {to_go_on}"
        )
    if mine.starts < found.starts or (mine.starts == found.starts and mine.start != found.start):
        return (
            f"this data folder is an older copy: broker {broker_id} was started with {found.directory_id} since, and "
            f"this one lacks the records since then: use the newer one; {to_go_on}"
        )
    return None


def next_start(found: DataDir | None, mine: DataDir, start: str) -> DataDir:
    """The folder after one more start, named `start`; `found` is what is registered. A start that was interrupted
    counts once: otherwise an older copy that is tried often enough would pass for newer."""
    before = 0 if found is None else found.starts
    return mine._replace(starts=mine.starts + 1 if mine.starts > before + 1 else before + 1, start=start)


def _read(broker_id: int) -> Plan[tuple[DataDir | None, int]]:
    path = data_dir_path(broker_id)
    try:
        data, stat = yield from ask(GetData(path))
    except NoNodeError:
        return None, -1
    try:
        content = json.loads(data or b"")
        return DataDir(str(content["directory"]), int(content["starts"]), str(content["start"])), stat.version
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path} in ZooKeeper does not name broker {broker_id}'s data folder: {data!r}; if the broker has the "
            "right one, delete this znode"
        ) from None
