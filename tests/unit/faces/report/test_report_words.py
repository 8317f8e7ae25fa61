"""Words of the screens that depend on a number or on the room there is."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from windtunnel.faces.report.captured import _answers, captured_document
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


def test_a_captured_period_and_what_was_not_seen_stand_on_the_screen() -> None:
    rank_class = {"rank": 0, "ranks": 8, "at": "rank 0", "ops": 20, "flops": 1, "peak_bytes": 1, "peak_op": "aten.mm"}
    captured = {
        **{"world_size": 8, "classes": [rank_class], "facts": {"step": 2}, "grid": {"names": [], "sizes": []}},
        **{"notes": [], "answers": [], "faked": [], "script": {"line": "train.py"}, "seconds": 1.0},
        **{"verification": {"played": 8, "drawn": []}, "runs": 1, "seconds_of_one_rank": 1.0, "peak_rss_bytes": 1},
        **{"period_steps": 5, "period": [{"folder": ".", "steps": 4}, {"folder": "kind_1", "steps": 1}]},
        "not_seen": ["train.py:10 (all_reduce) was not reached"],
    }
    document = captured_document(captured, "out", None)
    assert document.subtitle == "step 2 on 8 ranks · repeats after 5 steps, 1 of them unlike this one"
    lines = [line for view in document.views for line in getattr(view, "lines", ())]
    assert "train.py:10 (all_reduce) was not reached" in lines
