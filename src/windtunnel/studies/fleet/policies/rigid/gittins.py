"""Gittins index on attained GPU-seconds: who is likeliest to be done soon for the service it would take.

    G(a) = P(S <= a + D | S > a) / E[min(S - a, D) | S > a]

over a sample of total services S, quantum D = 3,250 GPU-s. `as_coded` has the artifact's denominator, which adds up
totals instead of what is left: #(a, a + D] / (sum of their totals + D x #beyond). Higher G first; 0 beyond the largest.
Without a sample the services of jobs seen to end would have to be learned; here a log-normal stands in
(median 800 GPU-s, sigma 2: the sample of SymbioticLab/Tiresias yarn-gput10000 has median 780).
Source: J. Gu et al., "Tiresias", NSDI 2019, section 3.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from statistics import NormalDist

from windtunnel.studies.fleet.clock.decision import Decision, JobView, Snapshot
from windtunnel.studies.fleet.traits import FAILING, Traits

QUANTUM_GPU_S = 3250.0
MEDIAN_GPU_S, SIGMA = 800.0, 2.0


def stand_in(count: int = 1000) -> tuple[float, ...]:
    """Quantiles of the log-normal."""
    normal = NormalDist()
    return tuple(
        MEDIAN_GPU_S * 2.718281828459045 ** (SIGMA * normal.inv_cdf((at + 0.5) / count)) for at in range(count)
    )


def index(sample: tuple[float, ...], attained: float, quantum: float, *, as_coded: bool) -> float:
    """G(a) of a sorted sample."""
    first = bisect_right(sample, attained)
    beyond = len(sample) - first
    if beyond == 0:
        return 0.0
    last = bisect_right(sample, attained + quantum)
    ended = sample[first:last]
    cost = sum(ended) if as_coded else sum(ended) - attained * len(ended)
    return len(ended) / (cost + quantum * (len(sample) - last))


@dataclass(frozen=True)
class Gittins:
    """`sample` of total GPU-seconds, sorted. Service is looked at in sixteenths of the quantum."""

    sample: tuple[float, ...] = field(default_factory=stand_in)
    quantum_gpu_s: float = QUANTUM_GPU_S
    as_coded: bool = False
    _known: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)  # index by step

    def decide(self, snapshot: Snapshot) -> Decision:
        """Order by G, ties by submission; whatever fits runs."""
        step = self.quantum_gpu_s / 16

        def rank(job: JobView) -> float:
            at = int(job.gpu_seconds // step)
            if at not in self._known:
                self._known[at] = index(self.sample, at * step, self.quantum_gpu_s, as_coded=self.as_coded)
            return -self._known[at]

        free = snapshot.capacity
        gpus: dict[int, int] = {}
        wake_s: float | None = None
        for job in sorted(snapshot.jobs, key=lambda job: (rank(job), job.submit_s, job.index)):
            if job.gpus <= free:
                gpus[job.index] = job.gpus
                free -= job.gpus
                next_s = snapshot.now_s + self.quantum_gpu_s / job.gpus
                wake_s = next_s if wake_s is None else min(wake_s, next_s)
        return Decision(gpus, wake_s=wake_s)


POLICY = Traits(name="gittins", asks="all", make=lambda site, options: Gittins(), measured="each", capacity=FAILING)
