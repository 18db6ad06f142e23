"""The parts of every HTML page that muster writes: one file with style, headings, tables; no scripts or links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


def document(title: str, *body: str) -> str:
    """The page; the body is markup."""
    style = files("muster.pages").joinpath("page.css").read_text(encoding="utf-8")
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n<body><main>",
            *body,
            "</main></body></html>\n",
        ]
    )


def tiles(figures: Iterable[tuple[str, float | str]]) -> str:
    """Large figures for the top of a page, each with its name above it."""
    entries = "".join(f"<div><dt>{escape(name)}</dt><dd>{value(figure)}</dd></div>" for name, figure in figures)
    return f'<dl class="tiles">{entries}</dl>' if entries else ""


def section(heading: str, hint: str, *body: str, anchor: str = "") -> str:
    """A part of the page under a heading, for links to `#anchor`; the body is markup."""
    named = f' id="{escape(anchor)}"' if anchor else ""
    return f'<section{named}><h2>{escape(heading)}</h2><p class="hint">{escape(hint)}</p>{"".join(body)}</section>'


def scroll(chart: str) -> str:
    """A chart that can be scrolled sideways if the window is narrow."""
    return f'<div class="scroll" tabindex="0">{chart}</div>'


def table(head: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """A table of markup cells; a column marked True holds numbers."""

    def cells(kind: str, content: Iterable[str]) -> str:
        classes = [' class="number"' if numeric else "" for _, numeric in head]
        return "".join(
            f'<{kind}{class_} data-name="{escape(name)}">{cell}</{kind}>'
            for cell, class_, (name, _) in zip(content, classes, head, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    names = (escape(name) for name, _ in head)
    return f'<div class="scroll"><table><thead><tr>{cells("th", names)}</tr></thead><tbody>{body}</tbody></table></div>'


def value(figure: float | str) -> str:
    """A figure with thousands separators."""
    if isinstance(figure, str):
        return escape(figure)
    return f"{figure:,.2f}" if isinstance(figure, float) else f"{figure:,}"
