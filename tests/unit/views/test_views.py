"""Views: what may stand in one, how a figure becomes text, and that pictures keep what they are given."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from windtunnel.errors import SpecError
from windtunnel.faces.report.draw.charts import Scale, chart_of, heat_data, lanes_data
from windtunnel.faces.report.draw.console import print_document
from windtunnel.faces.report.draw.markdown import markdown_of
from windtunnel.faces.report.draw.notebook import fragment_of
from windtunnel.faces.report.draw.page import page_of
from windtunnel.views import (
    Axis,
    Bar,
    Bars,
    Change,
    Changes,
    Column,
    Curve,
    Document,
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
    Number,
    Part,
    Series,
    Span,
    Table,
    View,
)
from windtunnel.views.text import text_of, texts_of

EVIL = "</script><script>alert(1)</script>[red]\x1b[31m{{ 7*7 }}|`"
ALL: list[View] = [
    Headline(EVIL, "bad"),
    Figures([Figure(EVIL, Number(0.5, "share", 0.4, 0.6), EVIL, 0.5), Figure("word", EVIL)], EVIL),
    Bars(EVIL, "s", [Bar(EVIL, [Part(EVIL, 1.0), Part("b", 2.0)])]),
    Bars("several", "B", [Bar(EVIL, [Part(EVIL, 2.0**30)], 2.0**31), Bar("b", [Part("c", 2.0**29)])]),
    Bars("less", "s", [Bar("step", [Part(EVIL, -1.0), Part("b", 2.0)])], signed=True),
    Table(EVIL, [Column(EVIL), Column("s", "s")], [(EVIL, 1.0), ("b", None)], EVIL),
    Curve(
        EVIL, Axis(EVIL, "s"), Axis("y", "B"), [Series(EVIL, [0.0, 1.0], [1.0, 2.0], labels=[EVIL, "b"])],
        [Limit(1.5, EVIL)],
    ),
    Lanes(EVIL, [Lane(EVIL, [Span(0.0, 1.0, EVIL, EVIL, marked=True)], EVIL)], EVIL, EVIL),
    Heat(EVIL, Grid(EVIL, 2), Grid("row", 1), [0.1, 0.9], EVIL, "share", texts=[(1, EVIL)]),
    Changes(EVIL, ("gain", "step"), [Change(EVIL, Number(-0.1, "change"), [Number(1.0, "s")], EVIL)], EVIL),
    Notes(EVIL, [EVIL], "warn"),
    Files(EVIL, [(EVIL, f"a\n  {EVIL}")]),
]  # fmt: skip
DOCUMENT = Document(EVIL, EVIL, ALL, ALL, EVIL, EVIL, f"windtunnel predict {EVIL}")


def test_there_are_ten_kinds_and_every_face_draws_them_all() -> None:
    assert len({type(view) for view in ALL}) == 10
    file = io.StringIO()
    print_document(DOCUMENT, Console(file=file, width=80), full=True)
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().count("alert(1)") > 40
    page = page_of(DOCUMENT)
    assert page.count("<section") >= 2 * len(ALL)
    assert page.count("<script") == 2
    assert "<script>alert" not in page
    assert (
        "49" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).split("<header>")[1].split("</header>")[0]
    )
    assert "<script" not in fragment_of(DOCUMENT)
    outside = re.sub(r"(`{3,})\n.*?\n\1", "", markdown_of(DOCUMENT), flags=re.DOTALL)
    assert "<script" not in outside


@pytest.mark.parametrize(
    "make",
    [
        lambda: Number(float("nan")),
        lambda: Number(1.0, "s", 2.0, 1.0),
        lambda: Bars("b", "s", [Bar("b", [Part("p", -1.0)])]),
        lambda: Bars("b", "s", [Bar("b", [Part("p", float("inf"))])], signed=True),
        lambda: Table("t", [Column("a")], [(1, 2)]),
        lambda: Heat("h", Grid("c", 2), Grid("r", 2), [1.0], "n"),
    ],
)
def test_what_cannot_be_shown_is_refused_when_it_is_built(make: object) -> None:
    with pytest.raises(SpecError):
        make()  # type: ignore[operator]


@given(st.lists(st.floats(0.0, 1e7), min_size=2, max_size=6))
def test_times_that_are_compared_keep_their_order_as_printed(values: list[float]) -> None:
    texts = texts_of(values, "s")
    if len({text.split(" ")[1] for text in texts}) == 1:
        shown = [float(text.split(" ")[0].replace(",", "")) for text in texts]
        assert all(
            (a <= b) or not (x < y)
            for a, x in zip(shown, values, strict=True)
            for b, y in zip(shown, values, strict=True)
        )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(12_600.0, "s"), "3.500 h"),
        (Number(0.2142, "change"), "+21.4 %"),
        (Number(1_250_000.0, "count"), "1.250M"),
        (Number(45.0, "$"), "$45.00"),
        (Number(0.03437, "$"), "$0.03437"),
        (Number(161.31, "tokens/s/GPU"), "161.3 tokens/s/GPU"),
        (Number(2.0**31, "B"), "2.00 GiB"),
    ],
)
def test_a_figure_has_its_unit(number: Number, text: str) -> None:
    assert text_of(number) == text
    assert text_of(None) == "\N{EN DASH}"


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e4), st.booleans(), st.sampled_from(["s", "B", "share", "count", "$"]))
def test_ticks_are_inside_their_axis_and_ascend(low: float, ratio: float, log: bool, unit: str) -> None:
    ticks = Scale(Axis("x", unit, log), [low, low * ratio], from_zero=not log).ticks(unit)
    places = [tick.at for tick in ticks]
    assert places == sorted(places)
    assert all(-0.01 <= place <= 100.01 for place in places)
    assert len(ticks) <= 12


def test_pictures_hold_what_they_are_given() -> None:
    series = [Series(name, [1.0, 2.0, 4.0], [1.0, 3.0, 2.0], panel=name) for name in ("a", "b")]
    chart = chart_of(Curve("c", Axis("x"), Axis("y"), series))
    assert [plot.name for plot in chart.plots] == ["a", "b"]
    assert len(chart.rows) == 6
    lanes = lanes_data(Lanes("l", [Lane("n", [Span(2.0, 3.0, "b"), Span(1.0, 2.0, "a")])]))
    assert (lanes["start"], lanes["length"], lanes["first"]) == ([0, 10**9], [10**9, 10**9], 10**9)
    heat = heat_data(Heat("h", Grid("c", 3), Grid("r", 1), [0.5, 0.5, None], "n"))
    assert heat["runs"] == [0, 2, -1, 1]


def test_a_few_rows_of_many_columns_lie_on_their_side() -> None:
    names = [f"column {number}" for number in range(12)]
    rows = [[f"{letter}{number}" for number in range(12)] for letter in "ab"]
    document = Document("k", "t", [Table("Side by side", [Column(name) for name in names], rows)], [])
    file = io.StringIO()
    print_document(document, Console(file=file, width=60))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["column", "0", "a0", "b0"] in lines
    assert ["column", "11", "a11", "b11"] in lines
    assert "| column 3 | a3 | b3 |" in markdown_of(document)
    assert re.search(r"<td[^>]*>column 3</td>\s*<td[^>]*>a3</td>", page_of(document))
    long = Table("Long", [Column(name) for name in names], [*rows] * 3)
    assert not long.is_on_side
