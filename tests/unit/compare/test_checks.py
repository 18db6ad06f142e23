"""The verdict: correct results pass, each possible fault is found, and disturbed counts are not judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.compare.rules.checks import ResultCheck, is_well, judge
from muster.compare.rules.counters import ZooKeeperCounters
from muster.compare.rules.formulas import Scheme
from muster.compare.rules.results import Results, SchemeRun, StepResult, Work, from_json, to_json
from muster.compare.rules.workload import StepKind
from tests.support.compare_results import differing, run, sample


def wrong(results: Results) -> list[str]:
    return [check.name for check in judge(results) if check.ok is False]


def test_a_run_in_which_all_went_well() -> None:
    checks = judge(sample(sizes=(2, 3, 20)))
    assert is_well(checks)
    assert {check.ok for check in checks} == {True}
    assert {(check.scheme, check.size) for check in checks} == {
        (scheme, size) for scheme in (Scheme.WATCHERS, Scheme.SERVER, Scheme.MEMBERS) for size in (2, 3, 20)
    }
    assert checks[0].title == "Scheme 1: members watch ZooKeeper, 2 members: no record is lost"


def count(**changed: int) -> Callable[[SchemeRun], None]:
    def change(of: SchemeRun) -> None:
        of.steps[2].counted = of.steps[2].counted._replace(**changed)

    return change


def rebalances(of: SchemeRun) -> None:
    of.steps[1].work.rebalances += 1


def too_few(of: SchemeRun) -> None:
    of.steps[1].work.rebalances -= 1


def twice(of: SchemeRun) -> None:
    of.steps[1].twice = 1


def doubled(of: SchemeRun) -> None:
    of.steps[2].doubled = 1


def lost(of: SchemeRun) -> None:
    of.lost = 1


def accepted(of: SchemeRun) -> None:
    of.of_kind(StepKind.FREEZE)[0].stale_commits = {"accepted": 1}


@pytest.mark.parametrize(
    ("scheme", "change", "name"),
    [
        (Scheme.WATCHERS, lost, "no record is lost"),
        (Scheme.SERVER, lost, "no record is lost"),
        (Scheme.MEMBERS, lost, "no record is lost"),
        (Scheme.WATCHERS, rebalances, "rebalances of the start are N(N+1)/2"),
        (Scheme.WATCHERS, too_few, "rebalances of the start are N(N+1)/2"),
        (Scheme.KAFKA08, rebalances, "rebalances of the start are N(N+1)/2"),
        (Scheme.WATCHERS, count(watches=3), "notifications of the start are N(N−1)/2"),
        (Scheme.WATCHERS, count(reads=43), "reads of a change"),
        (Scheme.WATCHERS, count(reads=33), "reads of a change"),
        (Scheme.WATCHERS, count(writes=200), "writes of a change"),
        (Scheme.WATCHERS, count(writes=2), "writes of a change"),
        (Scheme.SERVER, count(reads=1), "ZooKeeper's reads of a change"),
        (Scheme.MEMBERS, count(reads=1), "ZooKeeper's reads of a change"),
        (Scheme.SERVER, count(watches=1), "notifications of a change"),
        (Scheme.SERVER, count(writes=2), "ZooKeeper's writes of a change"),
        (Scheme.SERVER, count(writes=0), "ZooKeeper's writes of a change"),
        (Scheme.MEMBERS, count(writes=1), "ZooKeeper's writes of a change"),
        (Scheme.MEMBERS, twice, "no record is handled twice when members join and leave"),
        (Scheme.WATCHERS, doubled, "no partition has two readers when members join and leave"),
        (Scheme.SERVER, doubled, "no partition has two readers when members join and leave"),
        (Scheme.MEMBERS, doubled, "no partition has two readers when members join and leave"),
        (Scheme.SERVER, accepted, "a resumed member cannot commit"),
        (Scheme.MEMBERS, accepted, "a resumed member cannot commit"),
    ],
)
def test_what_is_wrong_is_found(scheme: Scheme, change: Callable[[SchemeRun], None], name: str) -> None:
    results = sample(scheme)
    assert wrong(results) == []
    change(results.runs[0])
    assert wrong(results) == [name]
    assert not is_well(judge(results))


@pytest.mark.parametrize(
    ("scheme", "change"),
    [(Scheme.WATCHERS, twice), (Scheme.WATCHERS, accepted), (Scheme.SERVER, twice), (Scheme.KAFKA08, doubled)],
)
def test_what_a_scheme_does_not_promise_is_not_a_fault(scheme: Scheme, change: Callable[[SchemeRun], None]) -> None:
    results = sample(scheme)
    change(results.runs[0])
    assert wrong(results) == []


def test_tries_that_failed_may_cost_what_they_cost() -> None:
    results = sample(Scheme.WATCHERS)
    step = results.runs[0].steps[2]
    allowed = step.counted.reads
    step.counted = ZooKeeperCounters(allowed + 16, step.counted.writes + 4, 2, 100)
    assert wrong(results) == ["reads of a change"]
    step.work = Work(3, 4, 5)  # one more attempt, five owners in the way: 3 + 4 + 3 and 5
    assert wrong(results) == []


def disturbed(results: Results) -> list[ResultCheck]:
    for step in results.runs[0].steps:
        step.expired = 1
        step.counted = ZooKeeperCounters(9_999, 9_999, 9_999, 9_999)
        step.twice = step.doubled = 5
    return judge(results)


@pytest.mark.parametrize("scheme", [Scheme.WATCHERS, Scheme.SERVER, Scheme.MEMBERS])
def test_counts_of_steps_in_which_sessions_ended_are_not_judged(scheme: Scheme) -> None:
    found = {check.name: check.ok for check in disturbed(sample(scheme))}
    assert found.pop("no record is lost") is True
    assert found.pop("a resumed member cannot commit", True) is True
    assert found.pop("a resumed member can commit to partitions that it has lost, from its next session", True) is True
    assert set(found.values()) == {None}
    assert is_well(disturbed(sample(scheme)))


@pytest.mark.parametrize("outcomes", [{}, {"none": 1}])
def test_a_commit_that_was_never_tried_is_not_mistaken_for_a_refused_one(outcomes: dict[str, int]) -> None:
    results = sample(Scheme.SERVER)
    results.runs[0].of_kind(StepKind.FREEZE)[0].stale_commits = outcomes
    (found,) = [check for check in judge(results) if check.name == "a resumed member cannot commit"]
    assert found.ok is None


def test_one_disturbed_step_does_not_hide_another() -> None:
    results = sample(Scheme.MEMBERS)
    results.runs[0].steps[0] = replace(results.runs[0].steps[0], expired=1, counted=ZooKeeperCounters(9, 9, 9, 9))
    assert wrong(results) == []
    count(reads=1)(results.runs[0])
    assert wrong(results) == ["ZooKeeper's reads of a change"]


def of_kind(run: SchemeRun, kind: StepKind) -> StepResult:
    return run.of_kind(kind)[0]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda run: setattr(run, "doubles", []), "two members read the same partitions while a server lags"),
        (lambda run: lost(run), "no record is lost while a server lags"),
        (
            lambda run: setattr(of_kind(run, StepKind.LATE), "work", Work(3, 3)),
            "attempts fail while members see different members",
        ),
        (
            lambda run: setattr(of_kind(run, StepKind.BROKER), "work", Work(5, 5)),
            "with watch_brokers all members rebalance when a broker stops and restarts",
        ),
    ],
)
def test_servers_that_differ_must_show_what_is_wrong_and_lose_nothing(
    change: Callable[[SchemeRun], None], name: str
) -> None:
    results = sample(Scheme.WATCHERS)
    results.differing = differing()
    assert is_well(judge(results))
    change(results.differing)
    assert wrong(results) == [name]


@pytest.mark.parametrize("disturbed", range(5))
def test_flaws_that_do_not_show_are_not_judged_where_sessions_ended_unmeant(disturbed: int) -> None:
    results = sample(Scheme.WATCHERS)
    results.differing = found = differing()
    found.doubles, of_kind(found, StepKind.LATE).work = [], Work(3, 3)
    assert len(wrong(results)) == 2
    found.steps[disturbed].expired = 1
    judged = {check.name: check for check in judge(results)}
    for name in (
        "two members read the same partitions while a server lags",
        "attempts fail while members see different members",
    ):
        assert (judged[name].ok, judged[name].seen[-33:]) == (None, "; 1 sessions expired unexpectedly")
    found.lost = 1
    assert wrong(results) == ["no record is lost while a server lags"]


def test_what_scheme_1_lacks_must_show() -> None:
    results = sample(Scheme.WATCHERS)
    of_kind(results.runs[0], StepKind.BROKER).work = Work(3, 3)
    assert wrong(results) == ["without watch_brokers no member rebalances when a broker stops and restarts"]
    results = sample(Scheme.WATCHERS)
    of_kind(results.runs[0], StepKind.FREEZE).stale_commits = {"refused": 1}
    assert wrong(results) == ["a resumed member can commit to partitions that it has lost, from its next session"]
    of_kind(results.runs[0], StepKind.FREEZE).stale_commits = {"none": 1}
    assert is_well(judge(results))


def test_results_go_through_json() -> None:
    results = sample(sizes=(2, 3))
    results.differing = differing()
    again = from_json(json.loads(json.dumps(to_json(results))))
    assert again == results
    assert isinstance(again.runs[0].steps[0], StepResult)
    assert again.stories() == [run(scheme) for scheme in (Scheme.WATCHERS, Scheme.SERVER, Scheme.MEMBERS)]


def test_work_is_added_up_and_distinguished() -> None:
    before = Work(1, 2, 3, {"JoinGroup": 2, "Heartbeat": 5})
    after = Work(2, 4, 3, {"JoinGroup": 3, "Heartbeat": 5, "SyncGroup": 1})
    added = after.since(before)
    assert added == Work(1, 2, 0, {"JoinGroup": 1, "SyncGroup": 1})
    assert (added.failed_tries, added.joins) == (1, 2)
    assert before + added == after
