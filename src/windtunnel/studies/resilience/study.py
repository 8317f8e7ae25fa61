"""The study: what failures cost a job, under each policy, on the same failures.

`survive(job)` draws the failures once, chooses interval and standbys where they are left open, runs every policy
through them and reads off ETTR, waterfall, interruptions and cost. Step times arrive as callables: this package knows
no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.questions.header import Answer, band_entry
from windtunnel.questions.typed import Plain, check_figures, check_sum, plain, plain_fields
from windtunnel.studies.resilience import ettr, standbys
from windtunnel.studies.resilience.checkpoints import Checkpoint
from windtunnel.studies.resilience.closed_form import Rates, closed_form, rates_of
from windtunnel.studies.resilience.failures import FailureProcess, FailureTrace, draw
from windtunnel.studies.resilience.policies import Job, Policy, policy_named
from windtunnel.studies.resilience.recovery import RecoveryTimes
from windtunnel.studies.resilience.run import PARTS, Episode, SaveTimes, run_many

DAY_S = 86_400.0
LONGEST_INTERVAL_S = DAY_S
MOST_DAYS = 3650  # of a run and of each of its times: nanoseconds stay whole numbers of 64 bits
MOST_EVENTS, MOST_EVENTS_OF_A_RUN = 50_000_000, 30_000  # each event takes a millisecond, for all runs together
CURVE_POINTS = 25
SAID = ("gpus", "replicas", "stages", "days", "seeds", "seed", "step_s")  # of the question, again in the answer
SCALES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class SurviveQuestion(Job):
    """One question. What is None is chosen."""

    process: FailureProcess
    checkpoint: Checkpoint
    days: float
    policies: Sequence[str] = ("restart", "standby", "shrink", "parcae")
    interval_s: float | None = None
    standbys: int | None = None
    seeds: int = 200
    seed: int = 0
    tokens_per_s: float | None = None
    usd_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.days <= MOST_DAYS:
            raise SpecError("days", self.days, "give days, more than 0 and at most ten years")
        if not 0 < self.step_s <= MOST_DAYS * DAY_S:
            raise SpecError("step-time", self.step_s, "give a time above 0 and at most ten years, such as 10s")
        saved = self.checkpoint
        times = {**{name: getattr(self.times, name) for name in RecoveryTimes.__slots__}, "save": saved.stall_s}
        for name, seconds in {**times, "write of a checkpoint": saved.persist_s}.items():
            if not 0 <= seconds <= MOST_DAYS * DAY_S:
                raise SpecError(f"recovery {name}", seconds, "give seconds, 0 or more and at most ten years")
        if not 1 <= self.seeds <= 100_000:
            raise SpecError("seeds", self.seeds, "give 1 to 100,000 runs")
        if self.seed < 0:
            raise SpecError("seed", self.seed, "give 0 or more")
        price = self.usd_per_gpu_hour
        if price is not None and not 0.0 <= price < math.inf:
            raise SpecError("price", price, "give dollars for an hour of one GPU, 0 or more")
        if self.standbys is not None and not 0 <= self.standbys <= self.gpus:
            raise SpecError("standbys", self.standbys, "give a number of machines, or auto")
        if self.interval_s is not None and not 1e-3 <= self.interval_s <= MOST_DAYS * DAY_S:
            raise SpecError("checkpoint", self.interval_s, "give an interval such as 10min, or auto")
        if self.interval_s is not None and self.interval_s < saved.persist_s:
            remedy = f"writing one takes {saved.persist_s:.3g} s: give that or more, a faster --storage, or auto"
            raise SpecError("checkpoint", self.interval_s, remedy)
        events = self.process.events(self.gpus, self.gpus_per_node, self.days * DAY_S)
        if events > MOST_EVENTS_OF_A_RUN or events * self.seeds > MOST_EVENTS:
            counts, rarer = f"{events:,.0f} events a run, {self.seeds} runs", "rarer failures or planned changes"
            raise SpecError("failures", self.process.name, f"{counts}: give {rarer}, fewer days or fewer seeds")


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One policy's answer; seconds, shares, GPU-hours. The waterfall is the mean run and sums to the wall time."""

    JSON_LEAVES_OUT: ClassVar = ("stops",)

    policy: str
    ettr: float
    ettr_p5: float
    ettr_p95: float
    ettr_exact: float  # closed form
    ettr_linear: float  # as papers print it
    interruptions: float  # unplanned, mean of the runs
    interruptions_p10: float
    interruptions_p90: float
    planned: float
    interruptions_by_cause: Mapping[str, float]
    waterfall: Mapping[str, float]
    checkpoint_interval_s: float
    checkpoint_stall_s: float
    young_s: float
    daly_s: float
    standbys: int
    standbys_cheapest: int
    gpu_hours: float
    gpu_hours_wasted: float
    cost_usd: float | None
    tokens_per_s: float | None
    interval_curve: Sequence[tuple[float, float, float]]  # interval, exact ETTR, linear ETTR
    standby_curve: Sequence[tuple[int, float]]  # standbys, machines' worth of time lost
    scale_curve: Sequence[tuple[int, float]]  # GPUs, exact ETTR
    stops: Sequence[Episode]  # recoveries and pauses of the first run

    def __post_init__(self) -> None:
        check_figures(self, unbounded=("young_s", "daly_s"))

    @property
    def intervals(self) -> dict[str, float]:
        """Young's and Daly's, which are infinite where nothing fails."""
        return {"young_s": self.young_s, "daly_s": self.daly_s}

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON: None for an interval without end."""
        finite = {name: value if math.isfinite(value) else None for name, value in self.intervals.items()}
        return {**plain_fields(self), **finite}


@dataclass(frozen=True, slots=True)
class Survival(Answer):
    """The answer. faces/report/survival shows it by `to_dict`."""

    asked: SurviveQuestion
    wall_s: float
    mttf_s: float
    entries: Sequence[PolicyEntry]

    def __post_init__(self) -> None:
        check_figures(self, unbounded=("mttf_s",))
        for entry in self.entries:
            check_sum(entry.waterfall, self.wall_s)

    @property
    def band(self) -> Mapping[str, object]:
        """Of the first policy."""
        return band_entry("ettr", self.entries[0].ettr_p5, self.entries[0].ettr_p95)

    @property
    def provenance(self) -> Mapping[str, object]:
        """Where the failures come from."""
        return {"failures": self.asked.process.source}

    def to_dict(self) -> dict[str, Plain]:
        """Plain data for JSON: the first policy's figures on top, and one entry per policy."""
        job, entries = self.asked, [entry.to_dict() for entry in self.entries]
        head: dict[str, Plain] = {
            **{name: plain(getattr(job, name)) for name in SAID},
            "failures": job.process.name,
            "failures_source": job.process.source,
            "mttf_s": self.mttf_s if math.isfinite(self.mttf_s) else None,
            "wall_s": self.wall_s,
        }
        return {**entries[0], **head, "policies": [{**entry} for entry in entries]}


def survive(job: SurviveQuestion) -> Survival:
    """Every policy on the same failures. Raises UnknownNameError for a policy, SpecError for a field."""
    policies = [policy_named(name, job) for name in job.policies]
    if not policies:
        raise SpecError("policy", None, "name at least one")
    if len({policy.name for policy in policies}) < len(policies):
        raise SpecError("policy", ", ".join(job.policies), "name each policy once")
    wall_s = job.days * DAY_S
    trace = draw(job.process, job.gpus, job.gpus_per_node, wall_s, job.seeds, job.seed)
    if job.standbys is not None and all(policy.away != "from standbys" for policy in policies):
        raise SpecError("standbys", job.standbys, "no policy of these keeps any: leave it out, or add standby")
    entries = [_entry(job, policy, trace) for policy in policies]
    return Survival(job, wall_s, job.process.mttf_s(job.gpus, job.gpus_per_node), entries)


def _entry(job: SurviveQuestion, policy: Policy, trace: FailureTrace) -> PolicyEntry:
    process, saving, times = job.process, job.checkpoint, job.times
    host_rate, stall = process.host_rate_per_s(job.gpus_per_node), saving.stall_s
    needed = standbys.standbys_needed(job.hosts, standbys.unavailable(host_rate, times.replenish))
    spares, costs = 0, tuple[tuple[int, float], ...]()
    if policy.away == "from standbys":
        spares = needed if job.standbys is None else job.standbys
        wait_s, most = times.schedule + times.warm_up, max(2 * needed + 4, spares)
        costs = standbys.standby_costs(job.hosts, host_rate, times.replenish, wait_s, most)
    rates = rates_of(process, policy, job, spare=spares > 0)
    interval = job.interval_s or best_interval(rates, saving, job.step_s)
    save = SaveTimes(max(1, round(interval * 1e9)), round(stall * 1e9), round(saving.persist_s * 1e9))
    outcome = run_many(trace, policy, save, job.step_s, spares)
    low, high = np.percentile(outcome.ettr, [5, 95])
    unplanned = np.array([cause.symptom != "planned" for cause in process.causes], bool)
    counts = outcome.interruptions
    total = counts[:, unplanned].sum(axis=1)
    mean = outcome.seconds.mean(axis=0)
    share = float(outcome.ettr.mean())
    gpu_hours = (job.gpus + spares * job.gpus_per_node) * outcome.wall_s / 3600.0
    intervals = np.geomspace(max(saving.least_interval_s, interval / 20), interval * 20, CURVE_POINTS)
    return PolicyEntry(
        policy=policy.name,
        ettr=share,
        ettr_p5=float(low),
        ettr_p95=float(high),
        ettr_exact=closed_form(rates, stall, interval, ettr.exact),
        ettr_linear=closed_form(rates, stall, interval, ettr.linear),
        interruptions=float(total.mean()),
        interruptions_p10=float(np.percentile(total, 10)),
        interruptions_p90=float(np.percentile(total, 90)),
        planned=float(counts[:, ~unplanned].sum(axis=1).mean()),
        interruptions_by_cause={
            cause.name: float(n) for cause, n in zip(process.causes, counts.mean(axis=0), strict=True)
        },
        waterfall={name: float(seconds) for name, seconds in zip(PARTS, mean, strict=True)},
        checkpoint_interval_s=interval,
        checkpoint_stall_s=stall,
        young_s=ettr.young_s(rates.reading_per_s, stall),
        daly_s=ettr.daly_s(rates.reading_per_s, stall),
        standbys=spares,
        standbys_cheapest=standbys.cheapest_standbys(costs) if costs else 0,
        gpu_hours=gpu_hours,
        gpu_hours_wasted=gpu_hours - share * job.gpus * outcome.wall_s / 3600.0,
        cost_usd=None if job.usd_per_gpu_hour is None else gpu_hours * job.usd_per_gpu_hour,
        tokens_per_s=None if job.tokens_per_s is None else job.tokens_per_s * share,
        interval_curve=[
            (float(d), closed_form(rates, stall, d, ettr.exact), closed_form(rates, stall, d, ettr.linear))
            for d in intervals
        ],
        standby_curve=costs,
        scale_curve=_scale_curve(job, policy.name, spare=spares > 0),
        stops=outcome.stops,
    )


def best_interval(rates: Rates, saving: Checkpoint, step_s: float) -> float:
    """The interval that the closed form likes best, not shorter than a step or than writing takes."""
    least = max(saving.least_interval_s, step_s)
    longest = max(LONGEST_INTERVAL_S, least)
    if rates.reading_per_s <= 0:
        return longest
    return ettr.best_interval_s(rates.reading_per_s, rates.reading_down_s, saving.stall_s, least, longest)


def _scale_curve(job: SurviveQuestion, name: str, *, spare: bool) -> list[tuple[int, float]]:
    """Exact ETTR of the same job on more and fewer GPUs: replicas are added, each with its own best interval."""
    points = []
    for gpus in SCALES:
        replicas = max(1, round(job.replicas * gpus / job.gpus))
        whole = job.replicas

        def rate(left: int, replicas: int = replicas, whole: int = whole) -> float:
            return job.rate(round(left * whole / replicas)) if whole >= replicas else left / replicas

        scaled_job = Job(gpus, job.gpus_per_node, replicas, job.stages, job.step_s, job.times, rate)
        rates = rates_of(job.process, policy_named(name, scaled_job), scaled_job, spare=spare)
        interval = job.interval_s or best_interval(rates, job.checkpoint, job.step_s)
        points.append((gpus, closed_form(rates, job.checkpoint.stall_s, interval, ettr.exact)))
    return points
