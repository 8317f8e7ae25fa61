"""A captured job: the programs of a few ranks, which rank runs which of them, and whom each meets in its groups.

This is what pricing and replaying takes, and what a captured folder holds. `folder.load_job(path) -> CapturedJob` reads
it; whoever captures builds it so:

    families = moved_families(programs, runs, grid.members_for, name_of)      # from the grid of ranks
    CapturedJob(world_size, {0: program, 8: ...}, runs, families, source="captured/", content_hash="...")

`runs[rank]` is the captured rank whose program it runs, *with peers taken as roles*: rank r does in its own group of
each family what its representative does in its own. A message's peer is relative: (place of the peer - own place)
modulo the group's size. The root of a broadcast, reduce, gather or scatter is absolute: its place in the group.

A family holds at most one group of any rank: all tensor-parallel groups, all pipelines, the world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.program import RankProgram


@dataclass(frozen=True)
class Family:
    """Groups that differ in their members only."""

    name: str  # "tp", "dp_shard", "world"; made up from the members' distance where the script gives no name
    groups: tuple[tuple[int, ...], ...]  # global ranks, each group in its own order; a rank is in at most one
    torch_names: tuple[str, ...] = ()  # of each group: `Communication.group`


@dataclass(frozen=True, eq=False)
class CapturedJob:
    """One steady step of a whole job."""

    world_size: int
    programs: Mapping[int, RankProgram]  # by the rank that was captured
    runs: NDArray[np.int32]  # [world] which of them each rank runs
    families: tuple[Family, ...]
    source: str = ""  # the captured folder or the script
    content_hash: str = ""  # of the programs and of who runs them
    facts: Mapping[str, object] = field(default_factory=dict)  # script, torch version, device, tokens_per_step, ...
    notes: tuple[str, ...] = ()
    _seen: dict[tuple[str, int], tuple[tuple[int, ...], int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.runs) != self.world_size:
            raise SpecError("runs", f"{len(self.runs)} ranks", f"must name a program for all {self.world_size} ranks")
        unknown = set(np.unique(self.runs).tolist()) - set(self.programs)
        if unknown:
            raise SpecError("runs", min(unknown), "is no rank that was captured")
        for family in self.families:
            members = np.array([rank for group in family.groups for rank in group], np.int64)
            if len(members) != len(np.unique(members)):
                raise SpecError(f"family {family.name}", family.groups[0], "a rank is in two groups of it")
            if len(members) and not 0 <= members.min() <= members.max() < self.world_size:
                raise SpecError(f"family {family.name}", int(members.max()), "is no rank of this job")

    @cached_property
    def by_group(self) -> dict[tuple[str, tuple[int, ...]], int]:
        """(torch's name, members) -> family."""
        return {
            (name, members): number
            for number, family in enumerate(self.families)
            for name, members in zip(family.torch_names or ("",) * len(family.groups), family.groups, strict=True)
        }

    def family_of(self, call: Communication) -> int:
        """The family whose group this call is made in. Raises SpecError for a group that belongs to none."""
        # Members may be thousands: their hash is taken once per tuple, not once per call.
        entry = self._seen.get((call.group, id(call.members)))
        if entry is not None and entry[0] is call.members:
            return entry[1]
        by_group = self.by_group
        family = by_group.get((call.group, call.members), by_group.get(("", call.members)))
        if family is None:
            raise SpecError("group", call.group, f"of ranks {call.members[:8]} is in no family of this captured job")
        self._seen[call.group, id(call.members)] = (call.members, family)
        return family


def moved_families(
    programs: Mapping[int, RankProgram],
    runs: NDArray[np.int32],
    members_for: Callable[[int, tuple[int, ...]], tuple[int, ...]],
    name_of: Callable[[tuple[int, ...]], str],
) -> tuple[Family, ...]:
    """Families of ranks that were not captured: each representative's groups, moved to every rank of its class.

    `members_for(rank, members)`: the group that `rank` has where its representative has `members`. `name_of(members)`:
    what such a group is called. Groups of equal members are told apart by the order in which ranks first use them, and
    those of one name are the same for all (a thread may come to one before the other, or not in this step).
    """
    turns: dict[tuple[int, ...], dict[str, int]] = {}
    used_by: dict[int, dict[tuple[str, tuple[int, ...]], None]] = {}
    for captured, program in programs.items():
        calls = (op.communication for op in program.ops if op.communication is not None)
        used_by[captured] = dict.fromkeys((call.group, call.members) for call in calls)
        for name, members in used_by[captured]:
            turn_of = turns.setdefault(members, {})
            turn_of.setdefault(name, len(turn_of))
    instances: dict[tuple[tuple[int, ...], int], int] = {}
    parent: list[int] = []  # of instances that one class is in: the same family

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    torch_name: dict[int, str] = {}
    for captured, used in used_by.items():
        ranks = np.flatnonzero(runs == captured)
        for name, members in used:
            turn, own_numbers = turns[members][name], []
            open_ranks = np.zeros(len(runs), np.bool_)
            open_ranks[ranks] = True
            for rank in ranks.tolist():
                if not open_ranks[rank]:
                    continue
                moved = tuple(int(member) for member in members_for(rank, members))
                open_ranks[list(moved)] = False
                open_ranks[rank] = False
                number = instances.setdefault((moved, turn), len(instances))
                if number == len(parent):
                    parent.append(number)
                if moved == members:
                    torch_name.setdefault(number, name)
                own_numbers.append(number)
            for other in own_numbers[1:]:
                parent[root(other)] = root(own_numbers[0])
    members_of = [members for members, _ in instances]
    together: dict[int, list[int]] = {}
    for number in range(len(members_of)):
        together.setdefault(root(number), []).append(number)
    # Groups that are called alike and share no rank are one family, though no class is in two of them: tensor-parallel
    # groups of two stages, say.
    joined: dict[tuple[str, int], list[tuple[set[int], list[int]]]] = {}
    for numbers in together.values():
        first = members_of[numbers[0]]
        name = name_of(first) or _made_up(first)
        ranks_of = {rank for number in numbers for rank in members_of[number]}
        parts = joined.setdefault((name, len(first)), [])
        for covered, grouped in parts:
            if covered.isdisjoint(ranks_of):
                covered |= ranks_of
                grouped += numbers
                break
        else:
            parts.append((ranks_of, list(numbers)))
    count_of: dict[str, int] = {}
    families = []
    for (name, _), parts in joined.items():
        for _, grouped in parts:
            count_of[name] = count_of.get(name, 0) + 1
            shown = name if count_of[name] == 1 else f"{name} #{count_of[name]}"
            names = tuple(torch_name.get(number, "") for number in grouped)
            families.append(Family(shown, tuple(members_of[number] for number in grouped), names))
    return tuple(families)


def _made_up(members: tuple[int, ...]) -> str:
    if len(members) == 1:
        return "alone"
    steps = {b - a for a, b in pairwise(members)}
    return f"{len(members)} ranks {f'by {steps.pop()}' if len(steps) == 1 else 'apart'}"
