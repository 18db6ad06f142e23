"""The partitions that each member holds while a mixed assignment is being improved: see `mixed.py`.

A partition that its holder claimed is the holder's *own*. Any other is *spare*: handing it to another member costs no
extra move. Members with the same subscription form a *class*: a partition that one of them may take, all may take.
"""

from __future__ import annotations

from muster.assignors.layout import FREE, Layout


class Holdings:
    """Each member's partitions by topic, the spare ones last in each list, and counts of them.

    Attributes:
        owner: the rightful owner of each place, or a negative number.
        holder: the member that holds it now.
        topic_of: its topic.
        loads, spares: how many places each member holds, and how many of them are spare.
        held: its places by topic.
        class_of: its class.
        wanted: the topics of each class.
        members: the members of each class.
        count, spare: how many places of each topic the members of each class hold together, and how many are spare.
        takers: the classes that want each topic.
    """

    def __init__(self, layout: Layout, owner: list[int], shares: list[list[int]]) -> None:
        classes: dict[frozenset[int], int] = {}
        self.owner = owner
        self.topic_of = layout.topic_of
        self.holder = [FREE] * layout.total
        self.loads = [len(places) for places in shares]
        self.spares = [0] * len(shares)
        self.held: list[dict[int, list[int]]] = [{} for _ in shares]
        self.class_of = [classes.setdefault(topics, len(classes)) for topics in layout.wanted]
        self.wanted = list(classes)
        self.members: list[list[int]] = [[] for _ in classes]
        self.count: list[dict[int, int]] = [dict.fromkeys(topics, 0) for topics in classes]
        self.spare: list[dict[int, int]] = [dict.fromkeys(topics, 0) for topics in classes]
        self.takers: list[list[int]] = [[] for _ in layout.counts]
        for number, topics in enumerate(self.wanted):
            for topic in topics:
                self.takers[topic].append(number)
        for member, places in enumerate(shares):
            self.members[self.class_of[member]].append(member)
            for place in places:
                self._put(member, place)

    def shares(self) -> list[list[int]]:
        """The places of each member, in order."""
        return [sorted(place for places in held.values() for place in places) for held in self.held]

    def wants(self, member: int, topic: int) -> bool:
        """Whether the member subscribes to the topic."""
        return topic in self.wanted[self.class_of[member]]

    def has_spare(self, member: int, topic: int) -> bool:
        """Whether the last of the member's places of a topic is spare."""
        places = self.held[member].get(topic)
        return bool(places and self.owner[places[-1]] != member)

    def any_spare(self, member: int) -> int | None:
        """A spare place of the member, if it has one."""
        if not self.spares[member]:
            return None
        for topic, places in self.held[member].items():
            if self.has_spare(member, topic):
                return places[-1]
        return None

    def lost(self) -> list[int]:
        """The places whose owners want them but do not hold them."""
        return [
            place
            for place, owner in enumerate(self.owner)
            if owner >= 0 and self.holder[place] != owner and self.wants(owner, self.topic_of[place])
        ]

    def move(self, place: int, giver: int, receiver: int) -> None:
        """Move a place from the giver to the receiver."""
        topic, number = self.topic_of[place], self.class_of[giver]
        places = self.held[giver][topic]
        if places[-1] == place:
            places.pop()
        else:
            places.remove(place)
        self.count[number][topic] -= 1
        was_spare = self.owner[place] != giver
        self.spare[number][topic] -= was_spare
        self.spares[giver] -= was_spare
        self._put(receiver, place)
        self.loads[giver] -= 1
        self.loads[receiver] += 1

    def _put(self, member: int, place: int) -> None:
        topic, number = self.topic_of[place], self.class_of[member]
        places = self.held[member].setdefault(topic, [])
        is_spare = self.owner[place] != member
        places.insert(len(places) if is_spare else 0, place)
        self.count[number][topic] += 1
        self.spare[number][topic] += is_spare
        self.spares[member] += is_spare
        self.holder[place] = member
