"""Programs of ranks that are not like the real one, from a captured job and from how fast the real rank turned out.

A captured program says what its ranks compute between their communications. Each stretch has a price on the cluster,
in three parts: products and attention, other kernels, the optimizer. The real rank's class was captured as well, and
its stretches were measured; three factors, fitted to these, turn prices into seconds of the device that the script
really runs on:

    seconds of a stretch = a x products + b x other kernels + c x optimizer,   a, b, c >= 0

Stretches of a pipeline are alike (all micro-batches forward, all backward) and tell the factors apart badly: each is
drawn, weakly, to the one factor that the sums give (as a measurement that is right within 30 %, a stretch within 5 %).

Where the captured program of the class is not what was observed, one factor is taken from the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.measured.fitting import relative_nnls
from windtunnel.real.emulate.peers.host_program import Event, HostProgram, resembles
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.program import Op, RankProgram

if TYPE_CHECKING:
    from windtunnel.studies.programs.job import CapturedJob

PRODUCTS, KERNELS, OPTIMIZER = range(3)
SecondsOfOp = Callable[[Op], tuple[float, int]]  # price and part
_TRUST_IN_EVEN = (0.05 / 0.30) ** 2


class Stretches(NamedTuple):
    """A captured program as its host sees it."""

    calls: tuple[Communication, ...]
    events: tuple[Event, ...]
    parts: NDArray[np.float64]  # [events + 1, 3]: priced seconds before each event and after the last


def stretches_of(program: RankProgram, price: SecondsOfOp) -> Stretches:
    """Communications, waits, and what is computed between. What nobody waits for is waited for by the optimizer."""
    calls: list[Communication] = []
    place_of: dict[int, int] = {}  # op -> place among the calls
    waited = set[int]()
    for op in program.ops:
        if op.kind == "wait":
            waited.update(op.after)
    events: list[Event] = []
    parts: list[NDArray[np.float64]] = []
    so_far = np.zeros(3)
    open_places: list[int] = []
    gate_passed = False

    def add(event: Event) -> None:
        nonlocal so_far
        events.append(event)
        parts.append(so_far)
        so_far = np.zeros(3)

    for number, op in enumerate(program.ops):
        if op.phase == "optimizer" and not gate_passed and op.kind == "compute":
            gate_passed = True
            for place in open_places:
                add(Event(True, place))
            open_places = []
        if op.communication is not None:
            if op.communication.is_control:
                continue
            place_of[number] = len(calls)
            add(Event(False, len(calls)))
            if number not in waited:
                open_places.append(len(calls))
            calls.append(op.communication)
        elif op.kind == "wait":
            for before in op.after:
                if before in place_of:
                    add(Event(True, place_of[before]))
        else:
            seconds, part = price(op)
            so_far[part] += seconds
    for place in open_places:
        add(Event(True, place))
    return Stretches(tuple(calls), tuple(events), np.array([*parts, so_far]))


def factors(own: Stretches, measured: HostProgram) -> NDArray[np.float64]:
    """Seconds per priced second, for each part."""
    seconds = measured.seconds.mean(axis=0)
    own_parts, theirs = _between_begins(own.events, own.parts), _between_begins(measured.events, seconds[:, np.newaxis])
    total = own.parts.sum()
    even = np.full(3, float(seconds.sum()) / total if total > 0.0 else 1.0)
    if len(own.calls) != len(measured.calls) or not all(map(resembles, own.calls, measured.calls)):
        return even
    used = np.flatnonzero(own_parts.sum(axis=0) > 0.0)
    rows = np.flatnonzero((theirs[:, 0] > 0.0) & (own_parts.sum(axis=1) > 0.0))
    if len(rows) <= len(used):
        return even
    fitted = even.copy()
    terms = np.vstack([own_parts[np.ix_(rows, used)], np.eye(len(used))])
    seen = np.concatenate([theirs[rows, 0], even[used]])
    trust = np.concatenate([np.ones(len(rows)), np.full(len(used), _TRUST_IN_EVEN)])
    fitted[used] = relative_nnls(terms, seen, trust)
    scale = float(seconds.sum()) / max(float((own.parts @ fitted).sum()), 1e-30)
    return fitted * scale


def _between_begins(events: Sequence[Event], parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of stretches from one begin to the next: where waits lie may be seen differently."""
    rows = [np.zeros(parts.shape[1])]
    for event, part in zip(events, parts, strict=False):
        rows[-1] = rows[-1] + part
        if not event.waits:
            rows.append(np.zeros(parts.shape[1]))
    rows[-1] = rows[-1] + parts[-1]
    return np.array(rows)


def other_classes(
    job: CapturedJob, rank: int, price: SecondsOfOp, measured_programs: Mapping[int, HostProgram] = MappingProxyType({})
) -> tuple[list[int], Callable[[HostProgram], list[tuple[HostProgram, Sequence[int]]]]]:
    """Ranks that run the real rank's program, and the programs of all others given that one as measured.

    `measured_programs`: those that runs of other classes measured (`peer_times`), by captured rank; they need no price.
    """
    own = int(job.runs[rank])
    stretches_by_rank = {captured: stretches_of(program, price) for captured, program in job.programs.items()}
    ranks = {captured: np.flatnonzero(job.runs == captured).tolist() for captured in stretches_by_rank}

    def other_programs(measured: HostProgram) -> list[tuple[HostProgram, Sequence[int]]]:
        by_part = factors(stretches_by_rank[own], measured)
        return [
            (
                measured_programs.get(captured)
                or HostProgram(captured, stretches.calls, stretches.events, (stretches.parts @ by_part)[np.newaxis]),
                ranks[captured],
            )
            for captured, stretches in stretches_by_rank.items()
            if captured != own and ranks[captured]
        ]

    return ranks[own], other_programs
