"""The HTML pages that muster writes: their style, their parts, charts as inline SVG. Pure text, no script."""
