"""The cause that the rules find is the one that was scripted, in every recorded scenario."""

from __future__ import annotations

import pytest

from tests.history.verdicts import files, found_in
from tools import scenario_page


@pytest.mark.parametrize("name", files())
def test_the_scripted_cause_is_found(name):
    wrong = [each for each in found_in(name) if not each.right]
    told = [
        f"{each.about}: {each.cause} was scripted, found "
        + str([(row.generation, str(row.cause), row.evidence) for row in each.found])
        for each in wrong
    ]
    assert not wrong, "\n".join(told)


def test_the_page_is_up_to_date():
    assert scenario_page.PAGE.read_text() == scenario_page.page(), "run: python -m tools.scenario_page"
