"""Many small models on few GPUs, played: DistMind's pool of weights against fixed places and against cold starts.

pool    (DistMind) a GPU has one model at a time; a request goes to a GPU that has its model and a short queue, else to
        the GPU idle longest, which loads it in three overlapped stages, else it waits; the host keeps the models used
        last, and what it keeps needs no network
fixed   (processes under MPS) model m lives on GPU m modulo GPUs and nowhere else
cold    (Ray) as `pool`, but a model that is not there starts a process and loads whole, stage after stage

A state machine on `engine.events`. Closed-loop clients keep a number of requests in flight; an open loop has arrivals.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np

from windtunnel.physics.engine.machine import At, run
from windtunnel.studies.serving.weight_pool.loads import MOST_BACKLOG, Holder, first_answer_s, route

System = Literal["pool", "fixed", "cold"]
NS = 1e9


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model as a server sees it: what it weighs, what a request computes, in how many batches of layers it loads."""

    name: str
    weight_bytes: float
    compute_s: float
    parts: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """GPU servers of one GPU each, and what joins them to the memory servers."""

    gpus: int
    network_bytes_per_s: float = 12.5e9 * 0.9
    pcie_bytes_per_s: float = 12e9
    host_cache_bytes: float = 8e9
    process_s: float = 6.0  # of a cold start: process, framework, CUDA context


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    """By request, in the order in which they were sent; infinite where it was still under way at the end."""

    latency_s: tuple[float, ...]
    ended_s: tuple[float, ...]
    loads: int
    host_hits: int

    def rate_per_s(self, begin_s: float, end_s: float) -> float:
        """Requests that ended between two times, per second."""
        return sum(begin_s <= at < end_s for at in self.ended_s) / (end_s - begin_s)


@dataclass(eq=False, slots=True)
class _Gpu:
    holds: int = -1
    queue: deque[tuple[int, int]] = field(default_factory=deque)  # (request, model)
    busy: bool = False
    idle_since_ns: int = 0
    host: OrderedDict[int, float] = field(default_factory=OrderedDict)  # models in host memory, last used last


@final
class _Machine:
    def __init__(self, system: System, servers: Servers, models: Sequence[SmallModel], model_of: Sequence[int]) -> None:
        self.system, self.servers, self.models, self.model_of = system, servers, models, model_of
        self.gpus = [_Gpu() for _ in range(servers.gpus)]
        self.waiting: dict[int, deque[int]] = {}  # by model
        self.sent_ns: dict[int, int] = {}
        self.ended_ns: dict[int, int] = {}
        self.loads = self.hits = 0
        self.following = len(model_of)  # next request of a closed loop; all are sent where it is open

    def handle(self, now_ns: int, event: tuple[str, int]) -> list[At[tuple[str, int]]]:
        """`("sent", request)` or `("done", gpu)`."""
        kind, which = event
        actions: list[At[tuple[str, int]]] = []
        if kind == "sent":
            self.sent_ns[which] = now_ns
            self.waiting.setdefault(self.model_of[which], deque()).append(which)
        else:
            gpu = self.gpus[which]
            request, _ = gpu.queue.popleft()
            self.ended_ns[request] = now_ns
            gpu.busy = False
            gpu.idle_since_ns = now_ns
            if self.following < len(self.model_of):
                actions.append(At(now_ns, ("sent", self.following)))
                self.following += 1
        self._place()
        for place, gpu in enumerate(self.gpus):
            if gpu.queue and not gpu.busy:
                gpu.busy = True
                actions.append(At(now_ns + round(NS * self._spent_s(gpu, gpu.queue[0][1])), ("done", place)))
        return actions

    def _place(self) -> None:
        """Give waiting requests to GPUs, the oldest first; one that finds no GPU holds up its own model only."""
        holders = [self._seen(gpu) for gpu in self.gpus]
        for model in sorted(self.waiting, key=lambda m: self.waiting[m][0]):
            line = self.waiting[model]
            while line and (place := self._route(model, holders)) is not None:
                self.gpus[place].queue.append((line.popleft(), model))
                holders[place] = self._seen(self.gpus[place])
            if not line:
                del self.waiting[model]

    def _route(self, model: int, holders: list[Holder]) -> int | None:
        return model % len(self.gpus) if self.system == "fixed" else route(str(model), holders, MOST_BACKLOG)

    @staticmethod
    def _seen(gpu: _Gpu) -> Holder:
        """A GPU as the router sees it: with the model that it will have when a new request's turn comes."""
        holds = gpu.queue[-1][1] if gpu.queue else gpu.holds
        return Holder(frozenset((str(holds),)), len(gpu.queue), None if gpu.queue else gpu.idle_since_ns / NS)

    def _spent_s(self, gpu: _Gpu, model: int) -> float:
        small_model = self.models[model]
        if self.system == "fixed" or gpu.holds == model:
            gpu.holds = model
            return small_model.compute_s
        self.loads += 1
        gpu.holds = model
        here = model in gpu.host
        self.hits += here
        self._keep(gpu, model)
        parts = small_model.parts
        loaded = first_answer_s(
            [small_model.weight_bytes / parts] * parts,
            [small_model.compute_s / parts] * parts,
            self.servers.network_bytes_per_s,
            self.servers.pcie_bytes_per_s,
            [here] * parts,
            pipelined=self.system == "pool",
        )
        return loaded if self.system == "pool" else self.servers.process_s + loaded

    def _keep(self, gpu: _Gpu, model: int) -> None:
        gpu.host.pop(model, None)
        gpu.host[model] = self.models[model].weight_bytes
        while sum(gpu.host.values()) > self.servers.host_cache_bytes and len(gpu.host) > 1:
            gpu.host.popitem(last=False)


def zipf(models: int, exponent: float, n: int, seed: int) -> list[int]:
    """The model that each of `n` requests asks for: popularity 1 / rank^exponent."""
    weights = (1.0 + np.arange(models)) ** -exponent
    choices = np.random.default_rng(seed).choice(models, n, p=weights / weights.sum())
    return [int(model) for model in choices]


def play_pool(
    system: System,
    servers: Servers,
    models: Sequence[SmallModel],
    model_of: Sequence[int],
    *,
    arrivals_s: Sequence[float] | None = None,
    in_flight: int = 0,
    until_s: float | None = None,
) -> PoolOutcome:
    """Requests for `model_of[i]` through one system: an open loop at `arrivals_s`, or `in_flight` at a time."""
    assert (arrivals_s is None) != (in_flight == 0), "arrivals or a number in flight, not both"
    machine = _Machine(system, servers, models, model_of)
    if arrivals_s is not None:
        start = [At(round(NS * at), ("sent", number)) for number, at in enumerate(arrivals_s)]
    else:
        first = min(in_flight, len(model_of))
        machine.following = first
        start = [At(0, ("sent", number)) for number in range(first)]
    run(machine.handle, start, until_ns=None if until_s is None else round(NS * until_s))
    order = sorted(machine.sent_ns)
    never = float("inf")
    ended = [machine.ended_ns[number] / NS if number in machine.ended_ns else never for number in order]
    latency = [end - machine.sent_ns[number] / NS for number, end in zip(order, ended, strict=True)]
    return PoolOutcome(tuple(latency), tuple(ended), machine.loads, machine.hits)
