"""Which topics were deleted, as opposed to missing: only what was deleted costs records.

A ZooKeeper that was put back from an older backup, or a topic's znodes that were removed by hand, look like a deletion
to a broker that compares what it has with what there is. So the controller leaves a note of each real deletion, before
it removes the topic's first znode: `/muster/deletions/[broker]/[topic id]`, for each broker that may have something of
it. A broker removes records of topics with such a note only, and then the note, whenever it comes back. Topics without
one are set aside.

The id tells the topic from later ones of its name, so a broker that is away holds up nothing.
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
    """The ids of deleted topics of which a broker may still have something."""
    try:
        return (yield from ask(GetChildren(deletions_path(broker_id))))
    except NoNodeError:
        return []


def notes(name: str, topic_id: str, brokers: Iterable[int]) -> Plan[list[Create]]:
    """The writes that note a topic's deletion for brokers, where they are not there yet."""
    missing = []
    for broker in sorted(brokers):
        path = f"{deletions_path(broker)}/{topic_id}"
        if (yield from ask(Exists(path))) is None:
            if (yield from ask(Exists(deletions_path(broker)))) is None:
                missing.append(Create(deletions_path(broker)))
            missing.append(Create(path, name.encode()))
    return missing


def forget_deletions(broker_id: int, topic_ids: Collection[str]) -> Plan[None]:
    """A broker has nothing any more of these topics."""
    for topic_id in topic_ids:
        with suppress(NoNodeError):
            yield from ask(Delete(f"{deletions_path(broker_id)}/{topic_id}"))
