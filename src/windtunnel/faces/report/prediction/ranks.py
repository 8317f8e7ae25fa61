"""Ranks in words: who a rank is, what disturbs it, and which way the critical path goes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from windtunnel.physics.step.result import Blame, Disturbed, PathPart, RankClass, Waiting
from windtunnel.units import format_many
from windtunnel.views.text import plain

TURNS_MOST = 7  # of a critical path that are named
ARROW = "\N{RIGHTWARDS ARROW}"


def makespan_ns(disturbed: Disturbed) -> int:
    """The replayed step, to which busy and waiting of every rank sum; 0 where ranks were not told apart."""
    return max((rank_class.busy_ns + rank_class.waiting_ns for rank_class in disturbed.rank_classes), default=0)


class Ranks:
    """Look-up of a rank's class: one pass over the runs, however many ranks are asked for."""

    def __init__(self, disturbed: Disturbed) -> None:
        self._classes, self._runs = disturbed.rank_classes, disturbed.class_runs
        self._starts = list(accumulate((count for _, count in self._runs), initial=0))

    def class_of(self, rank: int) -> RankClass | None:
        """The class of one rank; None for a rank that there is not."""
        if not 0 <= rank < self._starts[-1]:
            return None
        return self._classes[self._runs[bisect_right(self._starts, rank) - 1][0]]

    def disturbances(self, rank: int) -> tuple[str, ...]:
        """What disturbs this very rank, as it was given."""
        rank_class = self.class_of(rank)
        return tuple(plain(text) for text in rank_class.disturbed_by) if rank_class else ()

    def count(self, text: str) -> int:
        """How many ranks this disturbance befalls."""
        return sum(rank_class.ranks for rank_class in self._classes if text in rank_class.disturbed_by)

    def words(self, rank: int) -> str:
        """`GPU 1037 (gpu=1037:1.15)`: a rank and what disturbs it."""
        by = self.disturbances(rank)
        return f"GPU {rank} ({', '.join(by)})" if by else f"GPU {rank}"


def told_apart(disturbed: Disturbed, n_gpus: int) -> str:
    """As how much the job was simulated."""
    text = f"{format_many(n_gpus, 'rank')} simulated as {format_many(disturbed.programs, 'program')}"
    kinds = len(disturbed.rank_classes)
    return f"{text}; {format_many(kinds, 'kind')} of ranks can be told apart" if kinds else text


def where_words(blame: Blame, ranks: Ranks) -> str:
    """Where a disturbance sits, and on how many GPUs; empty when it is nowhere in particular."""
    if blame.stage < 0:
        return ""
    if blame.replica < 0:
        return f"stage {blame.stage}"
    n_gpus = ranks.count(blame.what)
    return f"{n_gpus:,} GPUs" if n_gpus > 1 else f"stage {blame.stage}, replica {blame.replica}"


def kind_of(wait: Waiting) -> str:
    """`dp of stage 3` -> `dp`: what communicators that are alike have in common."""
    return re.sub(r"( of stage)? \d.*$", "", wait.communicator)


def foremost(waiting: Sequence[Waiting], each: int) -> list[Waiting]:
    """At most `each` communicators of every kind, in their order; none in which nobody waits."""
    seen: dict[str, int] = {}
    front = []
    for wait in waiting:
        if wait.worst_ns <= 0:
            continue
        kind = kind_of(wait)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= each:
            front.append(wait)
    return front


def path_words(disturbed: Disturbed, ranks: Ranks) -> str:
    """`stage 0 -> 15 -> 2 of replica 0, 71 % of it on GPU 1037`: stages where the path turns, and where it stays."""
    path, total = disturbed.critical_path, makespan_ns(disturbed)
    if not path or not total:
        return ""
    turns = _turns([part.stage for part in path])
    shown = turns if len(turns) <= TURNS_MOST else [*turns[: TURNS_MOST - 1], turns[-1]]
    words = [str(stage) for stage in shown]
    if len(shown) < len(turns):
        words.insert(-1, "\N{HORIZONTAL ELLIPSIS}")
    replicas = sorted({part.replica for part in path})
    of = f" of replica {replicas[0]}" if len(replicas) == 1 else f" of {len(replicas)} replicas"
    rank, time = _longest(path)
    return f"stage {f' {ARROW} '.join(words)}{of}, {time / total * 100:.0f} % of it on {ranks.words(rank)}"


def _turns(stages: Sequence[int]) -> list[int]:
    """First and last stage, and those between where the direction changes."""
    steps = [stage for i, stage in enumerate(stages) if i == 0 or stage != stages[i - 1]]
    ends = 0, len(steps) - 1
    return [at for i, at in enumerate(steps) if i in ends or (steps[i + 1] > at) != (at > steps[i - 1])]


def _longest(path: Sequence[PathPart]) -> tuple[int, int]:
    """The rank on which the path spends most, and how long."""
    time: dict[int, int] = {}
    for part in path:
        time[part.rank] = time.get(part.rank, 0) + part.end_ns - part.start_ns
    return min(time.items(), key=lambda item: (-item[1], item[0]))
