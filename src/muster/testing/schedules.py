"""Run a test under schedules of faults, which Hypothesis draws and shrinks to the shortest that makes the test fail.

    @muster.testing.chaos(seed=1, steps=5, examples=20)
    def test_every_order_is_billed_once(kafka):
        topic = kafka.topic(partitions=2, records=[b"1", b"2"])
        with billing_service(kafka.bootstrap, topic):
            kafka.until_lag_zero("billing")
        ...

The test is called once for each schedule; all calls share a broker in a process of its own. A schedule is a list of
steps, and a step is data: a fault, as the control port takes it, or an act (ACTS) that happens once a number of
requests of a type were sent. The schedule of a failure is printed as a decorator that repeats it:
`@muster.testing.chaos(schedule=[…])`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from muster.errors import ConfigError, MusterError
from muster.testing.backends import BrokerAwayError
from muster.testing.kit import Group, Kafka

Step = Mapping[str, Any]

REQUESTS = ("Fetch", "OffsetCommit", "Heartbeat", "JoinGroup", "SyncGroup", "OffsetFetch", "FindCoordinator", "Produce")
"""The requests that the faults of a drawn schedule match."""

ERRORS = {
    "Fetch": ("NOT_LEADER_OR_FOLLOWER", "UNKNOWN_LEADER_EPOCH"),
    "OffsetCommit": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "REQUEST_TIMED_OUT"),
    "Heartbeat": ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "REBALANCE_IN_PROGRESS"),
    "JoinGroup": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
    "SyncGroup": ("NOT_COORDINATOR", "REBALANCE_IN_PROGRESS"),
    "OffsetFetch": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "UNSTABLE_OFFSET_COMMIT"),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS"),
}
"""Errors that a broker may return, and that a client must handle. UNKNOWN_MEMBER_ID is not among them: the client
would believe that it was removed, while the broker still knows the member and waits for it. The act "expire" removes a
member on both sides."""


def _to_each_group(kafka: Kafka, act: Callable[[Group], None]) -> None:
    for group_id in kafka.groups():
        with suppress(MusterError):  # the group is being loaded, or was deleted
            act(kafka.group(group_id))


def _restart(kafka: Kafka) -> None:
    kafka.kill()
    kafka.start()


ACTS: dict[str, Callable[[Kafka], object]] = {
    "expire": lambda kafka: _to_each_group(kafka, Group.expire),
    "rebalance": lambda kafka: _to_each_group(kafka, Group.rebalance),
    "reload": lambda kafka: _to_each_group(kafka, Group.reload),
    "disconnect": lambda kafka: kafka.disconnect(),
    "restart": _restart,
}
"""What an act does to the groups, the connections or the broker."""


def chaos(
    *,
    seed: int = 0,
    steps: int = 4,
    examples: int = 20,
    schedule: Sequence[Step] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Callable[[Callable[[Kafka], None]], Callable[[], None]]:
    """Decorate a test that takes a `Kafka`: it is called under `examples` schedules of up to `steps` steps each.

    The test must use new topic and group names in each call, as `kafka.topic()` does. It needs Hypothesis: `pip install
    hypothesis`.

    Args:
        seed: decides which schedules are drawn.
        schedule: one schedule to repeat; none are drawn.
        settings: broker settings, by Kafka's names.
    """

    def decorate(test: Callable[[Kafka], None]) -> Callable[[], None]:
        @functools.wraps(test)
        def run() -> None:
            with Kafka(settings) as kafka:
                if schedule is not None:
                    _under(kafka, schedule, test)
                else:
                    _search(kafka, test, seed=seed, steps=steps, examples=examples)

        # pytest must not mistake the test's parameter for a fixture.
        run.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        return run

    return decorate


def _search(kafka: Kafka, test: Callable[[Kafka], None], *, seed: int, steps: int, examples: int) -> None:
    """Try schedules. Raises the test's error under the shortest that fails, with a note that says how to repeat it."""
    try:
        import hypothesis
        from hypothesis import strategies as st
    except ModuleNotFoundError as error:
        raise MusterError(f"chaos draws its schedules with Hypothesis: pip install hypothesis ({error})") from None

    failed: list[Sequence[Step]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(st.lists(_steps(), max_size=steps))
    def search(tried: Sequence[Step]) -> None:
        try:
            _under(kafka, tried, test)
        except _failures():
            failed.append(tried)
            raise

    try:
        search()
    except _failures() as error:
        if failed:
            shortest = minimized(kafka, failed[-1], test)
            text = ",\n    ".join(map(repr, shortest))
            error.add_note(f"To repeat it:\n\n@muster.testing.chaos(schedule=[\n    {text}\n])\ndef {test.__name__}…")
        raise


def _failures() -> tuple[type[BaseException], ...]:
    """What a failing test raises: `pytest.fail` raises an error that is not an Exception."""
    pytest = sys.modules.get("pytest")
    return (Exception,) if pytest is None else (Exception, pytest.fail.Exception)


def minimized(kafka: Kafka, schedule: Sequence[Step], test: Callable[[Kafka], None]) -> Sequence[Step]:
    """A failing schedule without the steps that the failure does not need. Hypothesis removes steps from the end of a
    list, but not always from its middle."""
    for step in list(schedule):
        rest = [each for each in schedule if each is not step]
        try:
            _under(kafka, rest, test)
        except _failures():
            schedule = rest
    return schedule


def _steps() -> Any:
    """A strategy for steps. Those that strike early come first, so that shrinking prefers them."""
    from hypothesis import strategies as st

    numbers = st.integers(1, 6)

    def fault(api: str) -> Any:
        lost = st.sampled_from(("lose_request", "lose_answer", "cut"))
        return st.one_of(
            st.builds(lambda do, nth: {"do": do, "apis": [api], "nth": nth}, lost, numbers),
            st.builds(
                lambda error, nth: {"do": "error", "apis": [api], "error": error, "nth": nth},
                st.sampled_from(ERRORS[api]),
                numbers,
            ),
            st.builds(lambda nth: {"do": "delay", "apis": [api], "delay_ms": 200, "nth": nth}, numbers),
        )

    act = st.builds(
        lambda act, api, count: {"act": act, "after": count, "api": api},
        st.sampled_from(sorted(ACTS)),
        st.sampled_from(REQUESTS[:3]),
        numbers,
    )
    return st.one_of(st.sampled_from(REQUESTS).flatmap(fault), act)


def _under(kafka: Kafka, schedule: Sequence[Step], test: Callable[[Kafka], None]) -> None:
    """Call a test under a schedule. An error of the test gets a note with what happened."""
    for step in schedule:
        if "act" in step and step["act"] not in ACTS:
            raise ConfigError(f"act={step['act']!r} is not an act: choose from {', '.join(ACTS)}")
    kafka.begin()
    try:
        with _acting(kafka, [step for step in schedule if "act" in step]):
            for step in schedule:
                if "act" not in step:
                    kafka.fault(step["do"], *step["apis"], **{k: v for k, v in step.items() if k not in ("do", "apis")})
            test(kafka)
    except _failures() as error:
        error.add_note(kafka.account())
        raise
    finally:
        kafka.clean_up()


@contextmanager
def _acting(kafka: Kafka, acts: Sequence[Step]) -> Iterator[None]:
    """Perform each act once its requests were sent, in a thread, until the block ends. Raises the error of an act."""
    ended = threading.Event()
    failed: list[Exception] = []

    def watch() -> None:
        waiting = list(acts)
        while waiting and not ended.wait(0.01):
            with suppress(BrokerAwayError):  # the test itself is restarting the broker
                for step in list(waiting):
                    if kafka.requests(step["api"]) >= step["after"]:
                        waiting.remove(step)
                        ACTS[step["act"]](kafka)

    def watch_and_catch() -> None:
        try:
            watch()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=watch_and_catch, name="muster-chaos")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]


__all__ = ["ACTS", "ERRORS", "REQUESTS", "Step", "chaos"]
