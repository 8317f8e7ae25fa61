"""Serving on spot machines, played: requests, notices, losses and new machines on one clock, under one of three rules.

spotserve   on a notice or a new machine the layout that suits what will be left; batches go on until the last moment
            that leaves time to migrate before the machine goes; GPUs take positions by Kuhn-Munkres, layers come one
            by one, and a batch whose cache moved goes on where it was; from storage where nobody has a layer any more
reroute     the layout of one replica never changes; a loss takes the replicas on that machine, whose requests start
            again on others; spare machines make new replicas, which load their weights from storage
restart     the layout is chosen as by spotserve, but everything stops, loads from storage and starts again

A machine launches when it comes, beside those that serve; what has served launches again where it loads from storage.
A migration takes only from machines that are there until its end, and every GPU has its part of its machine's network.

A state machine on `engine.events`: `handle(now_ns, event) -> actions`. Of one time: what is learnt of machines, stop,
going on, all else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from windtunnel.physics.engine.machine import At, Cancel, run
from windtunnel.studies.serving.spot.dispatch import Queue
from windtunnel.studies.serving.spot.mapping import Position, map_positions, positions_of
from windtunnel.studies.serving.spot.models import Machine, SpotModel, choices_of
from windtunnel.studies.serving.spot.reconfigure import Choice, choose, migrate, receipts
from windtunnel.studies.serving.spot.state import (
    NS,
    PLACES,
    TRAITS,
    Batch,
    Change,
    Move,
    Policy,
    Replica,
    ServerRules,
    SpotEvent,
    SpotOutcome,
    Traits,
)

RATE_WINDOW_S = 30.0  # over which arrivals are counted, and in which a queue should be gone, when a layout is chosen
LEARN, STOP, RESUME = -3, -2, -1  # of one time, in this order; then losses, ends and arrivals
NEVER_NS = 1 << 62
WORTH = 1.2  # throughput gained for which the load alone changes a layout, no more often than once in RATE_WINDOW_S


@final
@dataclass(eq=False)
class SpotServing:
    """The state machine."""

    model: SpotModel
    machine: Machine
    traits: Traits
    arrivals_s: Sequence[float]
    grace_s: float = 30.0
    first: Sequence[int] = ()  # machines that are there and loaded at the start
    leaves_ns: Mapping[int, int] = field(default_factory=dict)  # machine -> when it goes, if not a grace after notice
    rules: ServerRules = field(default_factory=ServerRules)
    usable: set[int] = field(default_factory=set)  # alive and without notice
    never: set[int] = field(default_factory=set)  # got notice before they were launched
    doomed: dict[int, int] = field(default_factory=dict)  # machine -> ns at which it goes
    ended_ns: dict[int, int] = field(default_factory=dict)
    layout: Choice | None = None
    positions: dict[int, Position] = field(default_factory=dict)  # GPU (machine x PLACES + place) -> position
    replicas: dict[int, Replica] = field(default_factory=dict)
    has_served: set[int] = field(default_factory=set)  # machines that launch again where they load from storage
    move: Move | None = None  # between stop and resume; batches that are carried stay with their old replicas
    stopped_ns: int = -1
    reconfigurations: int = 0
    recomputed: int = 0
    moved: float = 0.0
    paused_s: float = 0.0
    loaded: int = 0
    _recent: deque[int] = field(default_factory=deque)
    _next_replica: int = 0
    _settled_ns: int = 0
    _choices: list[Choice] = field(default_factory=list)
    _choices_for: int = 0

    def __post_init__(self) -> None:
        self.queue = Queue(self.rules)
        self.usable = set(self.first)
        span = max(self.arrivals_s[-1], 1.0) if self.arrivals_s else 1.0
        self._usual_rate = len(self.arrivals_s) / span
        self.layout = self._choose(len(self.usable), 0)
        if self.layout is not None:
            self._install(self.layout, dict(zip(self._gpus(), positions_of(self.layout.layout), strict=False)), {})

    # ------------------------------------------------------------------------------------------------ the events

    def handle(self, now_ns: int, event: SpotEvent) -> list[At[SpotEvent] | Cancel]:
        """What follows from one event; nothing where all are answered: what machines do then is not the policy's."""
        actions: list[At[SpotEvent] | Cancel] = []
        if len(self.ended_ns) == len(self.arrivals_s):
            return actions
        if event.kind == "arrive":
            self.queue.put(event.which)
            self._recent.append(now_ns)
            self._watch_load(now_ns, actions)
        elif event.kind == "done":
            replica = self.replicas[event.which]
            assert replica.batch is not None
            for request in replica.batch.requests:
                self.ended_ns[request] = now_ns
            replica.batch = None
        elif event.kind == "open":
            if event.which in self.replicas:
                self.replicas[event.which].open = True
        elif event.kind == "notice":
            self._noticed(now_ns, event.which, actions)
        elif event.kind == "gone":
            self._machine_gone(now_ns, event.which, actions)
        elif event.kind == "ready":
            if event.which not in self.never:
                self.usable.add(event.which)
                self._came(now_ns, actions)
        elif event.kind == "stop":
            if self.move is None:
                self._migrate(now_ns, actions)
        else:
            self._resume(now_ns, actions)
        self._start(now_ns, actions)
        return actions

    def _watch_load(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        """SpotServe changes its layout for the load as well: where the queue outgrows what the layout can do."""
        if self.rules.plan is not None or not self.traits.migrates or self.move is not None:
            return
        if self.layout is None or self._leaves_ns() < NEVER_NS:
            return
        if now_ns < self._settled_ns or self._rate(now_ns) <= self.layout.throughput_per_s:
            return
        better = self._choose(len(self.usable), now_ns)
        if better is not None and better.throughput_per_s > WORTH * self.layout.throughput_per_s:
            actions.append(At(now_ns, SpotEvent("stop"), STOP, "stop"))

    def _noticed(self, now_ns: int, machine: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        if machine not in self.usable:
            self.never.add(machine)  # not launched yet
            return
        self.usable.discard(machine)
        self.doomed[machine] = self.leaves_ns.get(machine, now_ns + round(self.grace_s * NS))
        actions.append(At(self.doomed[machine], SpotEvent("gone", machine)))
        if not self.traits.migrates:
            return
        if self.move is None:
            self._stop_in_time(now_ns, actions)
        elif not self._can_end(self.move):
            self._migrate(now_ns, actions)

    def _machine_gone(self, now_ns: int, machine: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        hit = self._touches(machine)
        self.doomed.pop(machine, None)
        self.positions = {gpu: at for gpu, at in self.positions.items() if gpu // PLACES != machine}
        for number, replica in list(self.replicas.items()):
            if machine in replica.machines:
                self._interrupt(now_ns, number, actions)
                del self.replicas[number]
        if self.move is not None:
            if machine in self.move.machines:  # of spotserve's moves only one that began anew at its notice
                self._from_storage(now_ns, actions)
        elif hit and self.traits.adds_replicas:
            self._more_replicas(now_ns, actions)
        elif hit and not self.traits.migrates:
            self._from_storage(now_ns, actions)
        elif hit:  # no layout was found in time
            self._migrate(now_ns, actions)

    def _came(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        if self.move is not None:
            if now_ns == self.move.begun_ns and self.move.from_storage:
                self._from_storage(now_ns, actions)  # machines that come together load together
            return  # else spotserve looks again when it goes on
        if self.layout is None:
            self._from_storage(now_ns, actions)
        elif self.traits.adds_replicas:
            self._more_replicas(now_ns, actions)
        elif self.traits.migrates and self._leaves_ns() < NEVER_NS:
            self._stop_in_time(now_ns, actions)
        else:
            better = self._choose(len(self.usable), now_ns)
            if better is None or (better.layout, better.batch) == (self.layout.layout, self.layout.batch):
                return
            if self.traits.migrates:
                actions.append(At(now_ns, SpotEvent("stop"), STOP, "stop"))
            elif self.rules.plan is not None or self.layout.throughput_per_s < self._rate(now_ns):
                self._from_storage(now_ns, actions)

    # -------------------------------------------------------------------------------------- stopping and going on

    def _stop_in_time(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        """Stop so that all is over before the first machine that serves goes, were every cache full by then."""
        plan, first = self._choose(len(self.usable), now_ns), self._leaves_ns()
        if plan is None or self.layout is None or first == NEVER_NS:
            return
        full = self.layout.batch * (self.model.prompt + self.model.output) * self.model.kv_token_bytes
        move = self._move(now_ns, plan, dict.fromkeys(self.replicas, full))
        actions.append(At(max(now_ns, first - (move.done_ns - now_ns)), SpotEvent("stop"), STOP, "stop"))

    def _migrate(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        """SpotServe's migration begins, or begins anew because a machine that it needs will go."""
        plan = self._choose(len(self.usable), now_ns)
        if plan is None:
            self._without_layout(now_ns, actions)
            return
        if not self.positions:
            self._from_storage(now_ns, actions)
            return
        cached = {}
        for number, replica in self.replicas.items():
            batch = replica.batch
            if batch is None:
                continue
            batch.tokens = batch.now(now_ns, self.model.output)
            batch.token_s = -1.0
            if batch.tokens:
                batch.prompt_s = 0.0
                cached_tokens = len(batch.requests) * (self.model.prompt + batch.tokens)
                cached[number] = cached_tokens * self.model.kv_token_bytes
        move = self._move(now_ns, plan, cached)
        while late := [n for n in move.carried if not self._there_at(self.replicas[n].machines, move.done_ns)]:
            for number in late:
                del cached[number]
            move = self._move(now_ns, plan, cached)
        if not self._can_end(move):
            self._from_storage(now_ns, actions)
            return
        for number in sorted(self.replicas):
            if number in move.carried:
                self.queue.take_back(self.replicas[number])
                actions.append(Cancel(("done", number)))
            else:
                self._interrupt(now_ns, number, actions)
        self._pause(now_ns, move, actions)

    def _from_storage(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        """Everything loads from storage again."""
        plan = self._choose(len(self.usable), now_ns)
        if plan is None:
            self._without_layout(now_ns, actions)
            return
        for number in sorted(self.replicas):
            self._interrupt(now_ns, number, actions)
        self.positions = {}
        targets = dict(zip(self._gpus(), positions_of(plan.layout), strict=False))
        end = now_ns + round(self._load_s(plan, {gpu // PLACES for gpu in targets}) * NS)
        machines = frozenset(self.usable)
        self._pause(now_ns, Move(plan, targets, {}, now_ns, end, end, 0.0, machines, True), actions)

    def _pause(self, now_ns: int, move: Move, actions: list[At[SpotEvent] | Cancel]) -> None:
        self.move = move
        self.stopped_ns = now_ns if self.stopped_ns < 0 else self.stopped_ns
        actions += [Cancel("stop"), At(move.serving_ns, SpotEvent("resume"), RESUME, "resume")]

    def _without_layout(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        """Too few machines for any layout: what serves goes on until it is lost; then all wait for machines."""
        if self.move is None and self.replicas:
            return
        for number in sorted(self.replicas):
            self._interrupt(now_ns, number, actions)
        if self.move is not None:
            actions.append(Cancel("resume"))
            self._go_on(now_ns)
        actions.append(Cancel("stop"))
        self.layout, self.replicas, self.positions = None, {}, {}

    def _go_on(self, now_ns: int) -> None:
        self.paused_s += (now_ns - self.stopped_ns) / NS
        self.stopped_ns, self.move = -1, None

    def _resume(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        move = self.move
        assert move is not None, "goes on without having stopped"
        self._go_on(now_ns)
        self.moved += move.moved_bytes
        self._install(move.plan, move.targets, {rank: self.replicas[n].batch for n, rank in move.carried.items()})
        self._settled_ns = now_ns + round(RATE_WINDOW_S * NS)
        self.reconfigurations += 1
        if not self.traits.migrates:
            return
        if self._leaves_ns() < NEVER_NS:
            self._stop_in_time(now_ns, actions)
        elif self.usable - move.usable:
            self._came(now_ns, actions)

    def _install(self, plan: Choice, targets: dict[int, Position], batches: Mapping[int, Batch | None]) -> None:
        """Replicas of a layout; batches that were carried go on, by data rank."""
        self.layout, self.positions, self.replicas = plan, targets, {}
        for rank in range(plan.layout[0]):
            machines = frozenset(gpu // PLACES for gpu, at in targets.items() if at[0] == rank)
            self.replicas[self._next_replica] = Replica(machines, rank, True, batches.get(rank))
            self.has_served |= machines
            self._next_replica += 1

    def _start(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        if self.move is not None or self.layout is None:
            return
        _, pipeline, tensor = self.layout.layout
        for number, requests in self.queue.hand_out(self.replicas, self.layout.batch):
            prompt_s = self.model.prompt_s(pipeline, tensor, len(requests))
            self.replicas[number].batch = Batch(requests, now_ns, prompt_s, -1.0, 0)
        for number, replica in self.replicas.items():
            batch = replica.batch
            if replica.open and batch is not None and batch.token_s < 0.0:
                batch.begun_ns = now_ns
                batch.token_s = self.model.token_s(pipeline, tensor, len(batch.requests))
                left = batch.prompt_s + batch.token_s * (self.model.output - batch.tokens)
                actions.append(At(now_ns + round(left * NS), SpotEvent("done", number), key=("done", number)))

    def _interrupt(self, now_ns: int, number: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        self.queue.take_back(self.replicas[number])
        batch = self.replicas[number].batch
        if batch is not None:
            self.recomputed += batch.now(now_ns, self.model.output) * len(batch.requests)
            self.queue.put(*batch.requests)
            self.replicas[number].batch = None
            actions.append(Cancel(("done", number)))

    def _more_replicas(self, now_ns: int, actions: list[At[SpotEvent] | Cancel]) -> None:
        """Re-routing: replicas out of machines that serve none, several on one where they are smaller than it."""
        if self.layout is None:
            return
        size, gpus = self.layout.replica_gpus, self.machine.gpus
        need, each = -(-size // gpus), max(1, gpus // size)
        busy = {m for replica in self.replicas.values() for m in replica.machines}
        free = sorted(self.usable - busy)
        while len(free) >= need:
            machines, free = frozenset(free[:need]), free[need:]
            opens = now_ns + round(self._load_s(self.layout, machines) * NS)
            for _ in range(each):
                self.replicas[self._next_replica] = Replica(machines, open=False)
                actions.append(At(opens, SpotEvent("open", self._next_replica)))
                self._next_replica += 1
                self.loaded += 1
            self.has_served |= machines

    # ------------------------------------------------------------------------------------------------- what it costs

    def _choose(self, machines: int, now_ns: int) -> Choice | None:
        gpus = machines * self.machine.gpus
        if self.rules.plan is not None:
            return self.rules.plan(gpus)
        if gpus > self._choices_for:
            self._choices, self._choices_for = list(choices_of(self.model, gpus)), gpus
        fits = (lambda choice: True) if not self.traits.adds_replicas else self._whole_machines
        return choose(self._choices, gpus, self._rate(now_ns), fits)

    def _whole_machines(self, choice: Choice) -> bool:
        """Re-routing shares no machine between replicas that have others too."""
        size, gpus = choice.replica_gpus, self.machine.gpus
        return size % gpus == 0 or gpus % size == 0

    def _rate(self, now_ns: int) -> float:
        while self._recent and self._recent[0] < now_ns - RATE_WINDOW_S * NS:
            self._recent.popleft()
        return max(self._usual_rate, (len(self._recent) + len(self.queue)) / RATE_WINDOW_S)

    def _gpus(self) -> list[int]:
        return [m * PLACES + place for m in sorted(self.usable) for place in range(self.machine.gpus)]

    def _touches(self, machine: int) -> bool:
        """Whether a machine serves."""
        return any(machine in replica.machines for replica in self.replicas.values())

    def _leaves_ns(self) -> int:
        """When the first machine that serves goes; NEVER_NS where none is known to."""
        return min((at for machine, at in self.doomed.items() if self._touches(machine)), default=NEVER_NS)

    def _there_at(self, machines: Collection[int], at_ns: int) -> bool:
        """Whether these are known to be there until then."""
        return all(self.doomed.get(machine, NEVER_NS) >= at_ns for machine in machines)

    def _can_end(self, move: Move) -> bool:
        """Whether every machine that a move needs is there until its end, and somebody has every layer until then."""
        needed = {machine for number in move.carried for machine in self.replicas[number].machines} | move.machines
        if not self._there_at(needed, move.done_ns):
            return False
        if move.from_storage:
            return True
        assert self.layout is not None
        slices = {at[1:] for gpu, at in self.positions.items() if self._there_at((gpu // PLACES,), move.done_ns)}
        return len(slices) == self.layout.replica_gpus

    def _move(self, now_ns: int, plan: Choice, cached: Mapping[int, float]) -> Move:
        """Going over to `plan` now, with the fullest caches of these, bytes by replica."""
        assert self.layout is not None
        old, new, model = self.layout.layout, plan.layout, self.model
        fullest = sorted(cached, key=lambda number: (-cached[number], number))[: new[0]]
        carried = {number: rank for rank, number in enumerate(sorted(fullest))}
        cache = [0.0] * old[0]
        for number in carried:
            cache[self.replicas[number].rank] = cached[number]
        ranks = {self.replicas[number].rank: rank for number, rank in carried.items()}
        gpus = self._gpus()
        old_positions = [self.positions.get(gpu) for gpu in gpus]
        migration = map_positions(old_positions, old, new, model.weight_bytes, cache, ranks)
        received = receipts(migration, old_positions, old, new, model.layers, model.weight_bytes)
        pass_s = model.token_s(new[1], new[2], 1)
        schedule = migrate(received, self.machine.network_bytes_per_s / self.machine.gpus, pass_s / model.layers)
        return Move(
            plan,
            {gpus[place]: at for place, at in zip(migration.gpu_of, migration.positions, strict=True)},
            carried,
            now_ns,
            now_ns + round(schedule.serving_s * NS),
            now_ns + round(schedule.done_s * NS),
            migration.moved_bytes,
            frozenset(self.usable),
        )

    def _load_s(self, plan: Choice, machines: Collection[int]) -> float:
        """The weights of a machine's GPUs from storage, after a launch where processes are left from before."""
        of_gpu = self.model.weight_bytes / plan.replica_gpus
        launch_s = self.machine.launch_s if self.has_served & set(machines) else 0.0
        return launch_s + self.machine.gpus * of_gpu / self.machine.storage_bytes_per_s


def play(
    model: SpotModel,
    machine: Machine,
    policy: Policy,
    arrivals_s: Sequence[float],
    changes: Sequence[Change],
    machines: int,
    grace_s: float = 30.0,
    horizon_s: float = 4 * 3600.0,
    rules: ServerRules | None = None,
) -> SpotOutcome:
    """All requests through one policy. `machines` are there at the start: 0, 1, ...; `changes` name others or these."""
    leaves = {change.machine: round(change.gone_s * NS) for change in changes if change.gone_s is not None}
    serving = SpotServing(
        model, machine, TRAITS[policy], arrivals_s, grace_s, tuple(range(machines)), leaves, rules or ServerRules()
    )
    start = [At(round(at * NS), SpotEvent("arrive", number)) for number, at in enumerate(arrivals_s)]
    for change in changes:
        at = change.at_s + (machine.launch_s if change.comes else 0.0)  # a new machine launches beside those that serve
        start.append(At(round(at * NS), SpotEvent("ready" if change.comes else "notice", change.machine), LEARN))
    run(serving.handle, start, until_ns=round(horizon_s * NS))
    latency = tuple(
        serving.ended_ns[number] / NS - at if number in serving.ended_ns else float("inf")
        for number, at in enumerate(arrivals_s)
    )
    return SpotOutcome(
        latency, serving.reconfigurations, serving.recomputed, serving.moved, serving.paused_s, serving.loaded
    )
