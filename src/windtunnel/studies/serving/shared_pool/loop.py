"""The event loop of a pool: arrivals of every model, steps of every replica, machines that come and go, on one clock.

    order at one time    steps end, machines go, machines come, replicas are ready, scalers look, requests arrive

A spot group that loses GPUs says so `notice` before: the replicas that started last take no more requests, and are lost
at the time itself; what they had not finished goes to other replicas, which compute its prompt and its tokens so far
again. A request that finds no replica waits for the first that is ready. Scaled-down replicas finish what they have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final

from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.disaggregated.pools import Pools
from windtunnel.studies.serving.disaggregated.units import Unit, unfinished
from windtunnel.studies.serving.loop import Loop, Rejection, rejected
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.routing import ROUTERS
from windtunnel.studies.serving.shared_pool.scaling import Scaler
from windtunnel.studies.serving.shared_pool.spec import Pool, PooledDeployment
from windtunnel.studies.serving.workload.clients import client_of

STEP, LOST, NOTICED, GAINED, READY, LOOK, ARRIVAL = range(7)


@dataclass(eq=False)
class Instance:
    """One replica over its life. Times in ns; `gone_ns` is `NEVER` while it is there."""

    model: int
    group: str
    engine: Engine | Pools
    replica: Unit
    born_ns: int
    ready_ns: int
    number: int
    leaving: bool = False
    gone_ns: int = NEVER

    @property
    def serving(self) -> bool:
        """Whether it takes requests."""
        return not self.leaving and self.gone_ns == NEVER and self.ready_ns >= 0


@dataclass(eq=False)
class Run:
    """What came of one model."""

    sent: list[Sequence] = field(default_factory=list)
    refused: list[Rejection] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    moved: int = 0  # requests that lost their machine and went on elsewhere
    lost_replicas: int = 0
    counts: list[tuple[int, int, int]] = field(default_factory=list)  # (ns, serving, starting), at each change


@final
class SharedPool:
    """A pool that runs."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.runs = [Run() for _ in pool.models]
        self.now_ns = 0
        self._loop = Loop(self._ended)
        self._gpus = {name: group.gpus[0][1] for name, group in pool.groups.items()}  # to place on
        self._starting: set[int] = set()  # numbers of instances
        self._clients = [client_of(model.workload) for model in pool.models]
        self._routers = [ROUTERS[model.router]() for model in pool.models]
        self._scalers = [None if model.scaling is None else Scaler(model.scaling) for model in pool.models]
        self._homeless: list[deque[Sequence]] = [deque() for _ in pool.models]
        self._names = [
            model.workload.names_in(next(iter(model.engines.values())).rules.block_size) for model in pool.models
        ]
        self._left = sum(len(model.workload) for model in pool.models)  # requests that have not ended
        self._changed_ns = 0  # when something other than a look happened last
        self._instances: list[Instance] = []

    def run(self) -> list[Run]:
        """Until every request has ended, or none can go on."""
        for name, group in self.pool.groups.items():
            for (_, before), (at, after) in zip(group.gpus, group.gpus[1:], strict=False):
                if after < before:
                    self._at(max(0, at - group.notice_ns), NOTICED, partial(self._notice, name, after))
                    self._at(at, LOST, partial(self._lose, name, after))
                else:
                    self._at(at, GAINED, partial(self._gain, name, after))
        for model in range(len(self.pool.models)):
            for at, index in self._clients[model].start():
                self._at(at, ARRIVAL, partial(self._arrive, model, index))
            scaler = self._scalers[model]
            if scaler is not None:
                self._loop.at(scaler.rules.every_ns, partial(self._look, model, scaler), LOOK)
        self._fill(first=True)
        rules = [scaler.rules for scaler in self._scalers if scaler is not None]
        settled_ns = max((rule.idle_ns + 2 * rule.every_ns for rule in rules), default=0)
        loop = self._loop
        while self._left and len(loop.events):
            loop.step()
            if len(loop.events) == len(rules) and loop.events.now_ns - self._changed_ns > settled_ns:
                break  # every scaler has seen nothing new for as long as it remembers: what waits finds no machine
        return self.runs

    def _at(self, at_ns: int, kind: int, happens: Callable[[], None]) -> None:
        """Something other than a look happens then."""

        def action(now_ns: int) -> None:
            self.now_ns = self._changed_ns = now_ns
            happens()

        self._loop.at(at_ns, action, kind)

    def _ended(self, now_ns: int, place: int, finished: list[Sequence]) -> None:
        self.now_ns = self._changed_ns = now_ns
        instance = self._instances[place]
        for ended in finished:
            self._left -= 1
            self._answered(instance.model, ended.index)
        if instance.leaving and instance.replica.load == 0:
            self._end(instance)
            self._fill()

    def _gain(self, group: str, gpus: int) -> None:
        self._gpus[group] = gpus
        self._fill()

    # ------------------------------------------------------------------------------------------------- requests

    def _arrive(self, model: int, index: int) -> None:
        served, run = self.pool.models[model], self.runs[model]
        load, (names, span) = served.workload, self._names[model]
        prompt, output = int(load.input_tokens[index]), int(load.output_tokens[index])
        longest = max(engine.longest for engine in served.engines.values())
        if prompt + output > longest:
            run.refused.append(rejected(index, prompt, output, longest))
            self._left -= 1
            self._answered(model, index)
            return
        sequence = Sequence(index, prompt, output, self.now_ns, names[index] if names is not None else (), span)
        run.sent.append(sequence)
        self._send(model, sequence)

    def _send(self, model: int, sequence: Sequence) -> None:
        size = sequence.prompt + sequence.output
        able = [other for other in self.runs[model].instances if self._takes(other) and other.engine.longest >= size]
        if not able:
            self._homeless[model].append(sequence)
            return
        place = self._routers[model].choose(sequence, [other.replica for other in able])
        able[place].replica.submit(sequence, self.now_ns)
        self._loop.watch(able[place].number)

    def _takes(self, instance: Instance) -> bool:
        return instance.serving and instance.number not in self._starting

    def _answered(self, model: int, index: int) -> None:
        for at, following in self._clients[model].answered(index, self.now_ns):
            self._at(at, ARRIVAL, partial(self._arrive, model, following))

    # ------------------------------------------------------------------------------------------------- replicas

    def _wanted(self, model: int) -> int:
        scaler = self._scalers[model]
        return self.pool.models[model].replicas if scaler is None else scaler.wanted

    def _used(self, group: str) -> int:
        here = (instance for instance in self._instances if instance.group == group and instance.gone_ns == NEVER)
        return sum(instance.engine.gpus for instance in here)

    def _fill(self, first: bool = False) -> None:
        """Start what is wanted and has room: models and groups in their order."""
        for model, served in enumerate(self.pool.models):
            there = [instance for instance in self.runs[model].instances if instance.serving]
            lacking = self._wanted(model) - len(there)
            for group in served.engines:
                while lacking > 0 and self._used(group) + served.gpus <= self._gpus[group]:
                    self._start(model, served, group, first)
                    lacking -= 1

    def _start(self, model: int, served: PooledDeployment, group: str, first: bool) -> None:
        engine = served.engines[group]
        replica = engine.replica()
        number = self._loop.add(replica, STEP)
        ready = self.now_ns if first else self.now_ns + served.startup_ns
        instance = Instance(model, group, engine, replica, self.now_ns, ready, number)
        self._instances.append(instance)
        self.runs[model].instances.append(instance)
        self._starting.add(number)
        if first:
            self._ready(instance)
        else:
            self._at(ready, READY, partial(self._ready, instance))
        self._count(model)

    def _ready(self, instance: Instance) -> None:
        self._starting.discard(instance.number)
        if instance.gone_ns < NEVER:
            return
        if instance.leaving:
            self._end(instance)
            self._fill()
            return
        self._count(instance.model)
        waiting = self._homeless[instance.model]
        for _ in range(len(waiting)):
            self._send(instance.model, waiting.popleft())

    def _look(self, model: int, scaler: Scaler, now_ns: int) -> None:
        self.now_ns = now_ns
        run = self.runs[model]
        load = len(self._homeless[model]) + sum(
            instance.replica.load for instance in run.instances if instance.gone_ns == NEVER
        )
        wanted = scaler.look(self.now_ns, load)
        there = [instance for instance in run.instances if instance.serving]
        for instance in sorted(there, key=lambda instance: (instance.number not in self._starting, -instance.number))[
            : len(there) - wanted
        ]:
            self._leave(instance)
        self._fill()
        self._loop.at(now_ns + scaler.rules.every_ns, partial(self._look, model, scaler), LOOK)

    def _leave(self, instance: Instance) -> None:
        instance.leaving = True
        if instance.replica.load == 0:
            self._end(instance)
        self._count(instance.model)

    def _end(self, instance: Instance) -> None:
        instance.gone_ns = self.now_ns
        self._loop.put(instance.number, None)
        self._starting.discard(instance.number)
        self._count(instance.model)

    def _notice(self, group: str, gpus: int) -> None:
        """GPUs will go: the replicas that started last are to be empty by then, and nothing new is placed on them."""
        self._gpus[group] = min(self._gpus[group], gpus)
        for instance in self._too_many(group, gpus):
            self._leave(instance)
        self._fill()

    def _too_many(self, group: str, gpus: int) -> list[Instance]:
        """Those beyond `gpus`: the ones that leave already, then the last that started."""
        here = [instance for instance in self._instances if instance.group == group and instance.gone_ns == NEVER]
        here.sort(key=lambda instance: (not instance.leaving, -instance.number))
        used, surplus = sum(instance.engine.gpus for instance in here), []
        for instance in here:
            if used <= gpus:
                break
            used -= instance.engine.gpus
            surplus.append(instance)
        return surplus

    def _lose(self, group: str, gpus: int) -> None:
        self._gpus[group] = gpus
        homeless: list[tuple[int, Sequence]] = []
        for instance in self._too_many(group, gpus):
            run = self.runs[instance.model]
            sequences = unfinished(instance.replica, self.now_ns)
            homeless += [(instance.model, other) for other in sequences]
            run.moved += len(sequences)
            run.lost_replicas += 1
            self._end(instance)
        for model, other in homeless:
            self._send(model, other)
        self._fill()

    def _count(self, model: int) -> None:
        run = self.runs[model]
        serving = sum(self._takes(instance) for instance in run.instances)
        starting = sum(instance.number in self._starting and not instance.leaving for instance in run.instances)
        point = (self.now_ns, serving, starting)
        if run.counts and run.counts[-1][0] == self.now_ns:
            run.counts[-1] = point
        else:
            run.counts.append(point)
