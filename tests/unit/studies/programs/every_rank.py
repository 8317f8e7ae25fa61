"""Captured jobs of which every rank was captured, with families from the groups that its ranks created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from windtunnel.studies.programs.job import CapturedJob, Family, _made_up
from windtunnel.studies.programs.program import RankProgram


def families_of(
    groups: Iterable[tuple[str, Sequence[int]]], names: Mapping[str, str] | None = None
) -> tuple[Family, ...]:
    """Groups as they were created, like ones together: those whose members lie alike and that share no rank.

    `names`: torch's name of a group -> what its family is called, e.g. the mesh's dimension.
    """
    found: list[tuple[tuple[object, ...], list[tuple[str, tuple[int, ...]]], set[int]]] = []
    open_of: dict[tuple[object, ...], list[int]] = {}
    for torch_name, given in groups:
        members = tuple(int(rank) for rank in given)
        called = (names or {}).get(torch_name, "")
        key = (called, tuple(rank - members[0] for rank in members))
        for number in open_of.setdefault(key, []):
            if found[number][2].isdisjoint(members):
                break
        else:
            number = len(found)
            found.append((key, [], set()))
            open_of[key].append(number)
        found[number][1].append((torch_name, members))
        found[number][2].update(members)
    taken: dict[str, int] = {}
    families = []
    for (title, offsets), entries, _ in found:
        name = str(title) or _made_up(offsets)
        taken[name] = taken.get(name, 0) + 1
        shown = name if taken[name] == 1 else f"{name} #{taken[name]}"
        families.append(Family(shown, tuple(m for _, m in entries), tuple(t for t, _ in entries)))
    return tuple(families)


def whole_job(programs: Sequence[RankProgram], names: Mapping[str, str] | None = None, **others: object) -> CapturedJob:
    """A job of which every rank was captured: each runs its own program."""
    seen: dict[tuple[str, tuple[int, ...]], None] = {}
    for program in programs:
        for op in program.ops:
            if op.communication is not None:
                seen.setdefault((op.communication.group, op.communication.members), None)
    by_rank = {program.rank: program for program in programs}
    runs = np.arange(len(programs), dtype=np.int32)
    return CapturedJob(len(programs), by_rank, runs, families_of(seen, names), **others)  # type: ignore[arg-type]
