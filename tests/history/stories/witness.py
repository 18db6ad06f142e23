"""What the coordinator logged while a story was played: a witness that knows nothing of scripts or rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BEGINS = ("reparing to rebalance", "Bumped group epoch")
EXPIRES = ("heartbeat expiration", "session expired", "has failed, removing it")
BY_THEMSELVES = {"has left, removing it": "left", "has left group": "left", "Adding new member": "joined"}
SLACK_MS = 100
SILENT = ("kill", "freeze")
"""Acts after which a session expires."""


def spans(acts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """The times in which the group may rebalance: from an act until it was at rest again.

    If the script did not wait for the end of an act, its time extends to the end of the next act for which it waited.
    """
    begin: int | None = None
    for act in acts:
        begin = act["at_ms"] if begin is None else begin
        if act["settled"]:
            yield begin, act["until_ms"]
            begin = None
    if begin is not None:
        yield begin, acts[-1]["until_ms"]


def longest_rebalance_ms(kept: Mapping[str, Any], act: Mapping[str, Any]) -> int:
    """How long the longest rebalance took that began while this was done: from its preparation to its generation."""
    longest = 0
    began: int | None = None
    for line in kept["broker_log"]:
        if act["at_ms"] - SLACK_MS <= line["at_ms"] <= act["until_ms"] + SLACK_MS:
            if BEGINS[0] in line["text"]:
                began = line["at_ms"] if began is None else began
            elif "Stabilized group" in line["text"] and began is not None:
                longest, began = max(longest, line["at_ms"] - began), None
    return longest


def came_and_went(kept: Mapping[str, Any], act: Mapping[str, Any]) -> frozenset[str]:
    """What members did on their own while this was done, according to the coordinator's log."""
    found: set[str] = set()
    for line in kept["broker_log"]:
        if act["at_ms"] - SLACK_MS <= line["at_ms"] <= act["until_ms"] + SLACK_MS:
            found |= {cause for text, cause in BY_THEMSELVES.items() if text in line["text"]}
    return frozenset(found)


def undoubted(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The story up to the point where the coordinator first did something that no act explains, or the script could not
    continue."""
    end_ms = min((line["at_ms"] for line in _doubtful(kept)), default=None)
    acts = [act for act in kept["acts"] if "until_ms" in act]
    whole = 0
    for at, act in enumerate(acts):
        if end_ms is not None and act["until_ms"] + SLACK_MS >= end_ms:
            break
        whole = at + 1 if act["settled"] else whole
    acts = acts[:whole]
    if end_ms is None and len(acts) == len(kept["acts"]):
        return dict(kept)
    until_ms = acts[-1]["until_ms"] if acts else 0
    return {
        **kept,
        "acts": acts,
        "records": [row for row in kept["records"] if row[2] <= until_ms],
        "broker_log": [line for line in kept["broker_log"] if line["at_ms"] <= until_ms],
    }


def doubts(kept: Mapping[str, Any]) -> list[str]:
    """What the coordinator did that the acts do not explain: the machine was too busy."""
    return [f"{line['at_ms']} {line['text']}" for line in _doubtful(kept)]


def _doubtful(kept: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    allowed = list(spans([act for act in kept["acts"] if "until_ms" in act]))
    for line in kept["broker_log"]:
        begins = any(text in line["text"] for text in BEGINS)
        within = any(begin - SLACK_MS <= line["at_ms"] <= end + SLACK_MS for begin, end in allowed)
        expires = any(text in line["text"] for text in EXPIRES)
        if (begins and not within) or (expires and not _may_expire(kept, line)):
            yield line


def _may_expire(kept: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    """Whether the expiring member is one that ended without notifying the broker. KIP-848's members have ids that do
    not begin with their client id, so it may be any of them."""
    before = [act for act in kept["acts"] if act["at_ms"] - SLACK_MS <= line["at_ms"]]
    settled = [act for act in before if act.get("until_ms", line["at_ms"]) < line["at_ms"] - SLACK_MS]
    static = {label for label, about in kept["cast"].items() if about["static"]}
    silent = {label for act in before if act["do"] in SILENT for label in act["members"]}
    silent |= {label for act in before if act["do"] == "leave" for label in act["members"]} & static
    silent |= {label for act in before if act.get("how") == "stay" for label in act["members"]}
    for label in silent & static:  # one that returns in time does not expire
        latest = [act["do"] for act in settled if label in act["members"]][-1:]
        silent = silent - {label} if latest == ["back"] else silent
    by_name = [label for label in kept["cast"] if f"{label}-" in line["text"]]
    return bool(silent) if not by_name else bool(silent & set(by_name))
