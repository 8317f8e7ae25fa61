"""What an answer shows, whichever study gave it: a `Document`, which is a list of views, of which there are ten kinds.

A view holds numbers with their units, never the text of them (`text.py` writes it). Times are seconds, sizes bytes.
`colour` is a slot of the palette, such as compute-0 or line-2 (`report/templates/views.css`): the same thing has one
colour in every picture. Console, page, Markdown and notebook (`windtunnel.faces.report.draw`) draw the same document;
none of them knows a study, and no study draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeVar

from windtunnel.errors import SpecError


@dataclass(frozen=True, slots=True)
class Number:
    """A figure.

    `unit`: s, B, B/s, FLOP/s, share (of 1), change (a share with its sign), count, $, x (times), "" or the words that
    follow the number, such as tokens/s.
    """

    value: float
    unit: str = ""
    p5: float | None = None
    p95: float | None = None
    source: str = ""  # measured, interpolated, fitted, roofline, counted

    def __post_init__(self) -> None:
        if math.isnan(self.value):
            raise SpecError("number", self.value, "leave a figure out that has no meaning")
        if self.p5 is not None and self.p95 is not None and not self.p5 <= self.p95:
            raise SpecError("band", f"{self.p5} to {self.p95}", "p5 is not above p95")


Row = TypeVar("Row")
Tone = Literal["good", "calm", "warn", "bad"]
Cell = Number | str | float | int | None


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer in one sentence that says what it means."""

    verdict: str
    tone: Tone = "calm"


@dataclass(frozen=True, slots=True)
class Figure:
    """A named figure, or a word in the place of one."""

    name: str
    number: Number | str
    note: str = ""
    filled: float | None = None  # share of a gauge


@dataclass(frozen=True, slots=True)
class Figures:
    """The few figures that a person looks for first."""

    figures: Sequence[Figure]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar."""

    label: str
    value: float
    colour: str = "line-0"


@dataclass(frozen=True, slots=True)
class Bar:
    """Parts end to end."""

    label: str
    parts: Sequence[Part]
    limit: float | None = None  # a mark, such as a capacity
    note: str = ""

    @property
    def length(self) -> float:
        """All parts together."""
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar with its parts as a table, whose printed parts sum to the printed total; or several on one scale.

    `whole`: what shares are of, where that is not the bar. `signed`: parts may be negative, as a difference has them.
    """

    title: str
    unit: str
    bars: Sequence[Bar]
    total: str = "all"
    whole: float | None = None
    note: str = ""
    signed: bool = False

    def __post_init__(self) -> None:
        for bar in self.bars:
            for part in bar.parts:
                if not math.isfinite(part.value) or (part.value < 0 and not self.signed):
                    raise SpecError(f"{self.title}: {part.label}", part.value, "a part is finite and not negative")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `unit`: of its plain numbers; text: words, from the left."""

    name: str
    unit: str = "text"


SIDE_ROWS, SIDE_COLUMNS = 4, 10  # as many rows at most, and more columns: then a table lies on its side


@dataclass(frozen=True, slots=True)
class Table:
    """Rows. A console shows the first `most`; a page scrolls and sorts. `by_row`: rows share a unit, not columns.

    A few rows of many columns are shown on their side, so that nothing is beyond the edge.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    most: int = 12
    by_row: bool = False
    links: Sequence[str] = ()  # where a row is looked at, one address a row
    choices: Sequence[str] = ()  # by what a row is chosen, where a page lets one choose
    folded: bool = False  # a page shows it when asked

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise SpecError(self.title, len(row), f"a row has {len(self.columns)} cells, one for each column")

    @property
    def is_on_side(self) -> bool:
        """Whether its columns are shown as rows."""
        return 0 < len(self.rows) <= SIDE_ROWS and len(self.columns) > SIDE_COLUMNS and not self.links


Field = tuple[str, str, str | Callable[[Row], Cell]]


def table_of(
    title: str,
    entries: Sequence[Row],
    fields: Sequence[Field[Row]],
    note: str = "",
    most: int | None = None,
) -> Table:
    """A row for each entry, a column for each field: its name, its unit, and the attribute, the key or the function.

    A column in which nothing stands is left out. A console shows all rows where `most` is not said.
    """

    def cell(entry: Row, what: str | Callable[[Row], Cell]) -> Cell:
        if not isinstance(what, str):
            return what(entry)
        value: Cell = entry[what] if isinstance(entry, Mapping) else attrgetter(what)(entry)
        return value

    columns = [(Column(name, unit), [cell(entry, what) for entry in entries]) for name, unit, what in fields]
    columns = [pair for pair in columns if any(value is not None for value in pair[1])]
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    return Table(title, [column for column, _ in columns], rows, note, len(rows) if most is None else most)


@dataclass(frozen=True, slots=True)
class Axis:
    """What is drawn along it, and its unit; where it begins and ends if not with the data."""

    name: str
    unit: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one thing. `panel`: series with the same one share a picture; all pictures share their axes."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    form: Literal["line", "steps", "points", "columns"] = "line"
    colour: str = ""
    dashed: bool = False
    labels: Sequence[str] = ()  # of points
    panel: str = ""


def points_of(
    groups: Mapping[str, Sequence[Row]],
    x: Callable[[Row], float],
    y: Callable[[Row], float],
    label: Callable[[Row], str],
) -> list[Series]:
    """Points of one colour for each group."""
    return [
        Series(name, list(map(x, rows)), list(map(y, rows)), form="points", labels=list(map(label, rows)))
        for name, rows in groups.items()
    ]


@dataclass(frozen=True, slots=True)
class Limit:
    """A line across a picture: a capacity, a promise. `movable`: a page says up to which x it is kept."""

    value: float
    label: str
    movable: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """Lines or points over an axis."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    limits: Sequence[Limit] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a lane."""

    begin_s: float
    end_s: float
    label: str
    family: str = ""  # what its colour means
    colour: str = "line-0"
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """What happens in one place, in the order of time; neighbours with the same `group` are drawn together."""

    name: str
    spans: Sequence[Span]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Lanes:
    """A timeline: streams of ranks, nodes of a fleet, replicas, a critical path. `marked`: what a mark says."""

    title: str
    lanes: Sequence[Lane]
    note: str = ""
    marked: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """The columns or the rows of a heat map: what each is, how many there are, and their names if they have any."""

    name: str
    count: int
    labels: Sequence[str] = ()

    def label(self, number: int) -> str:
        """Name of a column or a row, or what it is and its number."""
        return self.labels[number] if self.labels else f"{self.name} {number}"


@dataclass(frozen=True, slots=True)
class Heat:
    """A map of cells in shades. `values`: column by column, each from the first row on; None where there is nothing."""

    title: str
    columns: Grid
    rows: Grid
    values: Sequence[float | None]
    measure: str  # what the values are, such as a slowdown
    unit: str = ""
    low: float | None = None  # of the scale
    high: float | None = None
    texts: Sequence[tuple[int, str]] = ()  # index in `values`, what is to be said of it: such cells are outlined
    note: str = ""

    def place(self, at: int) -> str:
        """The cell of a value, in words."""
        column, row = divmod(at, self.rows.count)
        return f"{self.columns.label(column)}, {self.rows.label(row)}"

    def __post_init__(self) -> None:
        if len(self.values) != self.columns.count * self.rows.count:
            raise SpecError(self.title, len(self.values), "a heat map has a value for each cell")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the question, in words of the command line, and what it was predicted to bring."""

    words: str
    gain: Number
    figures: Sequence[Number]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What would make it better. `names`: of the gain and the figures."""

    title: str
    names: Sequence[str]
    changes: Sequence[Change]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences."""

    title: str
    lines: Sequence[str]
    tone: Tone = "calm"


@dataclass(frozen=True, slots=True)
class Files:
    """Text that belongs to another tool: launch files, a failure process. Pairs of a name and a text."""

    title: str
    files: Sequence[tuple[str, str]]


View = Headline | Figures | Bars | Table | Curve | Lanes | Heat | Changes | Notes | Files


@dataclass(frozen=True, slots=True)
class Document:
    """An answer as it is shown. A console prints `views` and, when asked for all, `details`; a page shows both."""

    subject: str  # what kind of answer, such as prediction
    title: str
    views: Sequence[View]
    details: Sequence[View] = ()
    subtitle: str = ""
    hash: str = ""
    command: str = ""  # that asks it again
