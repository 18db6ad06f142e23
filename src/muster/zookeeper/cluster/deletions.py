"""Which topics were deleted, as opposed to missing: records are removed only for deleted ones.

A ZooKeeper restored from an older backup, or a topic whose znodes were removed by hand, looks like a deletion to a
broker that compares its topics with ZooKeeper's. So before the controller removes the first znode of a deleted topic,
it leaves a note: `/muster/deletions/[broker]/[topic id]`, for each broker that may have its data. A broker removes only
the records of topics with such a note, and then the note, even if it was down meanwhile. Topics without a note are set
aside.

The id distinguishes the topic from later ones of the same name, so a broker that is down does not hold anything up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from muster.zookeeper.base.operations import Create, Delete, Exists, GetChildren, NoNodeError, Plan, ask

DELETIONS = "/muster/deletions"


def deletions_path(broker_id: int) -> str:
    """Where the notes for a broker are."""
    return f"{DELETIONS}/{broker_id}"


def deletions_for(broker_id: int) -> Plan[list[str]]:
    """The ids of deleted topics of which a broker may still have data."""
    try:
        return (yield from ask(GetChildren(deletions_path(broker_id))))
    except NoNodeError:
        return []


def notes(name: str, topic_id: str, brokers: Iterable[int]) -> Plan[list[Create]]:
    """The writes that note a topic's deletion for brokers, except for notes that exist."""
    missing = []
    for broker in sorted(brokers):
        path = f"{deletions_path(broker)}/{topic_id}"
        if (yield from ask(Exists(path))) is None:
            if (yield from ask(Exists(deletions_path(broker)))) is None:
                missing.append(Create(deletions_path(broker)))
            missing.append(Create(path, name.encode()))
    return missing


def forget_deletions(broker_id: int, topic_ids: Collection[str]) -> Plan[None]:
    """A broker no longer has any data of these topics."""
    for topic_id in topic_ids:
        with suppress(NoNodeError):
            yield from ask(Delete(f"{deletions_path(broker_id)}/{topic_id}"))
