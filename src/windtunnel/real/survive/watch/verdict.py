"""Who makes all others wait, and who is slow, from the logs of all ranks. Pure: logs and a clock in, culprits out.

Hang. A rank inside a collective waits for the members that have not entered it. Follow these edges; where they end is
the culprit: it runs but comes to no collective, or its beat has stopped, be it inside a collective. A circle without an
end is an order of calls that differs between ranks.

Slow. An all-reduce makes the steps of all ranks alike, so step times accuse nobody. What accuses is *own time*:
segments of own work, and the time between leaving one collective and entering the next where no segment is logged.
Each rank's time in each segment is held against the median over ranks; a rank that only waited for another has no
more own time than others. MegaScale (NSDI 2024) names hosts so, by timers of segments, never by collective time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.questions.asked.explain import Watch
from windtunnel.real.survive.watch.log import COLLECTIVE, SEGMENT, RankView, read_logs

BEAT_GONE_S = 1.0
FACTOR = 1.3  # over the median of the ranks
OF_STEP = 0.10  # of the own time of a step: what is less does not matter to it
LEAST_S = 1e-3
BESIDE = 0.1  # of the worst excess


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank and what it does to the others."""

    rank: int
    kind: Literal["silent", "slow"]
    where: str  # the segment, or what it is in
    excess_s: float  # a step, for a slow rank
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the logs say. `own_s`: mean own time of a step by rank and segment, which the heat map shows."""

    culprits: tuple[Culprit, ...]
    own_s: Mapping[int, Mapping[str, float]]
    step_s: float

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        culprits = [{name: getattr(culprit, name) for name in Culprit.__slots__} for culprit in self.culprits]
        own = {str(rank): dict(parts) for rank, parts in self.own_s.items()}
        return {"culprits": culprits, "own_s": own, "step_s": self.step_s}


def answer(question: Watch) -> Verdict:
    """Who is to blame now or, for a job that is over, as of its last beat. Raises UserError."""
    return _answer(question)[0]


def answer_at_last(question: Watch) -> Verdict:
    """The same, looking again every second until somebody is to blame or all ranks have ended."""
    while True:
        verdict, ended = _answer(question)
        if verdict.culprits or ended:
            return verdict
        time.sleep(1.0)


def _answer(question: Watch) -> tuple[Verdict, bool]:
    views = read_logs(Path(question.folder))
    now_s = max((view.beat_s for view in views), default=0.0) if question.over else time.time()
    return verdict(views, now_s, question.patience), all(view.ended for view in views)


def verdict(views: Sequence[RankView], now_s: float, patience_s: float = 3.0, since_s: float = 0.0) -> Verdict:
    """Hung ranks if nobody has moved for `patience_s`, else slow ones. Events before `since_s` do not count."""
    silent = find_silent(views, now_s, patience_s)
    own = own_times(views, since_s)
    step = median([sum(parts.values()) for parts in own.values()]) if own else 0.0
    return Verdict(tuple(silent or find_slow(own)), own, step)


def find_silent(views: Sequence[RankView], now_s: float, patience_s: float) -> list[Culprit]:
    """Culprits of a hang; none where somebody moved, or all have ended."""
    by_rank = {view.rank: view for view in views}
    if not views or all(view.ended for view in views):
        return []
    if now_s - max(float(view.events[:, 3:5].max(initial=0.0)) for view in views) < patience_s:  # somebody moved
        return []
    stopped = {view.rank for view in views if not view.ended and now_s - view.beat_s > BEAT_GONE_S}
    inside = {view.rank: place for view in views if (place := _inside(view)) is not None}
    entered = {view.rank: _entered(view) for view in views}
    members = _members(views)
    blamed: dict[int, str] = {}
    seen: set[int] = set()
    frontier = set(inside) | stopped
    while frontier:
        rank = frontier.pop()
        if rank in seen:
            continue
        seen.add(rank)
        if rank in stopped:
            where = f" inside {inside[rank][0]} number {inside[rank][1]}" if rank in inside else ""
            blamed[rank] = f"has stopped{where}"
        elif rank not in inside:
            blamed[rank] = "has ended" if by_rank[rank].ended else "runs, but comes to no collective"
        else:
            name, number = inside[rank]
            waited = members.get(name, ())
            frontier |= {member for member in waited if member in by_rank and (entered[member].get(name, 0) <= number)}
            frontier |= stopped & set(waited)
    if blamed:
        return [Culprit(rank, "silent", why, 0.0, f"rank {rank} {why}") for rank, why in sorted(blamed.items())]
    text = ", ".join(f"rank {rank} in {name} number {number}" for rank, (name, number) in sorted(inside.items()))
    return [
        Culprit(rank, "silent", "order of calls", 0.0, f"ranks wait for each other in a circle: {text}")
        for rank in sorted(inside)
    ]


def _inside(view: RankView) -> tuple[str, int] | None:
    """The collective that the rank is in."""
    calls = view.of_kind(COLLECTIVE)
    if not len(calls) or calls[-1, 4] > 0:
        return None
    return view.names[int(calls[-1, 1])], int(calls[-1, 2])


def _entered(view: RankView) -> dict[str, int]:
    """How many collectives of each group the rank has entered."""
    calls = view.of_kind(COLLECTIVE)
    return {name: int(calls[calls[:, 1] == code, 2].max(initial=-1)) + 1 for code, name in enumerate(view.names)}


def _members(views: Sequence[RankView]) -> dict[str, tuple[int, ...]]:
    """Who is in each group: as declared, else all that ever called it."""
    members: dict[str, tuple[int, ...]] = {}
    for view in views:
        for code in np.unique(view.of_kind(COLLECTIVE)[:, 1]):
            name = view.names[int(code)]
            members[name] = (*members.get(name, ()), view.rank)
    for view in views:
        members |= view.members
    return members


def own_times(views: Sequence[RankView], since_s: float = 0.0) -> dict[int, dict[str, float]]:
    """Seconds of own work a step, by rank and segment.

    A step is one round of the rank's most frequent segment or group. What happens in most steps counts by its median,
    so that a busy machine's stray delays do not; what is rarer, such as garbage collection, by its mean.
    """
    return {view.rank: _own(view, since_s) for view in views}


def _own(view: RankView, since_s: float) -> dict[str, float]:
    done = view.events[(view.events[:, 4] > 0) & (view.events[:, 3] >= since_s)]
    segments, calls = done[done[:, 0] == SEGMENT], done[done[:, 0] == COLLECTIVE]
    lengths = {view.names[int(code)]: _lengths(segments, code) for code in np.unique(segments[:, 1])}
    if len(calls) > 1 and not len(segments):
        # Nothing but collectives is logged: own time lies between leaving one and entering the next.
        for code in np.unique(calls[1:, 1]):
            before = calls[1:, 1] == code
            lengths[f"before {view.names[int(code)]}"] = (calls[1:, 3] - calls[:-1, 4])[before]
    steps = max((len(length) for length in lengths.values()), default=0)
    return {
        name: float(np.median(length) * len(length) / steps) if len(length) > steps / 2 else float(length.sum() / steps)
        for name, length in lengths.items()
    }


def _lengths(events: NDArray[np.float64], code: float) -> NDArray[np.float64]:
    chosen = events[events[:, 1] == code]
    return np.asarray(chosen[:, 4] - chosen[:, 3])


def find_slow(own: Mapping[int, Mapping[str, float]]) -> list[Culprit]:
    """Ranks that take much longer than the median of ranks in some segment, the worst first."""
    if len(own) < 3:  # of two ranks nobody can say which is the normal one
        return []
    names = sorted({name for parts in own.values() for name in parts})
    step = median([sum(parts.values()) for parts in own.values()])
    culprits = []
    for name in names:
        typical = median([parts.get(name, 0.0) for parts in own.values()])
        for rank, parts in own.items():
            excess = parts.get(name, 0.0) - typical
            if parts.get(name, 0.0) > FACTOR * typical and excess > max(OF_STEP * step, LEAST_S):
                sentence = f"rank {rank} takes {1e3 * excess:.1f} ms longer than others in {name} of each step"
                culprits.append(Culprit(rank, "slow", name, excess, sentence))
    culprits.sort(key=lambda culprit: (-culprit.excess_s, culprit.rank, culprit.where))
    # Beside a rank that takes a second longer, some milliseconds of another accuse nobody.
    return [culprit for culprit in culprits if culprit.excess_s >= BESIDE * culprits[0].excess_s]
