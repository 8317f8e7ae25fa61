"""Whether ranks that share their gradients hold the same parameters: with what these began, and how they are stepped.

A rank notes each step of an optimizer whose gradients were all reduced among the same ranks: these, the optimizer's and
the step's number, a number for the shapes, its rates, the seed and line with which each parameter was drawn (in its
first step, where nothing came to it since), and the lines of the step and of a reduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from windtunnel.studies.programs.program_file import numbers_of
from windtunnel.studies.programs.rank_classes.findings import CORRUPT, Finding, GroupEntry, ranks_text

_APART = "and their gradients are reduced together, so what should be one model drifts apart in silence"


def compare_replicas(facts: Mapping[int, Iterable[Sequence[Any]]], world: int) -> list[Finding]:
    """What replicas do not have alike, by rank: of each group of ranks and optimizer, the first."""
    steps: dict[tuple[Any, ...], dict[int, Sequence[Any]]] = {}
    for rank, of_rank in sorted(facts.items()):
        for runs, order, number, sizes, *noted in of_rank:
            steps.setdefault((number, order, sizes, numbers_of(runs)), {})[rank] = noted
    findings: dict[tuple[Any, ...], Finding] = {}
    for (_, *key, members), noted_by in sorted(steps.items()):
        finding = _drawn(noted_by, members, world) or _stepped(noted_by, members, world)
        if finding is not None:
            findings.setdefault((*key, members), finding)
    return list(findings.values())


def _drawn(noted: Mapping[int, Sequence[Any]], members: tuple[int, ...], world: int) -> Finding | None:
    """Numbers of one parameter come from different seeds."""
    first, *others = noted
    for rank in others:
        for mine, its in zip(noted[first][1], noted[rank][1], strict=True):
            if mine is not None and its is not None and mine[0] != its[0]:
                group = GroupEntry("", members, 0).text(world)
                text = (
                    f"rank {rank} draws at {its[1]} with the seed {its[0]} a parameter that rank {first} draws with"
                    f" {mine[0]}, {_APART}: seed them alike until the model is made, or broadcast it from one rank"
                )
                return Finding("replicas", tuple(noted), group, noted[rank][3], text, CORRUPT)
    return None


def _stepped(noted: Mapping[int, Sequence[Any]], members: tuple[int, ...], world: int) -> Finding | None:
    """Rates differ."""
    parties: list[list[int]] = []
    for rank, (rates, *_) in noted.items():
        party = next((party for party in parties if noted[party[0]][0] == rates), None)
        if party is None:
            parties.append([rank])
        else:
            party.append(rank)
    if len(parties) < 2:
        return None
    usual = max(parties, key=len)
    odd = next(party for party in parties if party is not usual)
    rates, _, line, _ = noted[odd[0]]
    name, mine, its = next(
        (rate[0], other[1], rate[1]) for rate, other in zip(rates, noted[usual[0]][0], strict=False) if rate != other
    )
    text = (
        f"at {line} rank{'s' * (len(odd) > 1)} {ranks_text(odd)} step{'s' * (len(odd) == 1)} with {name} {its} where"
        f" {ranks_text(usual)} step{'s' * (len(usual) == 1)} with {mine}, {_APART}: step schedulers on all alike"
    )
    return Finding("replicas", tuple(odd), GroupEntry("", members, 0).text(world), line, text, CORRUPT)
