"""The pipeline as a picture: stages from left to right, what flows between them, each with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from muster.pages.charts import WIDTH, tag, text


@dataclass(frozen=True, slots=True)
class Box:
    """One stage: its name, and the lines below it."""

    title: str
    lines: Sequence[str] = ()


class Stage(NamedTuple):
    """Where a stage is, and its kind: files, a topic, a query on Spark, or Python processes."""

    column: int
    row: float
    kind: str


STAGES = {
    "files": Stage(0, 1.5, "files"),
    "feed": Stage(1, 1.5, "query"),
    "flights": Stage(2, 0.5, "topic"),
    "weather": Stage(2, 3, "topic"),
    "windows": Stage(3, 0, "query"),
    "check": Stage(3, 2, "query"),
    "join": Stage(3, 3, "query"),
    "shared": Stage(3, 4, "query"),
    "table": Stage(4, 0, "files"),
    "topic": Stage(4, 1, "topic"),
    "dead": Stage(4, 2, "topic"),
    "joined": Stage(4, 3, "files"),
    "python": Stage(4, 4, "python"),
    "reader": Stage(5, 1.5, "python"),
}
FLOWS = (
    ("files", "feed"),
    ("feed", "flights"),
    ("feed", "weather"),
    ("flights", "windows"),
    ("flights", "check"),
    ("flights", "join"),
    ("flights", "shared"),
    ("weather", "join"),
    ("windows", "table"),
    ("windows", "topic"),
    ("check", "dead"),
    ("join", "joined"),
    ("shared", "python"),
    ("topic", "reader"),
    ("dead", "reader"),
)
KINDS = {"files": "files", "topic": "topic", "query": "query on Spark", "python": "Python"}
_COLUMN, _ROW, _WIDE, _HIGH = 181, 82, 148, 64


def picture(title: str, boxes: Mapping[str, Box]) -> str:
    """The picture, as one `<svg>`. Stages that `boxes` does not name have no figures."""
    shapes = [_TIP, *(_flow(STAGES[start], STAGES[end]) for start, end in FLOWS)]
    shapes += [_stage(stage, boxes.get(name, Box(name))) for name, stage in STAGES.items()]
    spoken = "; ".join(f"{box.title}: {', '.join(box.lines)}" for box in boxes.values())
    about = tag("title", escape(title)) + tag("desc", escape(spoken))
    height = max(_top(stage) for stage in STAGES.values()) + _HIGH + 8
    return tag("svg", about, *shapes, viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=title)


_TIP = tag(
    "defs",
    tag(
        "marker",
        tag("path", d="M0,0 L7,3.5 L0,7 z", class_="tip"),
        id="tip",
        markerWidth=7,
        markerHeight=7,
        refX=7,
        refY=3.5,
        orient="auto",
    ),
)


def _left(stage: Stage) -> float:
    return 8 + stage.column * _COLUMN


def _top(stage: Stage) -> float:
    return 8 + stage.row * _ROW


def _flow(start: Stage, end: Stage) -> str:
    """A curve from the right side of one stage to the left side of another."""
    x, y = _left(start) + _WIDE, _top(start) + _HIGH / 2
    to_x, to_y = _left(end) - 2, _top(end) + _HIGH / 2
    middle = (x + to_x) / 2
    return tag("path", d=f"M{x},{y} C{middle},{y} {middle},{to_y} {to_x},{to_y}", class_="flow", marker_end="url(#tip)")


def _stage(stage: Stage, box: Box) -> str:
    x, y = _left(stage), _top(stage)
    shape = tag("rect", x=x, y=y, width=_WIDE, height=_HIGH, rx=22 if stage.kind == "topic" else 6)
    lines = [text(x + _WIDE / 2, y + 19, box.title, "label strong", text_anchor="middle")]
    lines += [
        text(x + _WIDE / 2, y + 36 + 16 * number, line, "muted", text_anchor="middle")
        for number, line in enumerate(box.lines)
    ]
    return tag("g", shape, *lines, class_=f"stage {stage.kind}")
