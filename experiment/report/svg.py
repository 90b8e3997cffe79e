"""Figures as inline SVG that takes its colours from the page, so that one drawing serves light and dark."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Drawn in colours that nothing else uses, then replaced by the page's variables.
INK, MUTED, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
SERIES = ("#010110", "#010120", "#010130", "#010140", "#010150", "#010160")
FAIL, MIXED, PASS = "#010170", "#010180", "#010190"
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "card",
    FAIL: "fail",
    MIXED: "mixed",
    PASS: "pass",
    **{colour: f"series-{number}" for number, colour in enumerate(SERIES, start=1)},
}
_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
_OWN_STYLE = re.compile(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
_ID = re.compile(r'(id="|href="#|url\(#)')
_COLOUR = re.compile("|".join(_VARIABLES))


def to_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an `<svg>` element without any fixed colour, font or size.

    Args:
        figure: The figure; it is of no further use.
        name: Prefix of all ids, unique in the page.
        label: What the figure shows, for readers who cannot see it.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = _FAMILY.sub("", _OWN_STYLE.sub("", text))
    text = _ID.sub(lambda match: f"{match[1]}{name}-", text)
    text = _COLOUR.sub(lambda match: f"var(--{_VARIABLES[match[0]]})", text)
    box = re.search(r'viewBox="([^"]+)"', text)
    opening = f'<svg class="plot" role="img" aria-label="{html.escape(label)}" viewBox="{box[1] if box else ""}"'
    return re.sub(
        r"<svg[^>]*>",
        f'{opening} xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">',
        text,
        count=1,
    ).strip()
