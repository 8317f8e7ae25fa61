"""What a trace would have cost without its stragglers: replays with durations exchanged (Lin et al., OSDI'25).

Ideal: every op takes the mean of its peers, or the median if it is communication, whose outliers are someone else's
fault. Then, with T(...) the mean step time of a replay: S = T(measured) / T(ideal), and for any set X of ops
S_X = T(ideal, but X measured) / T(ideal) and saved by X = T(measured) - T(measured, but X ideal).

T(measured) and what is saved count to the end of the last op of a step; T(ideal) and S_X to the end of its last
optimizer, where the trace names that, as in the study: operation tables hold ops that were never launched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError, ScheduleError
from windtunnel.physics.engine.replay import replay
from windtunnel.studies.traces.stragglers.explanation import Explanation, Part, Repair
from windtunnel.studies.traces.stragglers.selection import chosen_ops
from windtunnel.studies.traces.stragglers.verdict import MOST, NEGLIGIBLE, verdict
from windtunnel.studies.traces.trace import Trace

_LARGEST_NS = 4e18  # a replay sums durations in 63 bits
_NO_LOSS = 1e-5  # of the step: what rounding ideal durations to nanoseconds makes
_UNEXPLAINED = 0.1  # of the measured time
_WORKERS_SHOWN = 16
_SLOWEST_PERCENT = 3  # of the workers, rounded up: "a few"


def ideal_durations(trace: Trace) -> NDArray[np.int64]:
    """int64[n]: what each op takes when no peer of it straggles.

    In whole nanoseconds, never rounded up: then no replay is longer than one of the exact means would be.
    """
    order = np.argsort(trace.peers, kind="stable")
    durations = trace.duration_ns[order]
    starts = np.flatnonzero(np.r_[True, np.diff(trace.peers[order]) != 0]) if len(order) else np.zeros(0, np.int64)
    counts = np.diff(np.r_[starts, len(order)])
    level = np.floor(np.add.reduceat(durations.astype(np.float64), starts) / counts) if len(order) else durations
    communication = trace.is_communication[order]
    for at in np.flatnonzero(communication[starts] & (counts > 1)) if len(order) else ():
        level[at] = np.floor(np.median(durations[starts[at] : starts[at] + counts[at]]))
    ideal = np.empty_like(trace.duration_ns)
    ideal[order] = np.repeat(level, counts).astype(np.int64)
    return ideal


class Replays:
    """Step times of a trace under exchanged durations."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.measured = trace.duration_ns
        self.ideal = ideal_durations(trace)

    def steps_ns(self, durations: NDArray[np.int64], to_optimizer: bool = False) -> NDArray[np.float64]:
        """float64[steps]: end of the last op of every step, or of its last optimizer."""
        end = replay(self.trace.graph, durations).end_ns
        step, closing = self.trace.step, self.trace.ends_step
        if to_optimizer and closing is not None:
            step, end = step[closing], end[closing]
        last = np.zeros(len(self.trace.steps), np.int64)
        np.maximum.at(last, step, end)
        return last.astype(np.float64)

    def mean_with_only_measured(self, chosen: NDArray[np.bool_]) -> float:
        """Mean step time with only the chosen ops as measured."""
        return float(self.steps_ns(np.where(chosen, self.measured, self.ideal), to_optimizer=True).mean())

    def mean_with_ideal(self, chosen: NDArray[np.bool_]) -> float:
        """Mean step time with only the chosen ops ideal."""
        return float(self.steps_ns(np.where(chosen, self.ideal, self.measured)).mean())


def explain(trace: Trace, files: Sequence[str] = (), without: Sequence[str] = ()) -> Explanation:
    """Replay `trace` with and without each of its parts, and without all of those named in `without` ("stage=3").

    Raises:
        InputFileError: ops of the trace wait for each other in a circle.
        SpecError, UnknownNameError: `without` names no part of the trace.
    """
    where = files[0] if files else trace.source
    if float(trace.duration_ns.sum(dtype=np.float64)) > _LARGEST_NS:
        raise InputFileError(where, "its durations sum to centuries", "give times in the unit of the format")
    replays = Replays(trace)
    try:
        measured, ideal = replays.steps_ns(replays.measured), replays.steps_ns(replays.ideal, to_optimizer=True)
    except ScheduleError as error:
        text = f"its ops wait for each other in a circle ({error})"
        raise InputFileError(where, text, "the order in the trace is damaged") from error
    replayed_ns, ideal_ns = float(measured.mean()), float(ideal.mean())
    lost_ns = replayed_ns - float(replays.steps_ns(replays.ideal).mean())
    wanted = chosen_ops(trace, without)

    def share(saved: float) -> float | None:
        return saved / lost_ns if abs(lost_ns) > _NO_LOSS * replayed_ns else None

    def part(name: str, chosen: NDArray[np.bool_]) -> Part:
        saved = replayed_ns - replays.mean_with_ideal(chosen)
        slowdown = replays.mean_with_only_measured(chosen) / ideal_ns if ideal_ns > 0 else 1.0
        return Part(name, slowdown, round(saved), share(saved))

    def parts(names: Sequence[str], of_op: NDArray[np.int32], values: Sequence[int]) -> list[Part]:
        ranked = [part(name, of_op == value) for name, value in zip(names, values, strict=True)]
        return sorted(ranked, key=lambda entry: -entry.slowdown)

    replica_of, stage_of = trace.replica[trace.worker], trace.stage[trace.worker]
    replicas, stages = _numbers(trace.replica), _numbers(trace.stage)
    by_replica = parts([str(r) for r in replicas], replica_of, replicas)
    by_stage = parts([str(s) for s in stages], stage_of, stages)
    categories = trace.graph.categories
    used = [int(c) for c in np.unique(trace.graph.category)]
    by_kind = parts([categories[c] for c in used], trace.graph.category.astype(np.int32), used)
    scores = _worker_scores(trace, replays, by_replica, by_stage, ideal_ns)
    ranked = sorted(range(len(scores)), key=lambda w: (-scores[w], int(trace.worker_rank[w]), w))
    names = trace.worker_names
    slowest = ranked[: -(-len(ranked) * _SLOWEST_PERCENT // 100)]
    slowest_workers = part(_listed([names[w] for w in slowest]), np.isin(trace.worker, slowest))
    last_stage = part(str(stages[-1]), stage_of == stages[-1]) if len(stages) > 1 else None
    shown = ranked[:_WORKERS_SHOWN] if len(ranked) > 1 else []
    by_worker = parts([names[w] for w in shown], trace.worker, shown)
    repair = None
    if without:
        mended_ns = replays.mean_with_ideal(wanted)
        repair = Repair(
            tuple(without),
            int(wanted.sum()),
            round(mended_ns),
            round(replayed_ns - mended_ns),
            share(replayed_ns - mended_ns),
            mended_ns / ideal_ns if ideal_ns > 0 else 1.0,
        )
    slowdown = replayed_ns / ideal_ns if ideal_ns > 0 else 1.0
    per_step = np.divide(measured, ideal, out=np.ones_like(measured), where=ideal > 0)
    return Explanation(
        source=trace.source,
        files=tuple(files),
        n_ops=trace.graph.n_ops,
        n_workers=len(trace.worker_names),
        n_steps=len(trace.steps),
        measured_ns=round(float(trace.measured_ns.mean())),
        replayed_ns=round(replayed_ns),
        ideal_ns=round(ideal_ns),
        slowdown=slowdown,
        by_replica=tuple(by_replica),
        by_stage=tuple(by_stage),
        by_kind=tuple(by_kind),
        by_worker=tuple(by_worker),
        worker_slowdown={names[w]: scores[w] for w in ranked},
        worker_place={names[w]: (int(trace.replica[w]), int(trace.stage[w])) for w in ranked},
        slowest_workers=slowest_workers,
        last_stage=last_stage,
        step_slowdown=dict(zip(trace.steps, per_step.tolist(), strict=True)),
        step_measured_ns=dict(zip(trace.steps, trace.measured_ns.tolist(), strict=True)),
        verdict=verdict(
            slowdown,
            slowest_workers,
            by_stage,
            by_kind,
            len(scores),
            trace.forward_backward_correlation,
            has_peers=len(np.unique(trace.peers)) < trace.graph.n_ops,
            slow_stages=slow_stages(trace, replays),
            rank_steps=trace.rank_steps,
        ),
        forward_backward_correlation=trace.forward_backward_correlation,
        asked=repair,
        rank_steps=trace.rank_steps,
        notes=(*trace.notes, *_gap(trace, replayed_ns)),
    )


def slow_stages(trace: Trace, replays: Replays) -> frozenset[str]:
    """Stages of which most workers compute for longer than their peers: one slow worker makes no stage heavy."""
    computes = ~trace.is_communication
    workers = len(trace.worker_names)
    took, ideal = (
        np.bincount(trace.worker[computes], weights=durations[computes].astype(np.float64), minlength=workers)
        for durations in (replays.measured, replays.ideal)
    )
    slow = took > NEGLIGIBLE * ideal
    return frozenset(str(stage) for stage in _numbers(trace.stage) if slow[trace.stage == stage].mean() > MOST)


def _gap(trace: Trace, replayed_ns: float) -> tuple[str, ...]:
    """A replay that does not repeat what was measured explains less than the whole of it; say so."""
    measured_ns = float(trace.measured_ns.mean())
    if measured_ns <= 0 or abs(replayed_ns / measured_ns - 1) <= _UNEXPLAINED:
        return ()
    return (
        f"the replay takes {replayed_ns / measured_ns:.0%} of the measured time: the trace lacks part of what ops "
        "waited for, so judge these figures with care",
    )


def _numbers(values: NDArray[np.int32]) -> list[int]:
    return [int(v) for v in np.unique(values[values >= 0])]


def _worker_scores(
    trace: Trace, replays: Replays, by_replica: Sequence[Part], by_stage: Sequence[Part], ideal_ns: float
) -> list[float]:
    """A slow worker makes its replica and its stage slow: the smaller of the two. Else its own replay."""
    if by_replica and by_stage:
        of_replica = {int(part.name): part.slowdown for part in by_replica}
        of_stage = {int(part.name): part.slowdown for part in by_stage}
        return [min(of_replica[int(r)], of_stage[int(s)]) for r, s in zip(trace.replica, trace.stage, strict=True)]
    workers = range(len(trace.worker_names))
    return [replays.mean_with_only_measured(trace.worker == w) / ideal_ns if ideal_ns > 0 else 1.0 for w in workers]


def _listed(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
