"""Small charts as inline SVG: bars, columns, and the timeline of a group.

Every function returns one `<svg>` element that scales with its container and takes its colours from the page's style
sheet, so that it follows the reader's light or dark setting. Meaning is never carried by colour alone: bars have their
values, bands their owners' names, markers their numbers, and each shape has a title for pointers and screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

Scale = Callable[[float], float]
"""Maps a value to a position in pixels."""

WIDTH = 1080
CHARACTER = 6.9
"""About how wide one character of a 12-pixel label is."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its label, its value (None if there is none) and a note for its title."""

    label: str
    value: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """A segment of one row of a timeline, coloured by `owner`, the index of its label."""

    row: int
    owner: int
    label: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """A numbered line through a timeline; the time up to `end_ms` is shaded."""

    number: int
    start_ms: int
    end_ms: int
    note: str


@dataclass(frozen=True, slots=True)
class Shade:
    """A labelled period, across all rows or in one (`row`).

    `class_` is its class in the style sheet.
    """

    start_ms: int
    end_ms: int
    label: str
    row: int | None = None
    class_: str = "shade"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def tag(name: str, *children: str, **attributes: str | float) -> str:
    """One element. A trailing underscore of an attribute's name is dropped, others become hyphens; children are
    markup."""
    markup = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value) if isinstance(value, int | float) else value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{markup}>{''.join(children)}</{name}>"


def text(x: float, y: float, content: str, class_: str = "label", **attributes: str | float) -> str:
    """Text whose baseline is at y."""
    return tag("text", escape(content), x=x, y=y, class_=class_, **attributes)


def clock(milliseconds: int) -> str:
    """A duration in readable form: 850 ms, 12.4 s, 2:05 min."""
    if 0 < milliseconds < 1_000:
        return f"{milliseconds} ms"
    if milliseconds < 120_000:
        return f"{milliseconds / 1_000:.1f} s"
    minutes, rest = divmod(round(milliseconds / 1_000), 60)
    return f"{minutes}:{rest:02} min"


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round values (steps of 1, 2 or 5) that cover low to high in about this many steps."""
    raw = max(high - low, 1e-9) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return [index * step for index in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _seconds(end_ms: float) -> list[tuple[float, str]]:
    return [(tick * 1_000, f"{_number(tick)} s") for tick in ticks(0, end_ms / 1_000, 10) if tick * 1_000 <= end_ms]


_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)


def times_of_day(origin_ms: int, length_ms: float, about: int) -> list[tuple[float, str]]:
    """Round times in UTC after an origin, in about this many steps: milliseconds since the origin, and the label."""
    days = max(1, math.ceil(length_ms / 86_400_000 / about))
    step_ms = next((step * 1_000 for step in _STEPS_S if step * 1_000 * about >= length_ms), days * 86_400_000)
    time_format = "%H:%M:%S" if step_ms < 60_000 else "%H:%M" if step_ms < 86_400_000 else "%d %b"
    first = -(-origin_ms // step_ms) * step_ms
    found = [(at - origin_ms, at) for at in range(first, origin_ms + math.floor(length_ms) + 1, step_ms)]
    return [(offset, _clock(at, time_format)) for offset, at in found]


def _clock(at_ms: int, time_format: str) -> str:
    """A time in UTC; in milliseconds if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime(time_format)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"


def bar_chart(title: str, bars: Sequence[Bar], unit: str) -> str:
    """Horizontal bars with a name on the left and the value at their end; values may be negative."""
    row, top, left = 27, 8, 12 + CHARACTER * max((len(bar.label) for bar in bars), default=0)
    values = [bar.value for bar in bars if bar.value is not None]
    # A negative bar's value is on its left, between its end and the names.
    low, high = min([0.0, *values]), max([1.0, *values])
    scale = _linear(low, high, left + (50 if low < 0 else 10), WIDTH - 60)
    axis = [tick for tick in ticks(low, high, 6) if low <= tick <= high]
    height = top + row * len(bars) + 30
    shapes = [_vertical_grid(axis, scale, top, top + row * len(bars), unit)]
    for index, bar in enumerate(bars):
        y = top + index * row
        shapes.append(text(left, y + 17, bar.label, "label", text_anchor="end"))
        if bar.value is None:
            shapes.append(text(scale(0) + 6, y + 17, "no value", "muted"))
            continue
        start, end = sorted((scale(0), scale(bar.value)))
        shape = tag("rect", _title(bar, unit), x=start, y=y + 4, width=max(end - start, 1), height=row - 8, rx=3)
        shapes.append(tag("g", shape, class_="bar"))
        x, anchor = (end + 7, "start") if bar.value >= 0 else (start - 7, "end")
        shapes.append(text(x, y + 17, _formatted(bar.value), "value", text_anchor=anchor))
    shapes.append(tag("line", x1=scale(0), x2=scale(0), y1=top, y2=top + row * len(bars), class_="axis"))
    return _svg(title, _spoken(bars, unit), height, shapes)


def column_chart(title: str, bars: Sequence[Bar], unit: str, caption: str) -> str:
    """Vertical bars in the order given, for values along an ordered axis such as the hours of a day."""
    top, bottom, left, right = 24, 250, 52, WIDTH - 12
    values = [bar.value for bar in bars if bar.value is not None]
    axis = ticks(min([0.0, *values]), max([1.0, *values]), 6)
    scale = _linear(axis[0], axis[-1], bottom, top)
    slot = (right - left) / max(len(bars), 1)
    shapes = []
    for tick in axis:
        shapes.append(tag("line", x1=left, x2=right, y1=scale(tick), y2=scale(tick), class_="grid"))
        shapes.append(text(left - 8, scale(tick) + 4, _number(tick), "muted", text_anchor="end"))
    for index, bar in enumerate(bars):
        middle = left + slot * (index + 0.5)
        shapes.append(text(middle, bottom + 20, bar.label, "muted", text_anchor="middle"))
        if bar.value is None:
            shapes.append(text(middle, scale(0) - 6, "–", "muted", text_anchor="middle"))
            continue
        upper, lower = sorted((scale(0), scale(bar.value)))
        width = min(slot * 0.72, 46)
        shape = tag(
            "rect", _title(bar, unit), x=middle - width / 2, y=upper, width=width, height=max(lower - upper, 1), rx=3
        )
        shapes.append(tag("g", shape, class_="bar"))
        above = upper - 6 if bar.value >= 0 else lower + 15
        shapes.append(text(middle, above, f"{bar.value:.0f}", "value", text_anchor="middle"))
    shapes.append(tag("line", x1=left, x2=right, y1=scale(0), y2=scale(0), class_="axis"))
    shapes.append(text((left + right) / 2, bottom + 44, caption, "muted", text_anchor="middle"))
    shapes.append(text(left - 8, top - 10, unit, "muted", text_anchor="end"))
    return _svg(title, _spoken(bars, unit), bottom + 54, shapes)


def line_chart(title: str, points: Sequence[tuple[int, float]], unit: str) -> str:
    """A line over time: values at times in milliseconds since the epoch, in ascending order."""
    top, bottom, left, right = 24, 134, 64, WIDTH - 16
    origin, length = points[0][0], max(1, points[-1][0] - points[0][0])
    axis = ticks(0.0, max([1.0, *(value for _, value in points)]), 3)
    up, at = _linear(axis[0], axis[-1], bottom, top), _linear(0, length, left, right)
    shapes = []
    for tick in axis:
        shapes.append(tag("line", x1=left, x2=right, y1=up(tick), y2=up(tick), class_="grid"))
        shapes.append(text(left - 8, up(tick) + 4, _number(tick), "muted", text_anchor="end"))
    drawn = " ".join(f"{at(time - origin):.1f},{up(value):.1f}" for time, value in points)
    shapes.append(tag("polyline", points=drawn, class_="course"))
    for tick_ms, name in times_of_day(origin, length, 9):
        x = at(tick_ms)
        shapes.append(tag("line", x1=x, x2=x, y1=bottom + 2, y2=bottom + 7, class_="axis"))
        shapes.append(text(x, bottom + 22, name, "muted", text_anchor="middle"))
    shapes.append(text(left - 8, top - 10, unit, "muted", text_anchor="end"))
    highest = max(points, key=lambda point: point[1])
    spoken = (
        f"From {_formatted(points[0][1])} to {_formatted(points[-1][1])} {unit} over {clock(length)}, "
        f"{_formatted(highest[1])} at most, {clock(highest[0] - origin)} after the beginning."
    )
    return _svg(title, spoken, bottom + 30, shapes)


def timeline(
    title: str,
    rows: Sequence[str],
    bands: Iterable[Band],
    markers: Sequence[NumberedLine],
    shades: Sequence[Shade],
    until_ms: int = 1,
    origin_ms: int | None = None,
) -> str:
    """Rows of coloured bands over time, with numbered markers through all of them and periods that all rows share.

    The axis goes to at least `until_ms`, so that several of them can be compared. It counts seconds from zero; with an
    origin, the time since the epoch at its zero, it shows the time of day in UTC.
    """
    bands = list(bands)
    left, row = 12 + CHARACTER * max((len(name) for name in rows), default=0), 30
    ends = [band.end_ms for band in bands] + [mark.end_ms for mark in markers] + [shade.end_ms for shade in shades]
    end_ms = max([until_ms, *ends])
    at = _linear(0, end_ms, left + 12, WIDTH - 16)
    lanes = _lanes(markers, at)
    top = 8 + 20 * (1 + max(lanes, default=-1))
    bottom = top + row * len(rows)
    shapes = [_HATCH]
    for index, name in enumerate(rows):
        y = top + index * row
        shapes.append(text(left, y + 19, name, "label", text_anchor="end"))
        shapes.append(tag("rect", x=at(0), y=y + 3, width=at(end_ms) - at(0), height=row - 6, class_="track", rx=3))
    shapes += [_band(band, at, top + band.row * row + 3, row - 6) for band in bands]
    for shade in shades:
        upper, lower = (
            (top, bottom) if shade.row is None else (top + shade.row * row + 3, top + (shade.row + 1) * row - 3)
        )
        shapes.append(_shade(shade, at, upper, lower))
    shapes += [_marker(marker, lane, at, top, bottom) for marker, lane in zip(markers, lanes, strict=True)]
    # Above the markers' lines, which would otherwise run through them.
    shapes.append(tag("g", *(_name(band, at, top + band.row * row + row / 2) for band in bands), class_="names"))
    for tick_ms, name in _seconds(end_ms) if origin_ms is None else times_of_day(origin_ms, end_ms, 9):
        x = at(tick_ms)
        shapes.append(tag("line", x1=x, x2=x, y1=bottom + 2, y2=bottom + 7, class_="axis"))
        half = CHARACTER * len(name) / 2
        shapes.append(text(min(x, WIDTH - half), bottom + 22, name, "muted", text_anchor="middle"))
    spoken = f"{len(rows)} rows over {clock(end_ms)}, {len(markers)} markers; the table below lists them."
    return _svg(title, spoken, bottom + 30, shapes)


_HATCH = tag(
    "defs",
    tag(
        "pattern",
        tag("line", x1=0, y1=0, x2=0, y2=7, class_="hatch"),
        id="hatch",
        width=7,
        height=7,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    ),
)


def _band(band: Band, at: Scale, y: float, height: float) -> str:
    x, width = at(band.start_ms), max(at(band.end_ms) - at(band.start_ms), 1)
    description = f"{band.label}: {clock(band.start_ms)} to {clock(band.end_ms)}"
    shape = tag("rect", tag("title", escape(description)), x=x, y=y, width=width, height=height, rx=3)
    return tag("g", shape, class_=f"band m{band.owner % 8}")


def _name(band: Band, at: Scale, middle: float) -> str:
    """A band's name, if there is room for it."""
    room = at(band.end_ms) - at(band.start_ms)
    return (
        text(at(band.start_ms) + 7, middle + 4, band.label, "name") if room > len(band.label) * CHARACTER + 12 else ""
    )


def _shade(shade: Shade, at: Scale, top: float, bottom: float) -> str:
    x, width = at(shade.start_ms), max(at(shade.end_ms) - at(shade.start_ms), 2)
    description = f"{shade.label}: {clock(shade.end_ms - shade.start_ms)}"
    veil = tag("rect", x=x, y=top, width=width, height=bottom - top, class_="veil")
    hatched = tag(
        "rect", tag("title", escape(description)), x=x, y=top, width=width, height=bottom - top, fill="url(#hatch)"
    )
    return tag("g", veil, hatched, class_=shade.class_)


def _lanes(markers: Sequence[NumberedLine], at: Scale) -> list[int]:
    """For each marker, the lane above the rows that has its number: the first of three in which it touches no other."""
    lanes, taken = [], [-math.inf] * 3
    for marker in markers:
        x = at(marker.start_ms)
        lane = next((index for index, last in enumerate(taken) if x - last > 24), taken.index(min(taken)))
        taken[lane] = x
        lanes.append(lane)
    return lanes


def _marker(marker: NumberedLine, lane: int, at: Scale, top: float, bottom: float) -> str:
    x, y = at(marker.start_ms), top - 14 - 20 * lane
    return tag(
        "g",
        tag("title", escape(f"{marker.number}: {marker.note}")),
        tag("rect", x=x, y=top, width=max(at(marker.end_ms) - x, 0), height=bottom - top, class_="pause"),
        tag("line", x1=x, x2=x, y1=y, y2=bottom, class_="mark"),
        tag("circle", cx=x, cy=y, r=9),
        text(x, y + 4, str(marker.number), "number", text_anchor="middle"),
        class_="marker",
    )


def _linear(low: float, high: float, start: float, end: float) -> Scale:
    factor = (end - start) / (high - low)
    return lambda value: start + (value - low) * factor


def _vertical_grid(axis: Sequence[float], scale: Scale, top: float, bottom: float, unit: str) -> str:
    shapes = []
    for tick in axis:
        shapes.append(tag("line", x1=scale(tick), x2=scale(tick), y1=top, y2=bottom, class_="grid"))
        label = f"{_number(tick)} {unit}" if tick == axis[-1] else _number(tick)
        shapes.append(text(scale(tick), bottom + 20, label, "muted", text_anchor="middle"))
    return "".join(shapes)


def _title(bar: Bar, unit: str) -> str:
    note = f", {bar.note}" if bar.note else ""
    value = f"{bar.value:,}" if isinstance(bar.value, int) else f"{bar.value or 0:.2f}"
    return tag("title", escape(f"{bar.label}: {value} {unit}{note}"))


def _spoken(bars: Sequence[Bar], unit: str) -> str:
    values = ("no value" if bar.value is None else f"{_formatted(bar.value)} {unit}" for bar in bars)
    return "; ".join(f"{bar.label} {value}" for bar, value in zip(bars, values, strict=True))


def _formatted(value: float) -> str:
    """A count unchanged, a measurement rounded to a tenth."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def _svg(title: str, description: str, height: float, shapes: Iterable[str]) -> str:
    about = tag("title", escape(title)) + tag("desc", escape(description))
    return tag("svg", about, *shapes, viewBox=f"0 0 {WIDTH} {_number(height)}", role="img", aria_label=title)
