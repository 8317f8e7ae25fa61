"""Printing a renderable so that it survives pipes, files and old terminals.

Rich pads table cells with blanks up to the column; here lines end where their text ends, so that output can be pasted
and diffed. Where the console's encoding lacks a character, bars become '#', dashes become '-', and the rest '?'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console, OverflowMethod, RenderableType
from rich.segment import Segment, Segments
from rich.table import Table

BLOCKS = "▏▎▍▌▋▊▉█"
_PLAINER = str.maketrans(
    {**dict.fromkeys(BLOCKS, "#"), "–": "-", "−": "-", "·": "|", "•": "-", "×": "x", "µ": "u", "→": ">", "│": "|"}
)


def print_trimmed(renderable: RenderableType, console: Console) -> None:
    """Print without trailing blanks, in characters that the console's encoding has; what cannot fold is not cut."""
    lines = Segment.split_lines(console.render(renderable))
    segments: list[Segment] = []
    for line in lines:
        segments += _trimmed(_writable(line, console.encoding))
        segments.append(Segment.line())
    console.print(Segments(segments), end="", soft_wrap=True)


def columns(
    names: Iterable[str], left: Collection[str] = ("",), *, dim: bool = False, overflow: OverflowMethod = "ellipsis"
) -> Table:
    """A table without lines: words in the columns named in `left`, numbers in all others; `dim`: its head."""
    table = Table(box=None, pad_edge=False, header_style="dim" if dim else "table.header")
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", overflow=overflow)
    return table


Column = dict[str, Any]
# Columns of `grid`: a name that is cut where there is no room, a number, a word, and what is left of the line.
LABEL: Column = {"overflow": "ellipsis", "no_wrap": True}
NUMBER: Column = {"justify": "right", "no_wrap": True}
WORD: Column = {"no_wrap": True}
REST: Column = {"ratio": 1}
DIM: Column = {"style": "dim"}


def grid(*columns: Column) -> Table:
    """A table without lines and head, its columns as `Table.add_column` takes them."""
    table = Table.grid(padding=(0, 2))
    for column in columns:
        table.add_column(**column)
    return table


def bar(share: float, cells: int) -> str:
    """A horizontal bar of `share` of `cells`, to an eighth of a cell; never empty when the share is not."""
    eighths = max(round(min(max(share, 0.0), 1.0) * cells * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return BLOCKS[-1] * whole + (BLOCKS[rest - 1] if rest else "")


def _writable(line: list[Segment], encoding: str) -> list[Segment]:
    if encoding.lower().replace("-", "") == "utf8":
        return line
    return [
        Segment(part.text.translate(_PLAINER).encode(encoding, "replace").decode(encoding), part.style) for part in line
    ]


def _trimmed(line: list[Segment]) -> list[Segment]:
    segments = list(line)
    while segments and not segments[-1].text.rstrip():
        segments.pop()
    if segments:
        segments[-1] = Segment(segments[-1].text.rstrip(), segments[-1].style)
    return segments
