"""Timelines of lanes, one above the other, as an SVG picture: a step before and after something was changed.

Plain SVG without scripts or fonts of its own, readable on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from windtunnel.units import format_time

LEFT, WIDTH, ROW, GAP, TOP = 130, 720, 22, 26, 26
COLOURS = {
    "compute": "#4878a8", "expert": "#6f5aa8", "weight": "#7fa3c7", "all_to_all": "#d9822b", "reduce": "#5a9e6f",
    "gather": "#8fbf9f", "exchange": "#c7b04a", "update": "#8a8a8a", "choose": "#b0616f", "copy": "#c98a8a",
}  # fmt: skip
OTHER = "#9aa7b0"


class Bar(NamedTuple):
    """One task on a lane."""

    lane: str
    start_ns: int
    end_ns: int
    label: str
    kind: str


def lanes_svg(parts: Mapping[str, Sequence[Bar]], *, window_ns: tuple[int, int] | None = None) -> str:
    """One picture of several timelines to the same scale; `parts`: title -> bars. `window_ns`: what of it is shown."""
    begin, end = window_ns or (0, max((bar.end_ns for bars in parts.values() for bar in bars), default=1))
    scale = WIDTH / max(1, end - begin)
    drawn: list[str] = []
    y = TOP
    for title, bars in parts.items():
        whole = max((bar.end_ns for bar in bars), default=0)
        drawn.append(f'<text x="0" y="{y - 8}" font-weight="bold">{escape(title)}: {format_time(whole / 1e9)}</text>')
        for lane in dict.fromkeys(bar.lane for bar in bars):
            drawn.append(f'<text x="0" y="{y + 15}">{escape(lane)}</text>')
            drawn.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW - 4}" fill="#8884" rx="2"/>')
            for bar in bars:
                first, last = max(bar.start_ns, begin), min(bar.end_ns, end)
                if bar.lane != lane or last <= first:
                    continue
                x, width = LEFT + (first - begin) * scale, max(0.4, (last - first) * scale)
                colour = COLOURS.get(bar.kind, OTHER)
                said = f"{bar.label}: {format_time((bar.end_ns - bar.start_ns) / 1e9)}"
                drawn.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 4}" fill="{colour}" stroke="#fff"'
                    f' stroke-width="{0.3 if width > 1.5 else 0}"><title>{escape(said)}</title></rect>'
                )
            y += ROW
        y += GAP
    used = dict.fromkeys(bar.kind for bars in parts.values() for bar in bars)
    x = LEFT
    for kind in used:
        drawn.append(f'<rect x="{x}" y="{y - 14}" width="10" height="10" fill="{COLOURS.get(kind, OTHER)}"/>')
        drawn.append(f'<text x="{x + 14}" y="{y - 5}">{escape(kind.replace("_", " "))}</text>')
        x += 34 + 7 * len(kind)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 10} {y + 6}" font-family="sans-serif"'
        f' font-size="12" fill="#777">{"".join(drawn)}</svg>\n'
    )
