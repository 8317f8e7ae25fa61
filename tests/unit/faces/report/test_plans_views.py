"""Ranked plans as views: columns that can be compared at a glance, and what is said of choices."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from windtunnel.faces.report.draw.console import print_document
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.plans import plans_document, words
from windtunnel.studies.planning.answers.choices import Choice
from windtunnel.studies.planning.answers.plans import Miss, Planned, Plans, Remedy
from windtunnel.views import Bars, Notes, Table

SPACE = {"legal": 3, "structures": 1, "replayed": 3, "excluded_by_memory": 0, "bounded": 0}


def _plan(step: float) -> Planned:
    plan = {"tp": 2, "zero_stage": 3, "global_batch": 8, "seq_len": 64}
    figures = (16, step, step * 0.9, step * 1.1, 2**33, 2**34, 1e5, 0.5, 0.125)
    return Planned(plan, *figures, f"windtunnel predict {step}", {"gemm": step})


def _plans(*plans: Planned, objective: str = "time", **more: object) -> Plans:
    return Plans(plans, SPACE, 0.0, objective, 1.0, **more)  # type: ignore[arg-type]


def _text(answer: Plans, width: int = 160, full: bool = True) -> str:
    file = io.StringIO()
    print_document(plans_document(answer, "it"), Console(file=file, width=width), full=full)
    return file.getvalue()


def _table(answer: Plans) -> Table:
    return next(view for view in plans_document(answer, "it").views if isinstance(view, Table))


def test_times_of_ranked_plans_have_equal_digits() -> None:
    text = _text(_plans(_plan(6.86), _plan(6.9), _plan(7.0)))
    rows = [line for line in text.splitlines() if "tp 2 · ZeRO 3" in line and "GiB" in line][:3]
    assert [row[row.index(" s") - 5 : row.index(" s") + 2] for row in rows] == ["6.860 s", "6.900 s", "7.000 s"]


@pytest.mark.parametrize(
    ("objective", "price", "column"), [("cost", 2.0, "per M tokens"), ("energy", None, "tokens/J")]
)
def test_what_is_least_is_a_column(objective: str, price: float | None, column: str) -> None:
    one = replace(_plan(6.0), cost_per_million_tokens=price and 0.125, tokens_per_joule=0.125)
    table = _table(_plans(one, objective=objective))
    assert table.columns[-1].name == column
    assert table.rows[0][-1] == 0.125
    assert column not in [each.name for each in _table(_plans(_plan(6.0))).columns]


def test_a_plan_of_the_front_is_named_with_its_techniques() -> None:
    one = replace(_plan(6.0), techniques=("prioritised_all_to_all",))
    text = _text(_plans(one, front=(one,)))
    assert "tp 2 · ZeRO 3 + prioritised_all_to_all" in text.partition("The front")[2]


def test_the_page_says_values_as_the_screen_does_and_what_its_axes_are() -> None:
    values = [("sequence_parallel", True), ("zero_stage", 0), ("layers_per_stage", (17, 15))]
    choices = tuple(Choice(name, value, 0.1, True) for name, value in values)
    page = page_of(plans_document(_plans(_plan(6.0), _plan(7.5), choices=choices), "it"))
    for said in ("sequence parallel on", "ZeRO 0", "layers per stage 17,15", "6.000 s", "7.500 s", "8.00 GiB"):
        assert said in page
    assert page.count('class="points s-line-') == 2  # the best, and the other
    assert "peak memory over step time" in page


def test_a_plan_without_anything_is_named() -> None:
    assert words({"global_batch": 8, "seq_len": 64}) == "data-parallel"


def test_a_bound_below_the_best_plan_is_no_cost() -> None:
    """A search that was stopped early leaves bounds that nothing was found at."""
    known = ((1, True, 0.02), (2, False, 0.03), (4, False, -0.16), (8, False, 0.0))
    choices = tuple(Choice("tp", value, cost, exact) for value, exact, cost in known)
    details = plans_document(_plans(_plan(6.0), choices=choices), "it").details
    bars = next(view for view in details if isinstance(view, Bars))
    assert [(bar.label, bar.length) for bar in bars.bars] == [("tp 1", 0.02)]  # what is known
    bounded, unknown, *_ = (view.lines for view in details if isinstance(view, Notes))
    assert bounded == ["tp: 2 3.0 %"]
    assert unknown == ["tp 4, tp 8"]


def test_nothing_fits_says_what_would() -> None:
    answer = Plans(
        (), SPACE, 0.0, "time", 1.0, nearest=(Miss({"tp": 8}, 90 * 2**30, 80 * 2**30, False),),
        remedies=(Remedy("twice the GPUs", _plan(3.0)),),
    )  # fmt: skip
    text = _text(answer)
    assert "Nothing fits: none of 3 legal plans. twice the GPUs makes one fit: 3.000 s a step." in text
    assert "10.0 GiB" in text


def test_a_document_of_plans_is_read_back() -> None:
    best = replace(_plan(6.0), techniques=("lina",))
    answer = _plans(
        best, _plan(7.0), rule_of_thumb=_plan(8.0), front=(best,), choices=(Choice("tp", 1, 0.02, True),),
        nearest=(Miss({"tp": 8}, 9, 8, False),), remedies=(Remedy("more", _plan(3.0)),), sensitivity=(("nic", "tp 4"),),
    )  # fmt: skip
    assert Plans.from_dict({**answer.to_dict(), "study": "plan"}) == answer


def test_each_number_of_gpus_that_was_searched_has_its_fastest_plan_on_the_first_screen() -> None:
    front = tuple(
        replace(_plan(step), n_gpus=n_gpus) for step, n_gpus in ((6.0, 32), (6.5, 32), (11.0, 16), (12.0, 16))
    )
    text = _text(_plans(front[0], front=front), full=False)
    rows = text.partition("The fastest on each number of GPUs")[2].splitlines()[3:5]
    assert [row.split()[-6:-3] for row in rows] == [["16", "11.00", "s"], ["32", "6.00", "s"]]
    assert "The fastest on each" not in _text(_plans(front[0], front=front[:2]), full=False)
