"""Expressions for names of topics: which are accepted, what they match, and that none keeps a member busy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.expressions import Parser
from muster.zookeeper.watchers import topic_expression as module
from muster.zookeeper.watchers.topic_expression import TooCostlyError, TopicExpression, topic_expression

NAMES = ["a", "ab", "orders", "orders-eu", "Orders_1", "test.orders", "__x", "foobar", "a1", "1", "x-foo-y"]


@pytest.mark.parametrize(
    "regex",
    [
        "orders",
        "orders.*",
        "a|ab|1",
        "|a",
        ".*-eu|a.?",
        "[a-c]+[0-9]*",
        "[^a-z]+",
        "[-a]1?",
        "[a-]1?",
        r"\w+",
        r"\D+",
        r"test\.orders",
        r"[\w.]+",
        r"[\d-]+",
        "^orders$",
        "^a$|^1$",
        "(?i)ORDERS.*",
        "(?i)[o]rders[^_]*1",
        "(?!__).*",
        "(?!.*foo).+",
        "((?!foo).)*",
        "(?=o).*(?<=s)",
        ".*(?<!s)",
        r"(.*\bfoo\b.*)",
        "(a|ab)(1|b)?",
        "(?:a|b)+?",
        "(a?){3,}b{0,2}",
        "(a?){40}",
        "(or|de|rs){3}",
        "(a*)*",
        "a}",
        "",
    ],
)
def test_expressions_match_as_pythons_do_the_fast_way_and_the_slow_one(
    regex: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {name for name in NAMES if re.fullmatch(regex, name, re.ASCII)}
    assert TopicExpression(regex).matching(NAMES) == expected
    monkeypatch.setattr(module, "MOST_TRIES", 0)
    assert TopicExpression(regex).matching(NAMES) == expected


ATOMS = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^b]", r"\w", r"\d", r"\-", "^", "$", r"\b"])


def _more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = inner.map("({})".format)
    return st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.tuples(groups, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "{1,3}?"])).map("".join),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda parts: "".join(parts) + ")"),
        groups,
    )


@given(regex=st.recursive(ATOMS, _more, max_leaves=8), names=st.lists(st.text("ab-1", max_size=6), max_size=6))
def test_the_slow_way_finds_what_pythons_matcher_finds(regex: str, names: list[str]) -> None:
    part = Parser(regex).parse()
    for name in names:
        found, _ = module._match(part, name)
        assert found == (re.fullmatch(regex, name, re.ASCII) is not None), name


@pytest.mark.parametrize(
    "regex",
    [
        *("(", ")", "a)", "[", "[]", "[]a]", "[^]a]", "[a-z&&[^b]]", "[[a]]", "[a--b]", "[z-a]", "[a-\\d]"),
        *("*", "+a", "a**", "a*+", "a++", "a?+", "a{2}{3}", "a{2}+", "{", "a{", "a{,3}", "a{3,2}", "a{99999999999}"),
        *("(?P<x>a)", "(?<x>a)", "(?s)a", "a(?i)b", "(?>a)", "(a)\\1", "\\p{Alpha}", "\\Qa\\E", "\\A", "\\Z", "a\\"),
        *("^*", "(?=a)*", "(?<=a*)b", "\\é", "[a-é]", "[\\D]"),
        "(" * 51 + ")" * 51,
        "a" * 100_001,
    ],
)
def test_what_java_and_python_may_read_otherwise_is_refused(regex: str) -> None:
    with pytest.raises(ConfigError):
        TopicExpression(regex)


@pytest.mark.slow
@pytest.mark.parametrize(
    "regex", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "((((a+)+)+)+)+b", "(.*)*x", "(a?){30}a{30}x", "(a|a)" * 40, ".*" * 12]
)
def test_no_expression_takes_longer_than_a_bounded_number_of_steps(regex: str) -> None:
    """Each of these would keep Python's and Java's matchers busy for years with these names."""
    names = ["a" * length for length in range(30, 60)]
    expected = {"a" * 40} if regex.startswith("(a|a)(") else set(names) if regex.endswith("*.*") else set()
    assert TopicExpression(regex).matching(names) == expected


@pytest.mark.slow
def test_what_would_take_too_long_all_the_same_is_reported() -> None:
    expression = TopicExpression("(.*a.*)*(.*a.*)*x")
    names = ["a" * 240 + str(number) for number in range(100)]
    for _ in range(2):
        with pytest.raises(TooCostlyError, match="takes too long"):
            expression.matching(names)
    assert expression.matching(["ax", "x", "b"]) == {"ax", "x"}


def test_whether_it_takes_too_long_is_the_same_for_a_member_that_has_long_been_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 200)
    names = ["ab" * 10, "ba" * 10, "aa" * 10]
    old = TopicExpression("(a|b)+")
    for name in names:
        assert old.matching([name]) == {name}
    for expression in (old, TopicExpression("(a|b)+")):
        with pytest.raises(TooCostlyError):
            expression.matching(names)


def test_thousands_of_topics_are_matched_with_lists_of_thousands() -> None:
    names = [f"topic-{number}" for number in range(5_000)]
    assert topic_expression("|".join(names[:3_000])).matching(names) == set(names[:3_000])
    assert topic_expression(".*-1.*5").matching(names) == {n for n in names if n[6] == "1" and n[-1] == "5" and n[7:]}


def test_equal_expressions_share_what_they_have_found_out() -> None:
    assert topic_expression("some.*") is topic_expression("some.*")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 3)
    for regex in ("a.*", "(a|b)*"):
        expression = TopicExpression(regex)
        for number in range(10):
            assert expression.matching([f"a{number}", "ab"]) >= {"ab"}
        assert max(len(expression._known), len(expression._slowly)) <= 3
