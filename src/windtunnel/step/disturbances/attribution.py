"""Which ranks held up the others in a disturbed step, and for how long."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.result import Disturbed, PathPart, Waiting

PATH_PARTS_MOST = 200


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


def beyond(waiting: tuple[Waiting, ...], usual: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
    """What is waited more than in an undisturbed step, longest mean first."""
    known = {one.communicator: one.mean_ns for one in usual}
    more = []
    for one in waiting:
        less = known.get(one.communicator, 0)
        mean, worst = one.mean_ns - less, one.worst_ns - less
        if mean > 0:
            more.append(replace(one, mean_ns=mean, worst_ns=max(mean, worst)))
    return tuple(sorted(more, key=lambda one: (-one.mean_ns, one.communicator)))


def thinned(parts: tuple[PathPart, ...], most: int = PATH_PARTS_MOST) -> tuple[PathPart, ...]:
    """The longest parts, in the order of time."""
    longest = sorted(parts, key=lambda part: (part.start_ns - part.end_ns, part.start_ns))[:most]
    return tuple(sorted(longest, key=lambda part: part.start_ns))
