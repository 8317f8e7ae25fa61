"""Plans in words."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from windtunnel.faces.report.planning.console import _print_choices


def test_a_bound_below_the_best_plan_is_no_cost() -> None:
    """A search that was stopped early leaves bounds that nothing was found at."""
    told = ((1, True, 0.02), (2, False, 0.03), (4, False, -0.16), (8, False, 0.0))
    choices = [{"field": "tp", "value": value, "exact": exact, "regret_at_least": cost} for value, exact, cost in told]
    out = StringIO()
    _print_choices({"choices": choices, "sensitivity": []}, Console(file=out, width=200))
    assert "tp: 1 costs 2.00%, 2 costs at least 3.00%, 4 or 8 not told apart" in out.getvalue()
