"""Serving on spot machines, played: requests, notices, losses and new machines on one clock, under one of three rules.

spotserve   on a notice or a new machine the layout that suits what will be left; batches go on until the last moment
            that leaves time to migrate within the grace period; GPUs take positions by Kuhn-Munkres, layers come one
            by one, and a batch whose cache moved goes on where it was
reroute     the layout of one replica never changes; a loss takes the replicas on that machine, whose requests start
            again on others; spare machines make new replicas, which load their weights from storage
restart     the layout is chosen as by spotserve, but everything stops, loads from storage and starts again

A state machine on `engine.events`: `handle(now_ns, event) -> actions`. Requests wait in one queue, in the order of
arrival; those that were interrupted come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from windtunnel.engine.events import At, Cancel, run
from windtunnel.serving.spot.mapping import Layout, Position, map_positions, positions_of
from windtunnel.serving.spot.reconfigure import Choice, choose, migrate
from windtunnel.serving.spot.served import Machine, Served, choices_of

Policy = Literal["spotserve", "reroute", "restart"]
Kind = Literal["arrive", "notice", "gone", "ready", "done", "stop", "resume", "open"]
NS = 1e9
RATE_WINDOW_S = 30.0  # over which arrivals are counted, and in which a queue should be gone, when a layout is chosen
WORTH = 1.2  # throughput gained for which the load alone changes a layout, no more often than once in RATE_WINDOW_S


@dataclass(frozen=True, slots=True)
class Happens:
    """One event: `which` request, machine or replica."""

    kind: Kind
    which: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A machine comes (ready to launch) or gets notice, `at_s` seconds from the start; then gone at `gone_s`, if given.

    A machine comes once: the same name that is there again is another machine.
    """

    at_s: float
    machine: int
    comes: bool
    gone_s: float | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it. Latencies in seconds, by request; infinite where one was never answered."""

    latency_s: tuple[float, ...]
    reconfigurations: int
    recomputed_tokens: int
    moved_bytes: float
    paused_s: float
    replicas_loaded: int = 0  # by re-routing, in place of those that went


@dataclass(eq=False, slots=True)
class _Batch:
    requests: list[int]
    begun_ns: int = 0
    prompt_s: float = 0.0
    token_s: float = 0.0
    tokens: int = 0  # each of them had when this went on

    def now(self, now_ns: int, most: int) -> int:
        """Tokens that each has by now."""
        spent = (now_ns - self.begun_ns) / NS - self.prompt_s
        return min(most, self.tokens + max(0, int(spent / self.token_s))) if self.token_s else self.tokens


@dataclass(eq=False, slots=True)
class _Replica:
    machines: frozenset[int]
    open: bool = True
    batch: _Batch | None = None


@final
@dataclass(eq=False)
class SpotServing:
    """The state machine."""

    model: Served
    machine: Machine
    policy: Policy
    arrivals_s: Sequence[float]
    grace_s: float = 30.0
    first: Sequence[int] = ()  # machines that are there and loaded at the start
    leaves_ns: Mapping[int, int] = field(default_factory=dict)  # machine -> when it goes, if not a grace after notice
    usable: set[int] = field(default_factory=set)  # alive and without notice
    never: set[int] = field(default_factory=set)  # got notice before they were launched
    doomed: dict[int, int] = field(default_factory=dict)  # machine -> ns at which it goes
    waiting: deque[int] = field(default_factory=deque)
    again: deque[int] = field(default_factory=deque)  # interrupted, before all others
    ended_ns: dict[int, int] = field(default_factory=dict)
    layout: Choice | None = None
    held: dict[int, Position] = field(default_factory=dict)  # GPU (machine x 64 + place) -> position
    replicas: dict[int, _Replica] = field(default_factory=dict)
    kept: list[_Batch] = field(default_factory=list)  # batches whose cache moves, between stop and resume
    stopped_ns: int = -1
    reconfigurations: int = 0
    recomputed: int = 0
    moved: float = 0.0
    paused_s: float = 0.0
    loaded: int = 0
    _recent: deque[int] = field(default_factory=deque)
    _next_replica: int = 0
    _settled_ns: int = 0
    _planned: Choice | None = None
    _choices: list[Choice] = field(default_factory=list)
    _choices_for: int = 0

    def __post_init__(self) -> None:
        self.usable = set(self.first)
        span = max(self.arrivals_s[-1], 1.0) if self.arrivals_s else 1.0
        self._usual_rate = len(self.arrivals_s) / span
        self.layout = self._choose(len(self.usable), 0)
        if self.layout is not None:
            self._install(self.layout)

    # ------------------------------------------------------------------------------------------------ the events

    def handle(self, now_ns: int, event: Happens) -> list[At[Happens] | Cancel]:
        """What follows from one event."""
        actions: list[At[Happens] | Cancel] = []
        if event.kind == "arrive":
            self.waiting.append(event.which)
            self._recent.append(now_ns)
            self._watch_load(now_ns, actions)
        elif event.kind == "done":
            replica = self.replicas[event.which]
            assert replica.batch is not None
            for one in replica.batch.requests:
                self.ended_ns[one] = now_ns
            replica.batch = None
        elif event.kind == "open":
            if event.which in self.replicas:
                self.replicas[event.which].open = True
        elif event.kind == "notice":
            self._noticed(now_ns, event.which, actions)
        elif event.kind == "gone":
            self._gone(now_ns, event.which, actions)
        elif event.kind == "ready":
            if event.which not in self.never:
                self.usable.add(event.which)
                self._came(now_ns, actions)
        elif event.kind == "stop":
            self._stop(now_ns, actions)
        else:
            self._resume(now_ns)
        self._start(now_ns, actions)
        return actions

    def _watch_load(self, now_ns: int, actions: list[At[Happens] | Cancel]) -> None:
        """SpotServe changes its layout for the load as well: where the queue outgrows what the layout can do."""
        if self.policy != "spotserve" or self.stopped_ns >= 0 or self.layout is None or self.doomed:
            return
        if now_ns < self._settled_ns or self._rate(now_ns) <= self.layout.throughput_per_s:
            return
        better = self._choose(len(self.usable), now_ns)
        if better is not None and better.throughput_per_s > WORTH * self.layout.throughput_per_s:
            actions.append(At(now_ns, Happens("stop"), key="stop"))

    def _noticed(self, now_ns: int, machine: int, actions: list[At[Happens] | Cancel]) -> None:
        if machine not in self.usable:
            self.never.add(machine)  # not launched yet
            return
        self.usable.discard(machine)
        self.doomed[machine] = self.leaves_ns.get(machine, now_ns + round(self.grace_s * NS))
        actions.append(At(self.doomed[machine], Happens("gone", machine)))
        if self.policy != "spotserve" or self.stopped_ns >= 0 or not self._touches(machine):
            return
        self._planned = self._choose(len(self.usable), now_ns)
        if self._planned is not None:
            leave = min(self.doomed.values()) - round(1.1 * self._migration(now_ns, self._planned)[0] * NS)
            actions.append(At(max(now_ns, leave), Happens("stop"), key="stop"))

    def _gone(self, now_ns: int, machine: int, actions: list[At[Happens] | Cancel]) -> None:
        hit = self._touches(machine)
        self.doomed.pop(machine, None)
        self.held = {gpu: at for gpu, at in self.held.items() if gpu // 64 != machine}
        for number, one in list(self.replicas.items()):
            if machine in one.machines:
                self._interrupt(now_ns, number, actions)
                del self.replicas[number]
        if not hit or self.stopped_ns >= 0:
            return
        if self.policy == "reroute":
            self._more_replicas(now_ns, actions)
        else:  # spotserve comes here where no layout was found in time
            self._restart(now_ns, actions)

    def _came(self, now_ns: int, actions: list[At[Happens] | Cancel]) -> None:
        if self.stopped_ns >= 0:
            return  # the layout after this pause sees it
        if self.layout is None:
            self._restart(now_ns, actions)
        elif self.policy == "reroute":
            self._more_replicas(now_ns, actions)
        else:
            better = self._choose(len(self.usable), now_ns)
            if better is None or (better.layout, better.batch) == (self.layout.layout, self.layout.batch):
                return
            if self.policy == "spotserve":
                self._planned = better
                actions.append(At(now_ns, Happens("stop"), key="stop"))
            elif self.layout.throughput_per_s < self._rate(now_ns):
                self._restart(now_ns, actions)

    # -------------------------------------------------------------------------------------- stopping and going on

    def _stop(self, now_ns: int, actions: list[At[Happens] | Cancel]) -> None:
        """SpotServe's migration begins."""
        plan = self._choose(len(self.usable), now_ns)
        if plan is None or self.layout is None:
            return  # nothing to move to: the loss itself is dealt with
        seconds, moved, kept_of = self._migration(now_ns, plan)
        ends = min(self.doomed.values(), default=1 << 62)
        survives = now_ns + round(seconds * NS) <= ends
        order = sorted(self.replicas)
        self.kept = []
        for place, number in enumerate(order):
            batch = self.replicas[number].batch
            if batch is not None and survives and place in kept_of:
                batch.tokens = batch.now(now_ns, self.model.output)
                batch.prompt_s = 0.0 if batch.tokens else batch.prompt_s
                self.kept.append(batch)
                self.replicas[number].batch = None
                actions.append(Cancel(("done", number)))
            else:
                self._interrupt(now_ns, number, actions)
        self._planned = plan
        self.stopped_ns = now_ns
        self.moved += moved
        actions.append(At(now_ns + round(seconds * NS), Happens("resume"), key="resume"))
        self.replicas = {}

    def _restart(self, now_ns: int, actions: list[At[Happens] | Cancel]) -> None:
        """Everything loads from storage again."""
        for number in sorted(self.replicas):
            self._interrupt(now_ns, number, actions)
        self.replicas, self.kept, self.held = {}, [], {}
        plan = self._choose(len(self.usable), now_ns)
        self.layout = self._planned = plan
        if plan is None:
            return  # until machines come
        self.stopped_ns = now_ns
        actions.append(At(now_ns + round(self._load_s(plan) * NS), Happens("resume"), key="resume"))

    def _resume(self, now_ns: int) -> None:
        self.paused_s += (now_ns - self.stopped_ns) / NS
        self.stopped_ns = -1
        plan = self._planned
        if plan is not None and plan.gpus > self.machine.gpus * len(self.usable):
            plan = self._choose(len(self.usable), now_ns)  # another machine went meanwhile
        if plan is None:
            self.layout, self.replicas = None, {}
            self._drop_kept(0)
            return
        self._install(plan)
        self._settled_ns = now_ns + round(RATE_WINDOW_S * NS)
        self.reconfigurations += 1

    def _install(self, plan: Choice) -> None:
        """Replicas of a layout on the usable machines, GPUs mapped; batches that were kept go on."""
        data = plan.layout[0]
        gpus = self._gpus()
        if self.held and self.layout is not None:
            migration = map_positions(
                [self.held.get(g) for g in gpus], self.layout.layout, plan.layout, self.model.weight_bytes
            )
            self.held = {gpus[g]: at for g, at in zip(migration.gpu_of, positions_of(plan.layout), strict=True)}
        else:
            self.held = dict(zip(gpus, positions_of(plan.layout), strict=False))
        self.layout = plan
        self.replicas = {}
        for d in range(data):
            machines = frozenset(gpu // 64 for gpu, at in self.held.items() if at[0] == d)
            self.replicas[self._next_replica] = _Replica(machines)
            self._next_replica += 1
        if self.policy == "reroute":
            self.held = {}
        self._drop_kept(len(self.replicas))  # machines went during the pause: fewer replicas than were meant
        for replica, batch in zip(self.replicas.values(), self.kept, strict=False):
            replica.batch = batch
            batch.token_s = -1.0  # to be started
        self.kept = []

    def _drop_kept(self, beyond: int) -> None:
        """Batches that find no replica begin again, first of all."""
        for batch in reversed(self.kept[beyond:]):
            self.recomputed += batch.tokens * len(batch.requests)
            self.again.extendleft(reversed(batch.requests))
        self.kept = self.kept[:beyond]

    def _start(self, now_ns: int, actions: list[At[Happens] | Cancel]) -> None:
        if self.stopped_ns >= 0 or self.layout is None:
            return
        _, _, tensor = self.layout.layout
        for number, one in self.replicas.items():
            if not one.open:
                continue
            batch = one.batch
            if batch is None:
                taken = [self._pop() for _ in range(min(self.layout.batch, len(self.again) + len(self.waiting)))]
                if not taken:
                    continue
                prompt_s = self.model.prompt_s(tensor, len(taken))
                batch = one.batch = _Batch(taken, now_ns, prompt_s, -1.0, 0)
            if batch.token_s < 0.0:
                batch.begun_ns = now_ns
                batch.token_s = self.model.token_s(tensor, len(batch.requests))
                left = batch.prompt_s + batch.token_s * (self.model.output - batch.tokens)
                actions.append(At(now_ns + round(left * NS), Happens("done", number), key=("done", number)))

    def _pop(self) -> int:
        return self.again.popleft() if self.again else self.waiting.popleft()

    def _interrupt(self, now_ns: int, number: int, actions: list[At[Happens] | Cancel]) -> None:
        batch = self.replicas[number].batch
        if batch is not None:
            self.recomputed += batch.now(now_ns, self.model.output) * len(batch.requests)
            self.again.extendleft(reversed(batch.requests))
            self.replicas[number].batch = None
            actions.append(Cancel(("done", number)))

    def _more_replicas(self, now_ns: int, actions: list[At[Happens] | Cancel]) -> None:
        """Re-routing: replicas out of machines that serve none, several on one where they are smaller than it."""
        if self.layout is None:
            return
        _, pipeline, tensor = self.layout.layout
        size, gpus = pipeline * tensor, self.machine.gpus
        need, each = -(-size // gpus), max(1, gpus // size)
        busy = {m for one in self.replicas.values() for m in one.machines}
        free = sorted(self.usable - busy)
        while len(free) >= need:
            for _ in range(each):
                self.replicas[self._next_replica] = _Replica(frozenset(free[:need]), open=False)
                actions.append(At(now_ns + round(self._load_s(self.layout) * NS), Happens("open", self._next_replica)))
                self._next_replica += 1
                self.loaded += 1
            free = free[need:]

    # ------------------------------------------------------------------------------------------------- what it costs

    def _choose(self, machines: int, now_ns: int) -> Choice | None:
        gpus = machines * self.machine.gpus
        if gpus > self._choices_for:
            self._choices, self._choices_for = list(choices_of(self.model, gpus)), gpus
        fits = (lambda one: True) if self.policy != "reroute" else self._whole_machines
        return choose(self._choices, gpus, self._rate(now_ns), fits)

    def _whole_machines(self, one: Choice) -> bool:
        """Re-routing shares no machine between replicas that have others too."""
        size, gpus = one.layout[1] * one.layout[2], self.machine.gpus
        return size % gpus == 0 or gpus % size == 0

    def _rate(self, now_ns: int) -> float:
        while self._recent and self._recent[0] < now_ns - RATE_WINDOW_S * NS:
            self._recent.popleft()
        return max(self._usual_rate, (len(self._recent) + len(self.again) + len(self.waiting)) / RATE_WINDOW_S)

    def _gpus(self) -> list[int]:
        return [m * 64 + place for m in sorted(self.usable) for place in range(self.machine.gpus)]

    def _touches(self, machine: int) -> bool:
        """Whether a machine serves."""
        return any(machine in one.machines for one in self.replicas.values())

    def _migration(self, now_ns: int, plan: Choice) -> tuple[float, float, dict[int, int]]:
        """(seconds until serving goes on, bytes moved, old replica -> new one) of going over to `plan` now."""
        assert self.layout is not None
        old: Layout = self.layout.layout
        token = self.model.kv_token_bytes
        kv = []
        for number in sorted(self.replicas):
            batch = self.replicas[number].batch
            tokens = 0 if batch is None else batch.now(now_ns, self.model.output) + self.model.prompt
            kv.append(0.0 if batch is None else len(batch.requests) * tokens * token)
        fullest = sorted(range(len(kv)), key=lambda d: (-kv[d], d))[: plan.layout[0]]
        kept = {d: place for place, d in enumerate(sorted(fullest))}
        kv = (kv + [0.0] * old[0])[: old[0]]
        found = map_positions(
            [self.held.get(g) for g in self._gpus()], old, plan.layout, self.model.weight_bytes, kv, kept
        )
        share = self.machine.network_bytes_per_s / self.machine.gpus
        layers = self.model.layers // plan.layout[1] or 1
        cached = sum(kv) / max(1, plan.layout[0] * plan.layout[1] * plan.layout[2])
        longest = max(found.received_bytes, default=0.0)
        from_front = max(0.0, longest - cached)
        schedule = migrate(
            min(longest, cached), [from_front / layers] * layers, share, max(1, layers // plan.layout[1])
        )
        return schedule.serving_s, found.moved_bytes, kept

    def _load_s(self, plan: Choice) -> float:
        """Launch, and the weights of a machine's GPUs from storage."""
        of_gpu = self.model.weight_bytes / (plan.layout[1] * plan.layout[2])
        return self.machine.launch_s + self.machine.gpus * of_gpu / self.machine.storage_bytes_per_s


def play(
    model: Served,
    machine: Machine,
    policy: Policy,
    arrivals_s: Sequence[float],
    changes: Sequence[Change],
    machines: int,
    grace_s: float = 30.0,
    horizon_s: float = 4 * 3600.0,
) -> Played:
    """All requests through one policy. `machines` are there at the start: 0, 1, ...; `changes` name others or these."""
    leaves = {one.machine: round(one.gone_s * NS) for one in changes if one.gone_s is not None}
    serving = SpotServing(model, machine, policy, arrivals_s, grace_s, tuple(range(machines)), leaves)
    start = [At(round(at * NS), Happens("arrive", number)) for number, at in enumerate(arrivals_s)]
    for one in changes:
        at = one.at_s + (machine.launch_s if one.comes else 0.0)  # a new machine launches beside those that serve
        start.append(At(round(at * NS), Happens("ready" if one.comes else "notice", one.machine)))
    run(serving.handle, start, until_ns=round(horizon_s * NS))
    latency = tuple(
        serving.ended_ns[number] / NS - at if number in serving.ended_ns else float("inf")
        for number, at in enumerate(arrivals_s)
    )
    return Played(
        latency, serving.reconfigurations, serving.recomputed, serving.moved, serving.paused_s, serving.loaded
    )
