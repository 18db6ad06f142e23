"""The virtual clock: order, cancelling, and which time it shows."""

import pytest

from tests.simulator import VirtualClock


def test_callbacks_come_at_their_times_and_at_one_time_as_they_were_asked_for():
    clock, seen = VirtualClock(100), []
    for name, delay in [("late", 20), ("first", 10), ("second", 10), ("now", 0)]:
        clock.call_later(delay, lambda name=name: seen.append((clock.now, name)))
    clock.advance(15)
    assert seen == [(100, "now"), (110, "first"), (110, "second")]
    assert clock.now == 115
    clock.advance(5)
    assert seen[-1] == (120, "late")


def test_a_callback_may_ask_for_more_and_what_is_over_is_due_now():
    clock, seen = VirtualClock(), []

    def again() -> None:
        seen.append(clock.now)
        if len(seen) < 3:
            clock.call_at(clock.now - 50, again) if len(seen) == 2 else clock.call_later(7, again)

    clock.call_later(1, again)
    clock.advance(100)
    assert seen == [1, 8, 8]


def test_what_is_cancelled_does_not_happen():
    clock = VirtualClock()
    timer = clock.call_later(5, pytest.fail)
    other = clock.call_later(9, lambda: None)
    timer.cancel()
    assert clock.next_due() == 9
    clock.advance(20)
    assert clock.next_due() is None
    other.cancel()


def test_time_stops_where_the_predicate_holds():
    clock = VirtualClock()
    seen: list[int] = []
    for delay in (3, 6, 9):
        clock.call_later(delay, seen.append, delay)
    assert clock.run_until(lambda: len(seen) == 2, 100)
    assert clock.now == 6
    assert not clock.run_until(lambda: False, 100)
    assert (clock.now, seen) == (106, [3, 6, 9])


def test_the_clock_shows_the_time_of_the_callback_that_failed():
    clock = VirtualClock()
    clock.call_later(4, int, "no number")
    with pytest.raises(ValueError, match="no number"):
        clock.advance(10)
    assert clock.now == 4
