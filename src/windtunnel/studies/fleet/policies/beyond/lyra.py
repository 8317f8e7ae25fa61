"""Lyra: inference servers on loan to training, and spare GPUs to jobs that can use more (Li et al., EuroSys 2023).

Four decisions, each a pure function:

    reclaim        which servers go back so that few jobs are stopped. A server's cost is the sum over its jobs of
                   1/(servers on loan that the job spans); the cheapest goes, its jobs stop, costs are counted anew
    next_to_start  base demands: shortest remaining first, whatever fits, whole gangs
    extra_workers  what is left over: a multiple-choice knapsack of the time that each job saves

No code was published: written from the paper's abstract and our notes of it. Ties: fewest GPUs, then the lower id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from windtunnel.studies.fleet.traits import Traits


@dataclass(frozen=True)
class Lyra:
    """Which of its parts are on, and what a change costs.

    `rescale_s`, `restart_s`: time without progress after a job is resized or started again; 30 s is what AdaptDL
    measured for its applications. `checkpoint_s`: work between checkpoints; what a stopped job did since is lost.
    """

    loan: bool = True
    elastic: bool = True
    rescale_s: float = 30.0
    restart_s: float = 30.0
    checkpoint_s: float = 1800.0


PARTS = {
    "lyra-none": Lyra(loan=False, elastic=False),
    "lyra-loan": Lyra(elastic=False),
    "lyra-elastic": Lyra(loan=False),
    "lyra": Lyra(),
}


def reclaim(jobs_on: Mapping[int, Mapping[int, int]], count: int) -> tuple[list[int], list[int]]:
    """(servers to give back, jobs to stop), each in the order chosen.

    `jobs_on`: for each server on loan, GPUs by job; `count`: servers wanted, at most as many as there are. Servers that
    are empty, or become so, count.
    """
    assert 0 <= count <= len(jobs_on)
    lent = {server: dict(entry) for server, entry in jobs_on.items()}
    spans: dict[int, set[int]] = {}
    for server, entry in lent.items():
        for job in entry:
            spans.setdefault(job, set()).add(server)
    chosen: list[int] = []
    stopped: list[int] = []
    for _ in range(count):
        server = min(
            lent, key=lambda s: (sum(1.0 / len(spans[job]) for job in lent[s]), sum(lent[s].values()), s)
        )  # an empty one costs nothing
        for job in list(lent[server]):
            stopped.append(job)
            for other in spans.pop(job):
                del lent[other][job]
        del lent[server]
        chosen.append(server)
    return chosen, stopped


def next_to_start(heads: Iterable[tuple[float, float, int, int]], fits: Callable[[int], bool]) -> int | None:
    """The job to start next, or None. `heads`: (remaining s, submitted s, job, GPUs), the first of each size."""
    best: tuple[float, float, int, int] | None = None
    for head in heads:
        if (best is None or head < best) and fits(head[3]):
            best = head
    return None if best is None else best[2]


def extra_workers(values: Sequence[Sequence[float]], room: int) -> list[int]:
    """How many more GPUs each job gets: at most `room` in all, the most value. One item of each group, or none.

    `values[i][k - 1]`: seconds that job i saves with k more. Dynamic programme, O(room x sum of ranges).
    """
    unbounded = [_first_best(group) for group in values]
    if sum(unbounded) <= room:
        return unbounded
    best = np.zeros(room + 1)
    choices = []
    for group in values:
        most = min(len(group), room)
        item = np.zeros(most + 1)  # item[k]: value of k more
        item[1:] = group[:most]
        before = sliding_window_view(np.concatenate([np.full(most, -np.inf), best]), most + 1)  # [f, most - k]
        totals = before[:, ::-1] + item
        choice = totals.argmax(axis=1)  # the fewest of equals
        best = totals[np.arange(room + 1), choice]
        choices.append(choice)
    gpus_to_deal = int(best.argmax())
    result = [0] * len(values)
    for at in range(len(values) - 1, -1, -1):
        result[at] = int(choices[at][gpus_to_deal])
        gpus_to_deal -= result[at]
    return result


def _first_best(group: Sequence[float]) -> int:
    best, at = 0.0, 0
    for k, value in enumerate(group, 1):
        if value > best:
            best, at = value, k
    return at


POLICIES = tuple(
    Traits(
        name=name,
        asks="lines",
        loop="loans",
        capacity=frozenset({"own", "loaned"}) if parts.loan else frozenset({"own"}),
    )
    for name, parts in PARTS.items()
)
