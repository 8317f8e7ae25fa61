"""From what was measured to what it is lost in: causes with seconds and evidence, largest first.

    trace            class by class: host, communication, copies, kernels; and who is last, rank by rank
    log              the loader's own time, parts of DeepSpeed and Megatron's timers, pauses, drift, full memory
    arguments        what the run says of itself and the plan does not: predicted both ways
    collectives      whom the others wait for

A cause is worth naming from WORTH of the step on, where it is more than steps differ by themselves. Where steps of the
job when it was well are given, it is held against those: by as much as they differ nothing is a cause, and a trace of a
step that is no longer than theirs names none. What is left of the gap is said as not explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.studies.measured_run.against import (
    COMMUNICATION,
    COMPUTE,
    ORDER,
    PIPELINE,
    Lateness,
    lateness,
    mean_classes,
    noise,
    representative,
    spread,
)
from windtunnel.studies.measured_run.collectives import waits_for
from windtunnel.studies.measured_run.run import MeasuredRun, Steady, phases_of
from windtunnel.studies.traces.by_class import StepTime
from windtunnel.units import format_percent, format_time

WORTH = 0.02  # of the measured step
RUNS_DIFFER = 0.04  # of a step: what healthy runs of one job on one machine lie apart (2 to 4 % where it was tried)
ALIKE = 0.06  # by which ratios of kernels' times differ where all of them are slow for one reason
FULL = 0.95  # of the memory
LOADER_PARTS = ("data loader", "batch-generator", "batch_generator", "data_loading", "data")
COMMUNICATION_PARTS = (
    "bwd_allreduce", "all-grads-sync", "params-all-gather", "backward-params-all-reduce",
    "backward-embedding-all-reduce", "grads-all-reduce", "optimizer_allgather",
)  # fmt: skip
DATA_LOADER, HOST_BOUND, PAUSES, DRIFT = "data loader", "host-bound", "pauses", "slower and slower"
EXPOSED, SLOW_RANK, IMBALANCE, CLOCKS = "exposed communication", "slow rank", "imbalance", "clocks or power"
MEMORY_FULL, PLAN_DIFFERS, COPIES, BUBBLE = "memory is full", "another plan", "copies", "pipeline bubble"
MENDS = {
    DATA_LOADER: "more workers, larger shards, data nearer to the nodes; prefetch the next batch",
    HOST_BOUND: "CUDA graphs, torch.compile, larger micro-batches; no .item() or synchronisation in the step",
    PAUSES: "save in the background and less often; collect garbage at the same step on all ranks",
    DRIFT: "look at clocks and temperatures, at growing sequences, and at memory that is not given back",
    EXPOSED: "check each link's bandwidth (nccl-tests, `windtunnel calibrate collectives`), NIC affinity, switches",
    SLOW_RANK: "swap that node and run again; compare its clocks, its errors and its host",
    IMBALANCE: "balance what the ranks get: sequence lengths, layers of the stages, experts",
    CLOCKS: "look at power caps and at clocks_event_reasons of nvidia-smi or DCGM",
    MEMORY_FULL: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, more recomputation, or a smaller micro-batch",
    PLAN_DIFFERS: "launch what was planned, or plan what is launched",
    COPIES: "fuse them, keep one layout, do not move tensors between host and device in the step",
    BUBBLE: "more micro-batches or virtual stages, stages with the same work",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """What seconds of a step are lost in, and what tells so. `mend`: what to do first."""

    cause: str
    seconds: float
    evidence: str
    mend: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that there is to tell causes from; what was not given is None or empty."""

    step_s: float  # measured
    expected: Mapping[str, float]  # seconds by class of a healthy step: predicted, or measured before
    traced: Mapping[int, Sequence[StepTime]]
    run: MeasuredRun | None = None
    steady: Steady | None = None
    capacity_bytes: int = 0
    expected_wait_s: float = 0.0  # for the slowest of healthy ranks, as predicted: another one each step
    differs: Sequence[tuple[str, float]] = ()  # what the run says of its plan, and seconds that it takes more
    healthy: Mapping[int, Sequence[StepTime]] = field(default_factory=dict)  # when it was well: `expected` is it

    @property
    def is_longer(self) -> bool:
        """Whether the traced step is longer than the healthy run's by more than runs and steps differ."""
        lengths = [[step.length_s for step in steps] for run in (self.traced, self.healthy) for steps in run.values()]
        differ = max((spread(length) for length in lengths), default=0.0)
        return length_s(self.traced) > (1.0 + RUNS_DIFFER) * length_s(self.healthy) + differ


def causes_of(evidence: Evidence) -> tuple[Cause, ...]:
    """The causes that are worth naming, largest first."""
    causes = [Cause(PLAN_DIFFERS, seconds, word, MENDS[PLAN_DIFFERS]) for word, seconds in evidence.differs]
    if not evidence.traced:
        causes += _of_parts(evidence)
    elif not evidence.healthy or evidence.is_longer:
        causes += _of_traces(evidence)
    causes += _of_log(evidence)
    worth = [cause for cause in causes if cause.seconds > WORTH * evidence.step_s]
    return tuple(sorted(worth, key=lambda cause: (-cause.seconds, cause.cause)))


# --------------------------------------------------------------------------------------------------------- traces


def length_s(traced: Mapping[int, Sequence[StepTime]]) -> float:
    """Seconds of a step of each rank, in the mean."""
    return sum(representative(steps).length_s for steps in traced.values()) / len(traced)


def _of_traces(evidence: Evidence) -> list[Cause]:
    traced, expected = evidence.traced, evidence.expected
    typical = mean_classes(traced)
    well = evidence.healthy
    beyond = {name: noise(traced, name) + (noise(well, name) if well else 0.0) for name in ORDER}
    causes = []
    late, before = lateness(traced), lateness(well) if well else None
    usual_s = before.seconds if before else evidence.expected_wait_s
    wait_s, uneven = 0.0, ""
    if late is not None:
        wait_s = late.seconds if late.is_constant else max(0.0, late.seconds - usual_s)
        # Of healthy ranks one is last too, perhaps always the same: only what is more than that is a cause.
        if late.seconds > usual_s if late.is_constant else wait_s > late.spread_s:
            uneven = "" if late.is_constant else late.kind
            causes.append(_late(late, wait_s, len(traced)))
        else:  # as on healthy machines
            wait_s = 0.0
    for name, cause in (
        ("data loader", DATA_LOADER),
        ("host", HOST_BOUND),
        (COMMUNICATION, EXPOSED),
        (PIPELINE, BUBBLE),
        ("copies", COPIES),
    ):
        # What one rank has more of than the others is that rank's.
        level = _level(traced, name, mean=name in (COMMUNICATION, PIPELINE))
        excess = level - expected.get(name, 0.0)
        if name == COMMUNICATION:
            excess -= wait_s * (len(traced) - 1) / len(traced)  # the others' waiting for whom is last
        elif name == uneven:
            excess -= wait_s
        if excess < beyond[name]:
            continue
        text = f"{name} takes {format_time(level)} a step in the trace, {format_time(expected.get(name, 0.0))} expected"
        causes.append(Cause(cause, excess, text, MENDS[cause]))
    return causes + _kernels(typical, expected, beyond)


def _late(late: Lateness, wait_s: float, ranks: int) -> Cause:
    if late.is_constant:
        text = (
            f"rank {late.rank} is the last in {format_percent(late.share, 0)} of the traced steps, by"
            f" {format_time(late.seconds)}; it has more {late.kind} than the other {ranks - 1}"
        )
        return Cause(f"{SLOW_RANK} {late.rank}", late.seconds, text, MENDS[SLOW_RANK])
    text = f"one rank is behind by {format_time(late.seconds)} in each step, and not always the same one"
    return Cause(IMBALANCE, wait_s, text, MENDS[IMBALANCE])


def _level(traced: Mapping[int, Sequence[StepTime]], name: str, *, mean: bool) -> float:
    """Of a class, over the ranks: the mean, or the second largest at most where one rank is apart."""
    each = sorted(mean_classes({rank: steps}).get(name, 0.0) for rank, steps in traced.items())
    return sum(each) / len(each) if mean else each[(len(each) - 1) // 2]


def _kernels(measured: Mapping[str, float], expected: Mapping[str, float], noise_s: Mapping[str, float]) -> list[Cause]:
    """Kernels slower by one ratio are slow for one reason; else each class by itself."""
    both = [name for name in COMPUTE if name != "copies" and expected.get(name) and measured.get(name)]
    ratios = {name: measured[name] / expected[name] for name in both}
    excess = {name: measured.get(name, 0.0) - expected.get(name, 0.0) for name in COMPUTE if name != "copies"}
    heavy = [name for name in both if expected[name] > WORTH * sum(expected.values())]
    if len(heavy) > 1:
        low, high = min(ratios[name] for name in heavy), max(ratios[name] for name in heavy)
        seconds = sum(excess[name] for name in heavy)
        unsure = max(noise_s[name] / expected[name] for name in heavy)  # of a ratio, by what steps differ
        if low > 1.0 + WORTH and high - low < ALIKE * low + unsure and seconds > sum(noise_s[name] for name in heavy):
            text = (
                f"{', '.join(heavy)} are all {format_percent(low - 1.0, 0)} to {format_percent(high - 1.0, 0)} slower"
            )
            return [Cause(CLOCKS, seconds, text, MENDS[CLOCKS])]
    return [
        Cause(
            f"slow {name}" if expected.get(name) else name,
            seconds,
            f"{format_time(measured.get(name, 0.0))} in the trace, {format_time(expected.get(name, 0.0))} expected",
            "look at the kernels by name (`windtunnel compare RUN TRACE`): another backend, layout or format?",
        )
        for name, seconds in excess.items()
        if seconds > noise_s[name]
    ]


# ------------------------------------------------------------------------------------------------------------- logs


def _of_parts(evidence: Evidence) -> list[Cause]:
    """Parts of a step that a log times."""
    run = evidence.run
    if run is None:
        return []
    parts = phases_of(run)
    causes = []
    loader = max((parts[name] for name in LOADER_PARTS if name in parts), default=0.0)
    if loader:
        text = f"the log times the loader at {format_time(loader)} a step"
        causes.append(Cause(DATA_LOADER, loader - evidence.expected.get("data loader", 0.0), text, MENDS[DATA_LOADER]))
    spread = {name: high for name, (_, high) in run.ranks_spread.items()}
    exposed = {name: {**spread, **parts}[name] for name in COMMUNICATION_PARTS if name in {**spread, **parts}}
    if exposed:
        expected = evidence.expected.get(COMMUNICATION, 0.0)
        text = (
            f"the log times {', '.join(exposed)} at {format_time(sum(exposed.values()))},"
            f" {format_time(expected)} expected"
        )
        causes.append(Cause(EXPOSED, sum(exposed.values()) - expected, text, MENDS[EXPOSED]))
    for name, (low, high) in run.ranks_spread.items():
        if name in ("forward-backward", "forward-compute", "backward-compute"):
            text = f"{name} takes {format_time(low)} on the quickest rank and {format_time(high)} on the slowest"
            causes.append(Cause(IMBALANCE, high - low, text, MENDS[IMBALANCE]))
    return causes


def _of_log(evidence: Evidence) -> list[Cause]:
    run, steady = evidence.run, evidence.steady
    causes = []
    if steady is not None and steady.set_aside:
        every = f", each {steady.every:,} steps" if steady.every else ""
        text = (
            f"{steady.set_aside} of {steady.lines + steady.set_aside} lines are more than 1.5 times the median{every}"
        )
        causes.append(Cause(PAUSES, steady.lost_s, f"{text}; on top of the steady step", MENDS[PAUSES]))
    if steady is not None and steady.drift > WORTH:
        text = f"the last third of the lines is {format_percent(steady.drift)} slower than the first"
        causes.append(Cause(DRIFT, steady.drift * steady.seconds, text, MENDS[DRIFT]))
    if run is None:
        return causes
    gap = max(0.0, evidence.step_s - sum(evidence.expected.values()))
    fullest = max(run.reserved_bytes.values(), default=0)
    if (evidence.capacity_bytes and fullest > FULL * evidence.capacity_bytes) or "memory is full" in " ".join(
        run.notes
    ):
        share = fullest / evidence.capacity_bytes if evidence.capacity_bytes else 1.0
        text = (
            f"the allocator holds {format_percent(share, 0)} of what the device has: it frees and asks again, which may"
            " be up to all of the gap"
        )
        causes.append(Cause(MEMORY_FULL, gap, text, MENDS[MEMORY_FULL]))
    last = waits_for(run.collectives)
    if last is not None and not evidence.traced:
        rank, wait_s, times = last
        text = f"in {times} collectives all wait for rank {rank}, {format_time(wait_s)} on average"
        causes.append(Cause(f"{SLOW_RANK} {rank}", min(gap, wait_s * times), text, MENDS[SLOW_RANK]))
    return causes
