"""Words of the screens that depend on a number or on the room there is."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from windtunnel.faces.report.captured import _answers
from windtunnel.faces.report.draw.console import draw_view
from windtunnel.views import Bar, Bars, Part


@pytest.mark.parametrize(("times", "said"), [(1, "once"), (2, "2 times"), (1200, "1,200 times")])
def test_how_often_a_read_was_answered(times: int, said: str) -> None:
    answer = {"where": "train.py:7", "told": "1.0", "what": "aten.item", "times": times}
    assert _answers([answer]) == [f"train.py:7: 1.0 for aten.item, {said}"]


@pytest.mark.parametrize("label", ["exposed all ranks (scale-out)", "waiting for the slowest rank"])
@pytest.mark.parametrize("columns", [80, 100])
def test_names_of_parts_are_not_cut_off(label: str, columns: int) -> None:
    text = StringIO()
    view = Bars("", "s", [Bar("step", [Part(label, 0.014063), Part("GEMM", 0.003965)])], total="step")
    Console(file=text, width=columns).print(*draw_view(view, columns))
    lines = text.getvalue().splitlines()
    assert lines[1].startswith(f"{label}  14.063 ms")
    assert max(map(len, lines)) <= columns
