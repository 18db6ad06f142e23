"""Checks of HTML pages in tests: that elements are closed, and the shapes of a chart."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "br"}


class Nesting(HTMLParser):
    """Counts elements and requires that each is closed by its own end tag."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def shapes(svg: str, class_: str) -> list[ElementTree.Element]:
    """The elements of a chart that have a class."""
    return [one for one in ElementTree.fromstring(svg).iter() if class_ in one.get("class", "").split()]
