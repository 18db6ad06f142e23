"""Groups that are not consumer groups of the usual kind are counted and named by the doctor, and never an obstacle."""

from __future__ import annotations

import pytest

from muster.cli.observe.doctor_tables import print_report
from muster.history import engine
from muster.history.model import Cause, GroupKind, Limits
from muster.history.report import Report, summaries
from muster.history.show.json_report import as_json
from muster.history.show.page import render
from tests.support.history_topic import Source, recorded

GROUPS = {
    "connect-java-range": (GroupKind.CLASSIC, "connect", "classic (connect)"),
    "registry-muster-sr": (GroupKind.CLASSIC, "sr", "classic (sr)"),
    "streams-app-java-classic": (GroupKind.CLASSIC, "consumer", "classic"),
    "streams-group-java-streams": (GroupKind.STREAMS, "streams", "streams"),
    "streams-java-streams": (GroupKind.STREAMS, "streams", "streams"),
    "queue-java-share": (GroupKind.SHARE, "share", "share"),
}
"""Recordings, and the kinds of their groups."""


def source() -> Source:
    return Source({0: recorded(GROUPS, 1)})


@pytest.fixture(scope="module")
def report() -> Report:
    return engine.report(engine.read_history(source(), Limits(), None, None), "recordings", 10**13)


def test_each_is_named(report):
    found = {each.group.rpartition(".")[0]: each for each in summaries(report)}
    assert {name: (each.kind, each.protocol_type, each.protocol_label) for name, each in found.items()} == GROUPS
    reported = {each["group"].rpartition(".")[0]: each for each in as_json(report)["groups"]}
    assert {name: (each["kind"], each["protocol_type"]) for name, each in reported.items()} == {
        name: of[:2] for name, of in GROUPS.items()
    }
    assert all(each.generation for each in found.values())


def test_each_record_is_counted(report):
    kinds = {kind for kind, _ in report.counts}
    assert {"ShareGroupMetadata", "ShareGroupMemberMetadata", "StreamsGroupMetadata", "StreamsGroupTopology"} <= kinds
    assert sum(report.counts.values()) == source().records[0]
    assert report.warnings == []


def test_rebalances_of_members_without_topics_have_causes(report):
    for name in ("connect-java-range.workers", "registry-muster-sr.g"):
        causes = [row.cause for row in report.rebalances if row.group == name]
        assert causes[:2] == [Cause.STARTED, Cause.JOINED]
        gone = [row for row in report.rebalances if row.group == name and row.left]
        assert gone
        assert {row.cause for row in gone} == {Cause.MEMBER_GONE}
        assert all(Cause.SESSION_EXPIRED in {each.cause for each in row.alternatives} for row in gone)


def test_the_printed_report_and_the_page_name_them(report, capsys):
    print_report(report)
    printed, page = capsys.readouterr().out, render(report)
    for _, _, protocol_label in GROUPS.values():
        assert protocol_label in printed
        assert protocol_label in page
