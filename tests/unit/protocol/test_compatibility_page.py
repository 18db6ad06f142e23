"""compatibility.md lists which requests are served in which versions: exactly those that the broker advertises."""

import re
from pathlib import Path

from muster.protocol.api import ADVERTISED, REQUESTS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md"
ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+)-(\d+) \|", re.MULTILINE)


def test_the_table_of_served_requests_is_up_to_date() -> None:
    reported = {(name, int(key), (int(first), int(last))) for name, key, first, last in ROW.findall(PAGE.read_text())}
    served = {
        (REQUESTS[key].__name__.removesuffix("Request"), int(key), versions) for key, versions in ADVERTISED.items()
    }
    assert reported == served
