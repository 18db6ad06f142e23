"""One run of a query, for tests of its claims: what Spark and the group do to them, in their vocabulary."""

import json

from muster.model import TopicPartition
from muster.spark.offsets import INITIAL, TopicState, from_json, to_json
from muster.spark.source.claims import QueryClaims

P0, P1, P2 = (TopicPartition("flights", partition) for partition in range(3))

START = to_json(INITIAL)


class Query:
    """One run of a query: what Spark and the group do to its claims, in their vocabulary."""

    def __init__(self, start=START, **how):
        self.claims = QueryClaims(**how)
        self.claims.seen({"flights": TopicState("id1", 3)})
        self.offset = start
        self.ends = {}

    def gains(self, committed, note="spark:/0"):
        self.claims.assigned(committed)
        for partition, offset in committed.items():
            self.claims.committed(partition, offset, note)
        return self

    def loses(self, *partitions):
        self.claims.revoked(partitions)
        return self

    def asks(self, limit=None, **ends):
        """Spark asks for the latest offset; returns what is claimed, None if it got its own offset back."""
        self.ends |= {TopicPartition("flights", int(name[1:])): end for name, end in ends.items()}
        self.end = self.claims.latest(self.offset, self.ends, limit, generation=1)
        if self.end is self.offset:
            return None
        assert json.loads(json.dumps(self.end)) == self.end
        return ranges(from_json(self.end).claims)

    def plans(self):
        return ranges(self.claims.planned(json.loads(json.dumps(self.end))))

    def commits(self):
        """The group acknowledges everything that should be committed."""
        sent = {p: (o.offset, self.claims.epoch(p)) for p, o in self.claims.to_commit().items()}
        for partition, (offset, epoch) in sent.items():
            self.claims.acknowledged(partition, offset, epoch)
        return {partition.partition: offset for partition, (offset, _) in sent.items()}

    def is_done(self):
        """Spark has the batch in its commit log and asks for the next one."""
        self.offset = json.loads(json.dumps(self.end))
        self.claims.begin_from(self.offset)
        return self

    def batch(self, limit=None, **ends):
        claimed = self.asks(limit, **ends)
        assert self.plans() == claimed
        self.is_done()
        return claimed


def ranges(claims):
    return {partition.partition: tuple(claim) for partition, claim in claims.items()}
