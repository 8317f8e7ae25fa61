"""A step under disturbances: how long it takes, what each disturbance costs, and how it spreads under jitter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel.engine import Slowdown, replay
from windtunnel.engine.samples import sample_makespans
from windtunnel.result import Blame, Disturbed, Samples
from windtunnel.training.disturbances import Disturbances, cell_factors
from windtunnel.training.layout import Layout
from windtunnel.training.lower import Step
from windtunnel.training.pieces import Piece
from windtunnel.training.pricing import Pricer
from windtunnel.training.replicas import Unfolded, unfold

BLAMED_AT_MOST = 64  # disturbances whose own cost is worked out: two replays each


def disturb(
    step: Step,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    undisturbed_ns: int,
    disturbances: Disturbances,
) -> tuple[int, Disturbed]:
    """The makespan under `disturbances` in nanoseconds, and what explains it.

    With jitter the makespan is the median over samples. Every replica is then its own class: noise makes them differ.
    """

    def makespan(those: Disturbances) -> int:
        return _replayed(_unfolded(step, layout, pieces, pricer, those), step, pricer)[0]

    unfolded = _unfolded(step, layout, pieces, pricer, disturbances)
    total, taken = _replayed(unfolded, step, pricer)
    samples = None
    if disturbances.jitter:
        compute, links = cell_factors(layout, disturbances.slow)
        unfolded = unfold(step, layout, pieces, pricer, compute, links, fold=False)
        _, taken = _replayed(unfolded, step, pricer)
        passes = unfolded.graph.category < len(step.segments)
        found = sample_makespans(
            unfolded.graph, taken, passes, disturbances.jitter, disturbances.samples, disturbances.seed
        )
        low, middle, high = (int(value) for value in np.percentile(found, [5, 50, 95]))
        samples = Samples(disturbances.jitter, disturbances.samples, disturbances.seed, low, middle, high)
    blame = []
    cell = layout.plan.tp * layout.plan.cp
    for number, one in enumerate(disturbances.slow[:BLAMED_AT_MOST]):
        alone = makespan(disturbances.only(number)) - undisturbed_ns
        rest = disturbances.without(number)
        without = total - (makespan(rest) if rest.slow else undisturbed_ns)
        stage, within = divmod(one.gpus[0], cell * layout.dp)
        blame.append(Blame(one.text, alone, without, stage, within // cell))
    final = samples.p50_ns if samples else total
    return final, Disturbed(
        undisturbed_step_time_ns=undisturbed_ns,
        gpus_lost=layout.cluster.n_gpus * (1.0 - undisturbed_ns / final) if final else 0.0,
        programs=unfolded.graph.n_programs,
        replica_classes=tuple(int(size) for size in unfolded.sizes),
        blame=tuple(sorted(blame, key=lambda one: (-one.without_ns, -one.alone_ns, one.what))),
        samples=samples,
    )


def with_waiting(disturbed: Disturbed, waiting_ns: int, n_gpus: int, step_ns: int) -> Disturbed:
    """The same with what every step waits anyway, so that its times compare with the step's."""
    undisturbed = disturbed.undisturbed_step_time_ns + waiting_ns
    samples = disturbed.samples
    if samples:
        samples = replace(
            samples,
            p5_ns=samples.p5_ns + waiting_ns,
            p50_ns=samples.p50_ns + waiting_ns,
            p95_ns=samples.p95_ns + waiting_ns,
        )
    lost = n_gpus * (1.0 - undisturbed / step_ns) if step_ns else 0.0
    return replace(disturbed, undisturbed_step_time_ns=undisturbed, gpus_lost=lost, samples=samples)


def _unfolded(
    step: Step, layout: Layout, pieces: tuple[Piece, ...], pricer: Pricer, disturbances: Disturbances
) -> Unfolded:
    return unfold(step, layout, pieces, pricer, *cell_factors(layout, disturbances.slow))


def _replayed(unfolded: Unfolded, step: Step, pricer: Pricer) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Makespan, and how long each op then took with what ran beside it."""
    factors = np.array(pricer.training.slowdown_factors())
    timeline = replay(unfolded.graph, unfolded.duration_ns, Slowdown(unfolded.interference, factors))
    return timeline.makespan_ns, timeline.end_ns - timeline.start_ns
