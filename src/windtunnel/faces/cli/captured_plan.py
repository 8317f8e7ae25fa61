"""`windtunnel plan FOLDER --cluster ...`: a captured script cut into pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import print_answer, stdout, working
from windtunnel.questions.header import band_entry

ALLOWED = ("pp", "dp", "framework", "cuda_graphs")
INFEASIBLE = 3  # as in predict


def band_of_best(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The band of the best plan's step, where there is one."""
    best = next(iter(document["plans"]), None)
    return None if best is None else band_entry("plans[0].step_time_s", best["p5_s"], best["p95_s"])


def plan_script(
    folder: str, cluster: str, given: Mapping[str, Any], others: Mapping[str, Any], *, top: int, json: bool
) -> int:  # fmt: skip
    """Print the best cuts. Raises SpecError on a flag that only the plan of a named model takes."""
    from windtunnel.studies.planning.captured import plan_captured

    refused = {**others, **{f"--{name.replace('_', '-')}": given[name] for name in given if name not in ALLOWED}}
    for name, value in refused.items():
        if value:
            why = "leave it out: a captured script is cut into stages and replicas, with --pp or --dp if they are given"
            raise SpecError(name, str(value), why)
    if top < 1:
        raise SpecError("top", top, "at least 1")
    with working("planning"):
        document = plan_captured(folder, cluster, top=top, **{name: given[name] for name in ALLOWED if name in given})
    if json:
        print_answer("plan", document, band=band_of_best(document), warnings=document["assumed"])
    else:
        from windtunnel.faces.report.planning.console import print_cuts

        print_cuts(document, stdout())
    return INFEASIBLE if document["status"] == "infeasible" else 0
