"""DistMind's routing and loads: models whose weights lie in a pool of memory servers, GPUs that hold some of them.

    route   the server with the model and the least backlog, if that is under `most_backlog`; else the server that has
            been idle longest, which loads the model; else wait
    load    batches of layers go memory server -> host (network) -> GPU (PCIe) -> compute, each stage busy with one
            batch at a time:   end[i][s] = max(end[i - 1][s], end[i][s - 1]) + time[i][s]
            what the host keeps needs no network

Source: ToN '24. The same formula prices a cold start: the time of the first answer is the end of the last stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_BACKLOG = 8


@dataclass(frozen=True, slots=True)
class Holder:
    """One GPU server as the router sees it."""

    models: frozenset[str]
    backlog: int
    idle_since_s: float | None  # None: busy


def route(model: str, servers: Sequence[Holder], most_backlog: int = MOST_BACKLOG) -> int | None:
    """The server that gets a request; None: it waits. Ties go to the first."""
    able = [place for place, server in enumerate(servers) if model in server.models and server.backlog < most_backlog]
    if able:
        return min(able, key=lambda place: (servers[place].backlog, place))
    idle = [(server.idle_since_s, place) for place, server in enumerate(servers) if server.idle_since_s is not None]
    return min(idle)[1] if idle else None


def first_answer_s(
    layer_bytes: Sequence[float],
    compute_s: Sequence[float],
    network_bytes_per_s: float,
    pcie_bytes_per_s: float,
    on_host: Sequence[bool] = (),
    pipelined: bool = True,
) -> float:
    """Seconds from a request to its answer on a GPU that has to load the model, batches of layers in order."""
    cached = list(on_host) or [False] * len(layer_bytes)
    stages = [
        (0.0 if here else size / network_bytes_per_s, size / pcie_bytes_per_s, compute)
        for size, compute, here in zip(layer_bytes, compute_s, cached, strict=True)
    ]
    if not pipelined:
        return sum(map(sum, stages))
    ends = [0.0, 0.0, 0.0]
    for times in stages:
        at = 0.0
        for place, time in enumerate(times):
            at = max(at, ends[place]) + time
            ends[place] = at
    return ends[-1]
