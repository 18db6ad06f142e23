"""The pattern of a ListTransactions: it matches the same ids as Python's matcher, in bounded time."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.transactions import id_pattern
from muster.coordinator.transactions.id_pattern import IdPattern
from muster.errors import ConfigError

ATOMS = ["a", "b", "-", ".", "[ab]", "[^a]", r"\d", r"\w", r"\W", r"\b", "^", "$", "", "(?:)", "ab"]


def expressions() -> st.SearchStrategy[str]:
    repeated = st.sampled_from(
        ["a", "b", ".", "[a-]", r"\w", "(a|b)", "(a*)", "(a?b)", "(|a)", "(a|ab)", "(^a)", r"(\b-)"]
    )
    ends = st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,3}", "{2,}", "*?"])
    leaf = st.one_of(st.sampled_from(ATOMS), st.builds("".join, st.tuples(repeated, ends)))

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.lists(inner, max_size=4).map("".join),
            st.lists(inner, min_size=1, max_size=3).map(lambda found: "(" + "|".join(found) + ")"),
            inner.map(lambda found: f"({found})*"),
            inner.map(lambda found: f"({found}){{1,2}}"),
        )

    return st.recursive(leaf, wider, max_leaves=8)


@given(expressions(), st.lists(st.text("ab-1", max_size=7), max_size=12))
def test_it_matches_what_pythons_matcher_matches(text: str, ids: list[str]) -> None:
    pattern = IdPattern(text)
    expected = re.compile(text, re.ASCII)
    for each in (*ids, *ids):
        assert pattern.matches(each) == (expected.fullmatch(each) is not None), (text, each)
    assert not pattern.is_too_costly


def test_case() -> None:
    assert IdPattern("(?i)Billing-[A-C]+").matches("bILLING-abC")
    assert not IdPattern("Billing").matches("billing")


@pytest.mark.parametrize(
    "text", ["(", "a(?=b)", "(?<!a)b", r"(a)\1", "a++", "a{1001}", "(a{2}){1001}", "a{2,1}", "x" * 10_001, "(" * 60]
)
def test_what_re2_does_not_take_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        IdPattern(text)


@pytest.mark.parametrize(
    ("text", "unit"),
    [("(a+)+b", "a"), ("(a|a)*b", "a"), ("(.*a){10}b", "a"), ("(.*.*.*.*)*x", "a"), (".*a.*b.*a.*b-", "ab")],
)
def test_the_work_does_not_grow_with_the_ids(text: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_pattern, "MOST_STEPS", 5_000)
    pattern = IdPattern(text)
    for length in range(1, 400):
        assert not pattern.matches(unit * length)
    assert not pattern.is_too_costly


def test_a_pattern_with_too_many_states_gives_up() -> None:
    """Every combination of `a`s among the last 300 characters is a different state."""
    pattern = IdPattern("(a|b)*a(a|b){300}")
    drawn = random.Random(1)
    for _ in range(1_000):
        pattern.matches("".join(drawn.choices("ab", k=400)))
    assert pattern.is_too_costly
    assert len(pattern._states) < id_pattern.MOST_STEPS
    assert IdPattern("(a{1000}){1000}").matches("a" * 50) is False


def test_a_usual_pattern_is_looked_up_for_many_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_pattern, "MOST_STEPS", 10_000)
    pattern = IdPattern(".*-payments-[0-9]+")
    ids = [
        f"{'eu' if number % 2 else 'us'}-{'payments' if number % 3 else 'orders'}-{number}" for number in range(9_000)
    ]
    assert sum(map(pattern.matches, ids)) == 6_000
    assert not pattern.is_too_costly
