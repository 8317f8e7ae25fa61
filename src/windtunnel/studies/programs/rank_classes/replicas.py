"""Whether ranks that share their gradients hold the same parameters: what these began with, how they are stepped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from windtunnel.studies.programs.program_file import numbers_of
from windtunnel.studies.programs.rank_classes.findings import CORRUPT, Finding, GroupEntry, ranks_text

_APART = "and their gradients are reduced together, so what should be one model drifts apart in silence"


class SharedStep(NamedTuple):
    """A step of an optimizer whose gradients were all reduced among the same ranks."""

    runs: list[list[int]]  # of these ranks
    order: int  # of the optimizer among the rank's
    number: int  # of its step, from 1
    parameters: int  # equal where they have the same names and shapes
    rates: list[tuple[str, object]]
    draws: list[tuple[int, str] | None]  # in the first step: seed and line that each parameter was drawn with, and kept
    line: str
    reduced_at: str  # line
    stopped_at: str = ""  # line, of a step that was still to come


def compare_replicas(facts: Mapping[int, Iterable[Iterable[object]]], world: int) -> list[Finding]:
    """What replicas do not have alike, by rank: of each optimizer and group of ranks, the first."""
    steps: dict[tuple[int, int, int, tuple[int, ...], str], dict[int, SharedStep]] = {}
    for rank, of_rank in sorted(facts.items()):
        for step in (SharedStep(*fields) for fields in of_rank):  # type: ignore[arg-type]
            key = (step.number, step.order, step.parameters, numbers_of(step.runs), step.stopped_at)
            steps.setdefault(key, {})[rank] = step
    findings: dict[tuple[int, int, tuple[int, ...]], Finding] = {}
    for (_, order, parameters, members, _), of_rank_now in sorted(steps.items()):
        group = GroupEntry("", members, 0).text(world)
        finding = _other_draws(of_rank_now, group) or _other_rates(of_rank_now, group)
        if finding is not None:
            findings.setdefault((order, parameters, members), finding)
    return list(findings.values())


def _other_draws(steps: Mapping[int, SharedStep], group: str) -> Finding | None:
    """Numbers of one parameter come from different seeds."""
    first, *others = steps
    for rank in others:
        for mine, its in zip(steps[first].draws, steps[rank].draws, strict=False):
            if mine is not None and its is not None and mine[0] != its[0]:
                text = (
                    f"rank {rank} draws at {its[1]} with the seed {its[0]} a parameter that rank {first} draws with"
                    f" {mine[0]}, {_APART}: seed them alike until the model is made, or broadcast it from one rank"
                )
                return Finding("replicas", tuple(steps), group, steps[rank].reduced_at, text, CORRUPT)
    return None


def _other_rates(steps: Mapping[int, SharedStep], group: str) -> Finding | None:
    parties: list[list[int]] = []
    for rank, step in steps.items():
        party = next((party for party in parties if steps[party[0]].rates == step.rates), None)
        if party is None:
            parties.append([rank])
        else:
            party.append(rank)
    if len(parties) < 2:
        return None
    usual = max(parties, key=len)
    odd = next(party for party in parties if party is not usual)
    mine, its = steps[usual[0]], steps[odd[0]]
    pairs = zip(its.rates, mine.rates, strict=False)
    (name, rate), (_, other) = next(((a, b) for a, b in pairs if a != b), (("groups", its.rates), ("", mine.rates)))
    text = (
        f"at {its.line} rank{'s' * (len(odd) > 1)} {ranks_text(odd)} step{'s' * (len(odd) == 1)} with {name} {rate}"
        f" where {ranks_text(usual)} step{'s' * (len(usual) == 1)} with {other}, {_APART}: step schedulers on all alike"
    )
    return Finding("replicas", tuple(odd), group, its.line, text, CORRUPT)
