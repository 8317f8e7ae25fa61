"""Loops around steps that go round more often on some ranks than on others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.real.capture.source.branches import calls_beside_join, is_joined
from windtunnel.studies.programs.rank_classes.findings import CallLog, Finding, ranks_text

UNEVEN = "hang at the end of the loop"
CALLS = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast"),
    *("all_to_all", "all_to_all_single", "reduce", "gather", "scatter", "barrier", "send", "recv", "isend", "irecv"),
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "batch_isend_irecv"),
)

Outcome = Mapping[str, Any]  # of a rank that was run, as its process reports it


def uneven_loops(outcomes: Mapping[int, Outcome], logs: Mapping[int, CallLog], world: int) -> list[Finding]:
    """What is wrong with such loops: ranks part at their end, or a call within `Join` waits for who is through."""
    rounds: dict[tuple[str, int, str], dict[int, list[int]]] = {}
    for rank, outcome in sorted(outcomes.items()):
        for name, line, head, length in outcome.get("loops", ()):
            rounds.setdefault((name, line, head), {}).setdefault(length, []).append(rank)
    joined = is_joined(sorted({path for outcome in outcomes.values() for path in outcome.get("files", {})}))
    findings = []
    for (name, line, head), ranks in rounds.items():
        if len(ranks) < 2:
            continue
        if joined:
            findings += _not_shadowed(line, head, ranks, outcomes, logs, world)
            continue
        counts = ", ".join(
            f"{count:,} times on rank{'s' * (len(of) > 1)} {ranks_text(of)}" for count, of in ranks.items()
        )
        text = (
            f"{name}:{line}: `{head}` goes round {counts}, and each round takes a step: ranks part at its end,"
            " unless something stops all of them before"
        )
        odd = min(ranks.values(), key=len)
        findings.append(Finding("rounds", tuple(odd), "world", f"{name}:{line}", text, UNEVEN))
    return findings


def _not_shadowed(
    line: int,
    head: str,
    ranks: Mapping[int, list[int]],
    outcomes: Mapping[int, Outcome],
    logs: Mapping[int, CallLog],
    world: int,
) -> list[Finding]:
    """Calls of the script in a loop within `Join`, which goes round more often on some ranks: who is through makes the
    calls of what is joined, and no others.
    """
    most = max(ranks)
    through = {rank for count, of in ranks.items() if count < most for rank in of}
    for rank in (rank for rank in ranks[most] if rank in logs):
        lines, groups = calls_beside_join(outcomes[rank].get("files", {}), line, CALLS), logs[rank].groups
        calls = (entry for entry in logs[rank].entries if entry.line in lines)
        entry = next((entry for entry in calls if not through.isdisjoint(groups[entry.group].members)), None)
        if entry is not None:
            text = (
                f"`{head}` goes round {most:,} times on rank{'s' * (len(ranks[most]) > 1)}"
                f" {ranks_text(ranks[most])}, {min(ranks):,} on others, and {entry.words()} at {entry.line} is none"
                " of the calls that Join makes for those that are through: call it behind the loop"
            )
            return [Finding("rounds", tuple(ranks[most]), groups[entry.group].text(world), entry.line, text)]
    return []
