"""Tables of plans and of policies: columns that can be compared at a glance."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from windtunnel.faces.report.fleet.console import print_fleet
from windtunnel.faces.report.planning.console import decimals, print_plans, words
from windtunnel.faces.report.planning.html import plans_view, write_plans_html
from windtunnel.faces.report.techniques import print_techniques


def _screen(width: int = 120) -> Console:
    return Console(file=io.StringIO(), width=width)


def _text(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def _plan(step: float) -> dict[str, Any]:
    return {
        "plan": {"tp": 2, "zero_stage": 3, "global_batch": 8, "seq_len": 64}, "techniques": [], "n_gpus": 16,
        "step_time_s": step, "p5_s": step * 0.9, "p95_s": step * 1.1, "peak_memory_bytes": 2**33, "tokens_per_s": 1e5,
        "mfu": 0.5, "cost_per_million_tokens": None, "effective_step_time_s": None, "reproduce": "windtunnel predict",
    }  # fmt: skip


def test_times_of_ranked_plans_have_equal_digits() -> None:
    document = {
        "status": "ok", "plans": [_plan(6.86), _plan(6.9), _plan(7.0)], "decides": "", "rule_of_thumb": None, "gap": 0,
        "objective": "time",
        "seconds": 1.0, "techniques": None, "choices": [], "sensitivity": [], "front": [], "launch": {},
        "space": {"legal": 3, "structures": 1, "replayed": 3, "excluded_by_memory": 0, "bounded": 0},
    }  # fmt: skip
    console = _screen()
    print_plans(document, console)
    rows = [line for line in _text(console).splitlines() if "GiB" in line]
    assert [row[row.index(" s") - 5 : row.index(" s") + 2] for row in rows] == ["6.860 s", "6.900 s", "7.000 s"]
    assert all("tp 2 · ZeRO 3" in row for row in rows)


@pytest.mark.parametrize(
    ("objective", "price", "column"),
    [("cost", None, "GPU-h/M tokens"), ("cost", 2.0, "cost/M tokens"), ("energy", None, "tokens/J")],
)
def test_what_is_least_is_a_column(objective: str, price: float | None, column: str) -> None:
    one = {**_plan(6.0), "gpu_hours_per_million_tokens": 0.125, "tokens_per_joule": 0.125}
    document = {
        "status": "ok", "plans": [one | {"cost_per_million_tokens": price and 0.125}], "decides": "", "gap": 0,
        "rule_of_thumb": None, "objective": objective, "seconds": 1.0, "techniques": None, "choices": [],
        "sensitivity": [], "front": [], "launch": {},
        "space": {"legal": 3, "structures": 1, "replayed": 3, "excluded_by_memory": 0, "bounded": 0},
    }  # fmt: skip
    console = _screen(160)
    print_plans(document, console)
    head, row = _text(console).splitlines()[:2]
    assert head.rstrip().endswith(column)
    assert row.rstrip().endswith("0.125")


def test_a_plan_of_the_front_is_named_with_its_techniques() -> None:
    one = {**_plan(6.0), "techniques": ["prioritised_all_to_all"], "gpu_hours_per_million_tokens": 0.1}
    document = {
        "status": "ok", "plans": [one], "decides": "", "rule_of_thumb": None, "gap": 0, "objective": "time",
        "seconds": 1.0, "techniques": None, "choices": [], "sensitivity": [], "front": [one], "launch": {},
        "space": {"legal": 3, "structures": 1, "replayed": 3, "excluded_by_memory": 0, "bounded": 0},
    }  # fmt: skip
    console = _screen()
    print_plans(document, console)
    assert "ZeRO 3 + prioritised_all_to_all" in _text(console).partition("No plan that was found")[2]
    assert plans_view(document)["rows"][0]["words"] == "tp 2 · ZeRO 3 + prioritised_all_to_all"


def test_the_page_says_values_as_the_screen_does_and_what_its_axes_are(tmp_path: Path) -> None:
    values = [("sequence_parallel", True), ("zero_stage", 0), ("layers_per_stage", (17, 15))]
    choices = [{"field": name, "value": value, "regret_at_least": 0.1, "exact": True} for name, value in values]
    plans = [{**_plan(step), "gpu_hours_per_million_tokens": 0.1, "reproduce": f"it {step}"} for step in (6.0, 7.5)]
    document = {
        "status": "ok", "plans": plans, "decides": "", "rule_of_thumb": None, "gap": 0, "objective": "time",
        "seconds": 1.0, "techniques": None, "choices": choices, "sensitivity": [], "front": [], "launch": {},
        "space": {"legal": 3, "structures": 1, "replayed": 3, "excluded_by_memory": 0, "bounded": 0},
    }  # fmt: skip
    write_plans_html(document, tmp_path / "plans.html", title="it")
    page = (tmp_path / "plans.html").read_text()
    for said in ("sequence_parallel on", "ZeRO 0", "layers_per_stage 17,15", ">6.00 s<", ">7.50 s<", ">8.0 GiB<"):
        assert said in page


@pytest.mark.parametrize(("longest", "digits"), [(7.544, 3), (75.44, 2), (0.07, 5), (12345.0, 0)])
def test_four_digits_of_the_longest(longest: float, digits: int) -> None:
    assert decimals([0.001, longest]) == digits


def test_a_plan_without_anything_is_named() -> None:
    assert words({"global_batch": 8, "seq_len": 64}) == "data-parallel"


def test_a_row_of_times_has_one_unit() -> None:
    figures = [{"policy": name, "jobs": 2, "jct_mean_s": value} for name, value in (("fifo", 11_000.0), ("srtf", 60.0))]
    console = _screen()
    print_fleet({"trace": "jobs.csv", "cluster": "h100:8"}, figures, console)
    (row,) = [line for line in _text(console).splitlines() if line.startswith("mean JCT")]
    assert row.split() == ["mean", "JCT", "3.06", "h", "0.02", "h"]


def test_long_lines_of_techniques_stay_indented() -> None:
    one = {
        "name": "lina", "aliases": [], "does": "what it does " * 12, "needs": "experts", "runs": "nothing",
        "excludes": [], "parameters": [],
    }  # fmt: skip
    console = _screen(60)
    print_techniques([one], console)
    first, *others = _text(console).splitlines()
    assert first == "lina"
    assert all(line.startswith("  ") and len(line) <= 60 for line in others)


def test_values_of_a_parameter_are_shown_as_they_are_given() -> None:
    parameter = {"name": "nvme", "default": False, "help": "a drive", "one_of": []}
    one = {
        "name": "offload", "aliases": [], "does": "what", "needs": "memory", "runs": "it", "excludes": [],
        "parameters": [parameter],
    }  # fmt: skip
    console = _screen()
    print_techniques([one], console)
    assert "nvme=false  a drive" in _text(console)
