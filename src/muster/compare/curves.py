"""The chart of growth: counts over the number of members, both on scales of powers of ten, formulas as lines.

Zero can be drawn: the height of a count is the logarithm of the count plus one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from muster.pages.charts import WIDTH, Scale, tag, text

TOP, BOTTOM, LEFT, RIGHT = 24.0, 300.0, 92.0, WIDTH - 236.0
SAMPLES = 60
LINE = 16.0
"""The smallest distance between two labels at the ends of lines."""


@dataclass(frozen=True, slots=True)
class GrowthLine:
    """One line with the points that were measured. `points` are pairs of members and a count."""

    label: str
    colour: int
    points: Sequence[tuple[int, float]]
    curve: Sequence[tuple[int, float]]
    """The formula, at the numbers of members that `sampled` returns."""


def sampled(most: int) -> list[int]:
    """The numbers of members at which a formula is drawn: 1 to `most`, evenly on the scale of powers."""
    steps = [round(most ** (step / SAMPLES)) for step in range(SAMPLES + 1)]
    return list(dict.fromkeys(steps))


def growth_chart(title: str, lines: Sequence[GrowthLine], caption: str) -> str:
    """The chart, as one `<svg>`."""
    widest = max([members for line in lines for members, _ in [*line.curve, *line.points]], default=10)
    highest = max([count for line in lines for _, count in [*line.curve, *line.points]], default=1.0)
    across = _logarithmic(widest, LEFT, RIGHT)
    up = _logarithmic_with_nought(highest, BOTTOM, TOP)
    shapes = []
    for count in [0, *_powers(highest)]:
        shapes.append(tag("line", x1=LEFT, x2=RIGHT, y1=up(count), y2=up(count), class_="grid"))
        shapes.append(text(LEFT - 10, up(count) + 4, f"{count:,}", "muted", text_anchor="end"))
    for members in _powers(widest):
        shapes.append(tag("line", x1=across(members), x2=across(members), y1=TOP, y2=BOTTOM, class_="grid"))
        shapes.append(text(across(members), BOTTOM + 20, f"{members:,}", "muted", text_anchor="middle"))
    shapes += [_line(line, across, up) for line in lines]
    shapes += _labels(lines, up)
    shapes.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, caption, "muted", text_anchor="middle"))
    spoken = "; ".join(_spoken(line) for line in lines)
    about = tag("title", escape(title)) + tag("desc", escape(spoken))
    return tag("svg", about, *shapes, viewBox=f"0 0 {WIDTH} {BOTTOM + 54:.0f}", role="img", aria_label=title)


def _line(line: GrowthLine, across: Scale, up: Scale) -> str:
    path = " ".join(f"{across(members):.1f},{up(count):.1f}" for members, count in line.curve)
    drawn = tag("path", d=f"M{path}") if path else ""
    dots = [
        tag(
            "circle",
            tag("title", escape(f"{line.label}: {count:,} with {members:,} members")),
            cx=round(across(members), 1),
            cy=round(up(count), 1),
            r=5,
        )
        for members, count in line.points
    ]
    return tag("g", drawn, *dots, class_=f"curve m{line.colour % 8}")


def _labels(lines: Sequence[GrowthLine], up: Scale) -> list[str]:
    """The name of each line at its end, moved upwards if it would overlap another."""
    wanted = sorted(
        ((up((line.curve or line.points)[-1][1]), line) for line in lines if line.curve or line.points),
        key=lambda pair: -pair[0],
    )
    labels, free = [], BOTTOM
    for place, line in wanted:
        y = min(place, free)
        free = y - LINE
        labels.append(tag("g", tag("circle", cx=RIGHT + 16, cy=y, r=5), class_=f"curve m{line.colour % 8}"))
        labels.append(text(RIGHT + 28, y + 4, line.label, "label"))
    return labels


def _spoken(line: GrowthLine) -> str:
    points = ", ".join(f"{members} members {count:,}" for members, count in line.points)
    return f"{line.label}: {points or 'not measured'}"


def _powers(most: float) -> list[int]:
    return [10**power for power in range(max(0, math.floor(math.log10(max(most, 1)))) + 1)]


def _logarithmic(most: float, start: float, end: float) -> Scale:
    factor = (end - start) / math.log10(max(most, 10))
    return lambda value: start + factor * math.log10(max(value, 1))


def _logarithmic_with_nought(most: float, start: float, end: float) -> Scale:
    factor = (end - start) / math.log10(max(most, 9) + 1)
    return lambda value: start + factor * math.log10(value + 1)
