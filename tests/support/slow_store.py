"""A store of shards behind a network: a cell for each key, which holds its newest value, and an epoch for each slot.

A coordinator's requests travel, and are carried out when the test says so (`Line.deliver`). So a load comes in pieces
for which the coordinator waits, a write is durable some time after it was sent, and a coordinator that lost a slot
learns of it when its next write is refused.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from muster.coordinator.shards.store import FencedError, Piece, Stored
from muster.errors import ErrorCode, KafkaError
from muster.protocol.records.record_batch import BatchBuilder, read_tuples


class Cells:
    """The state that all coordinators share."""

    def __init__(self) -> None:
        self.cells: dict[int, dict[bytes, bytes]] = {}
        self.epochs: dict[int, int] = {}
        self.transactions = 0


class SlowStore:
    """One coordinator's connection to the cells. `on_news` is called when something came back."""

    def __init__(self, cells: Cells, on_news: Callable[[], None] = lambda: None, piece: int = 2) -> None:
        self.cells = cells
        self.on_news = on_news
        self.piece = piece
        self.is_cut = False
        self._under_way: deque[tuple[int, Callable[[], None]]] = deque()

    def load(self, slot: int, epoch: int) -> "SlowJournal":
        if self.is_cut:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody there")
        journal = SlowJournal(self, slot, epoch)
        self.send(slot, journal.take)
        return journal

    def send(self, slot: int, act: Callable[[], None]) -> None:
        self._under_way.append((slot, act))

    def deliver(self, most: int = 1_000, slot: int | None = None) -> int:
        """Deliver what is in flight, and what follows from it, in order; only for one slot, if given."""
        done = 0
        while done < most:
            found = next((each for each in self._under_way if slot in (None, each[0])), None)
            if found is None:
                break
            self._under_way.remove(found)
            found[1]()
            done += 1
            self.on_news()
        return done


class SlowJournal:
    """A `Journal` on a `SlowStore`. Positions count transactions."""

    is_empty = False

    def __init__(self, store: SlowStore, slot: int, epoch: int) -> None:
        self.durable = 0
        self.failed: Exception | None = None
        self.is_closed = False
        self._store = store
        self._slot = slot
        self._epoch = epoch
        self._sent = 0
        self._arrived: list[Stored] = []
        self._is_all = False

    def take(self) -> None:
        """The slot is requested."""
        epochs, cells = self._store.cells.epochs, self._store.cells.cells
        if epochs.get(self._slot, -1) > self._epoch:
            self._refuse()
            return
        epochs[self._slot] = self._epoch
        found: list[Stored] = [(key.hex(), key, value) for key, value in cells.get(self._slot, {}).items()]
        size = self._store.piece
        for start in range(0, len(found), size):
            self._store.send(self._slot, partial(self._arrive, found[start : start + size]))
        self._store.send(self._slot, self._arrive_last)

    def _arrive(self, some: list[Stored]) -> None:
        self._arrived += some

    def _arrive_last(self) -> None:
        self._is_all = True

    def _refuse(self) -> None:
        self.failed = FencedError(f"epoch {self._epoch} is over")

    def read(self, most: int) -> Piece:
        assert not self.is_closed, "a load that was given up is still being read"
        if self.failed is not None:
            raise self.failed
        some, self._arrived = self._arrived[:most], self._arrived[most:]
        return Piece(some, is_last=self._is_all and not self._arrived)

    def write(self, batch: BatchBuilder, now: int) -> int:
        if self.is_closed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "unloaded")
        if self.failed is not None:
            raise self.failed
        newest = {key: value for _, _, key, value, _ in read_tuples(batch.build())}
        self._sent += 1
        self._store.send(self._slot, partial(self._commit, newest, self._sent))
        return self._sent

    def _commit(self, newest: dict[bytes | None, bytes | None], position: int) -> None:
        """One transaction: if the slot's epoch is still this one, all cells change."""
        shared = self._store.cells
        if shared.epochs[self._slot] != self._epoch:
            self._refuse()
        if self.failed is not None:
            return
        shared.transactions += 1
        cells = shared.cells.setdefault(self._slot, {})
        for key, value in newest.items():
            assert key is not None
            if value is None:
                cells.pop(key, None)
            else:
                cells[key] = value
        self.durable = position

    def close(self) -> None:
        self.is_closed = True
