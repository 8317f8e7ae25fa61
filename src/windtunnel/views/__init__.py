"""What an answer shows, whichever study gave it: a `Document`, which is a list of views.

    number.py    Number: the only form of a figure that is shown; SI, with its unit, its band and its source
    text.py      the one place where a number becomes text; columns whose printed parts sum to the printed total
    kinds.py     the ten kinds of views, and Document

Console, page, Markdown and notebook (`windtunnel.faces.report.draw`) draw the same document; none of them knows a
study, and no study draws.
"""

from windtunnel.views.kinds import (
    Axis,
    Bar,
    Bars,
    Cell,
    Change,
    Changes,
    Column,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Files,
    Grid,
    Headline,
    Heat,
    Lane,
    Lanes,
    Limit,
    Notes,
    Part,
    Series,
    Span,
    Table,
    Tone,
    View,
    points_of,
    table_of,
)
from windtunnel.views.number import Number

__all__ = [
    "Axis",
    "Bar",
    "Bars",
    "Cell",
    "Change",
    "Changes",
    "Column",
    "Curve",
    "Document",
    "Field",
    "Figure",
    "Figures",
    "Files",
    "Grid",
    "Headline",
    "Heat",
    "Lane",
    "Lanes",
    "Limit",
    "Notes",
    "Number",
    "Part",
    "Series",
    "Span",
    "Table",
    "Tone",
    "View",
    "points_of",
    "table_of",
]
