"""Which groups a pattern matches, and which patterns are refused because matching an id could take too long."""

import pytest

from muster.coordinator.groups.group_pattern import MAX_ID_LENGTH, GroupPattern
from muster.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders", "", "Orders"]),
        ("team-.*", ["team-", "team-a"], ["team", "a-team-b"]),
        ("a|b", ["a", "b"], ["ab", "c"]),
        (r"[)*+{]+\)*(?:x|y)?.*", ["))", "{)x!"], ["x"]),
        (r"(?i)abc\.d{2,3}", ["ABC.DD", "abc.ddd"], ["abcxdd"]),
        (".*", ["x" * MAX_ID_LENGTH], ["x" * (MAX_ID_LENGTH + 1), "two\nlines"]),
        (None, [], ["", "a"]),
        ("", [], ["", "a"]),
    ],
)
def test_the_whole_id_has_to_match(pattern: str | None, matching: list[str], others: list[str]):
    found = GroupPattern(pattern)
    assert bool(found) == bool(pattern)
    assert [each for each in matching + others if found.matches(each)] == matching


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "not a regular expression"),
        ("[a", "not a regular expression"),
        ("a{99999999999999}", "not a regular expression"),
        ("(a+)+b", "parentheses must not be repeated"),
        ("(a|a)*b", "parentheses must not be repeated"),
        ("(?:a|a){9}b", "parentheses must not be repeated"),
        (r"(a)\1", "backreferences"),
        ("(?P<x>a)(?P=x)", "backreferences"),
        ("(?=a)a", "lookarounds"),
        (".*a.*b.*c.*", "at most 3"),
    ],
)
def test_a_pattern_that_is_invalid_or_could_take_long_is_refused(pattern: str, why: str):
    with pytest.raises(ConfigError, match=rf"server\.assigned\.groups .*{why}"):
        GroupPattern(pattern)
