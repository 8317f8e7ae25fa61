"""One stream of sessions on replicas that come and go: who waits, who moves, how many replicas it takes.

    time per token of a replica   base + sum of its sessions' loads; a session's tokens come at that pace
    bound kept                    sum of loads <= bound - base = room
    a burst                       sessions queue (no memory), or loads are above the room; looked at every `look_s`
    more replicas                 warm after `start_s`; then
        fixed                       never: as many as at the start
        drain                       new sessions go to them, old ones end where they are; a replica left over is shut
                                    for new ones and goes when its last session has ended
        recompute, move             sessions are placed anew (`placing`); each of them stops while its prompt and
                                    tokens are computed again, or while its state crosses the link, one after another
    fewer replicas                when `calm_s` long fewer would do

A session moves only where its stop is within `longest_stop_s`, so the bound on stops is kept or nothing moves.
A state machine on `engine.events`; a replica's next end is an event that moves with its pace.
Mechanism: ScaleFlux (TPDS 2022, abstract): bursts by queue length, migration under a bound on latency, least resources.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from windtunnel.physics.engine.machine import At, Cancel, run
from windtunnel.studies.serving.stateful.placing import Room, Session, place

Policy = Literal["fixed", "drain", "recompute", "move"]
POLICIES: tuple[Policy, ...] = ("fixed", "drain", "recompute", "move")
NS = 1e9

Event = tuple[Literal["ends", "lands", "arrives", "look"], int, int]  # what, session, replica
FIRST = ("ends", "lands", "arrives", "look")  # of one time, in this order


@dataclass(frozen=True, slots=True)
class Arrival:
    """A session: when it comes, its tokens, by how much it lengthens a step, its bytes, seconds to compute it again."""

    at_s: float
    tokens: int
    load: float
    state: float
    again_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """What there is, and by which rules it grows and shrinks. Seconds and bytes."""

    base_s: float
    room: Room
    first: int = 1
    most: int
    start_s: float = 30.0
    link_bytes_per_s: float
    round_trip_s: float = 0.002
    longest_stop_s: float = math.inf
    look_s: float = 1.0
    calm_s: float = 60.0
    fill: float = 0.85  # of the room that is planned for: what comes before the next look has the rest


@dataclass(slots=True)
class SessionRecord:
    """What became of a session."""

    began_s: float = math.nan
    ended_s: float = math.nan
    stopped_s: float = 0.0
    moves: int = 0
    served: float = 0.0  # tokens


@dataclass(slots=True)
class PolicyOutcome:
    """What a policy did."""

    sessions: list[SessionRecord]
    replica_seconds: float = 0.0
    ideal_seconds: float = 0.0  # were sessions spread without remainder over warm replicas that come at once
    moved_bytes: float = 0.0
    most_replicas: int = 0


@dataclass(slots=True)
class _Replica:
    warm_s: float
    open: bool = True
    load: float = 0.0
    memory: float = 0.0
    tokens: float = 0.0  # that a session which is always here has got
    here: dict[int, float] = field(default_factory=dict)  # session -> `tokens` at which it ends
    sends_until_s: float = 0.0
    coming: int = 0  # sessions on their way to it
    changed: bool = False  # its next end is another than was said


def replay(arrivals: Sequence[Arrival], replicas: Replicas, policy: Policy) -> PolicyOutcome:
    """Serve all of them. `arrivals` in order of time."""
    machine = _Machine(arrivals, replicas, policy)
    comes = [machine.after(arrival.at_s, ("arrives", number, -1)) for number, arrival in enumerate(arrivals)]
    run(machine.handle, [machine.after(0.0, ("look", -1, -1)), *comes])
    return machine.replayed


class _Machine:
    def __init__(self, arrivals: Sequence[Arrival], rules: Replicas, policy: Policy) -> None:
        self.arrivals, self.rules, self.policy = arrivals, rules, policy
        self.now_ns = 0
        self.now = self.calm_since = 0.0
        self.next_number = rules.first
        self.running = {number: _Replica(0.0) for number in range(rules.first)}
        self.left = [float(arrival.tokens) for arrival in arrivals]
        self.waiting: deque[int] = deque()
        self.sent: list[At[Event]] = []  # sessions that have just begun to move
        self.replayed = PolicyOutcome([SessionRecord() for _ in arrivals], most_replicas=rules.first)
        self.done = 0

    def after(self, wait_s: float, event: Event, key: int | None = None) -> At[Event]:
        """An event so much later, not a nanosecond too early."""
        return At(self.now_ns + math.ceil(wait_s * NS), event, FIRST.index(event[0]), key)

    def handle(self, now_ns: int, event: Event) -> Iterator[At[Event] | Cancel]:
        """Everything goes on to now, then what happens, then what follows from it."""
        if self.done == len(self.arrivals):
            return
        what, session, number = event
        self._pass(now_ns)
        if what == "ends" and number in self.running:
            replica = self.running[number]
            replica.changed = True
            for ended in [each for each, at in replica.here.items() if at <= replica.tokens + 1e-9]:
                self._finish(replica, ended)
        elif what == "lands":
            self.running[number].coming -= 1
            self._enter(self.running[number], session)
        elif what == "arrives":
            self.waiting.append(session)
        self._admit()
        if what == "look":
            self._look()
            yield self.after(self.rules.look_s, event)
        yield from self.sent
        self.sent.clear()
        for which, replica in self.running.items():
            if replica.changed:
                replica.changed = False
                left_s = (min(replica.here.values(), default=0.0) - replica.tokens) * (self.rules.base_s + replica.load)
                yield self.after(max(0.0, left_s), ("ends", -1, which), which) if replica.here else Cancel(which)

    def _pass(self, now_ns: int) -> None:
        span = now_ns / NS - self.now
        for replica in self.running.values():
            replica.tokens += span / (self.rules.base_s + replica.load)
        self.replayed.replica_seconds += span * len(self.running)
        self.replayed.ideal_seconds += span * self._spread(0.0, 0.0)
        self.now_ns, self.now = now_ns, now_ns / NS

    def _spread(self, load: float, memory: float) -> int:
        """Replicas for what runs and so much more, were sessions divisible."""
        room, every = self.rules.room, self.running.values()
        load += sum(replica.load for replica in every)
        memory += sum(replica.memory for replica in every)
        return max(math.ceil(load / room.load - 1e-9), math.ceil(memory / room.memory - 1e-9))

    def _enter(self, replica: _Replica, session: int) -> None:
        replica.here[session] = replica.tokens + self.left[session]
        replica.changed = True
        if math.isnan(self.replayed.sessions[session].began_s):
            self.replayed.sessions[session].began_s = self.now

    def _leave(self, replica: _Replica, session: int) -> None:
        got = self.left[session] - (replica.here.pop(session) - replica.tokens)
        self.left[session] -= got
        self.replayed.sessions[session].served += got
        self._reserve(replica, session, -1)

    def _reserve(self, replica: _Replica, session: int, sign: int) -> None:
        replica.changed = True
        replica.load = max(0.0, replica.load + sign * self.arrivals[session].load)
        replica.memory = max(0.0, replica.memory + sign * self.arrivals[session].state)
        if not replica.here and not replica.coming:
            replica.load = replica.memory = 0.0

    def _finish(self, replica: _Replica, session: int) -> None:
        self._leave(replica, session)
        self.replayed.sessions[session].ended_s = self.now
        self.done += 1

    def _admit(self) -> None:
        """From the head of the queue: where the bound is kept, else where there is memory."""
        while self.waiting:
            new = self.arrivals[self.waiting[0]]
            fit = [replica for replica in self.running.values() if replica.open and replica.warm_s <= self.now
                   and (replica.memory + new.state <= self.rules.room.memory
                        or not (replica.here or replica.coming))]  # fmt: skip
            if not fit:
                return
            session = self.waiting.popleft()
            to = min(fit, key=lambda replica: replica.load)
            if self.policy in ("recompute", "move"):  # the fullest that keeps its bound: others can go
                keeping = [
                    replica for replica in fit if replica.load + new.load <= self.rules.room.load * self.rules.fill
                ]
                to = max(keeping, key=lambda replica: replica.load) if keeping else to
            self._reserve(to, session, 1)
            self._enter(to, session)

    def _stop_s(self, session: int) -> float:
        """What a session would stop for, were it alone on the link."""
        arrival = self.arrivals[session]
        share = 1.0 - self.left[session] / arrival.tokens
        if self.policy == "recompute":
            return arrival.again_s * (0.5 + 0.5 * share)
        return arrival.state / self.rules.link_bytes_per_s + self.rules.round_trip_s

    def _look(self) -> None:
        rules = self.rules
        warm = [n for n, replica in self.running.items() if replica.warm_s <= self.now and replica.open]
        if self.policy == "fixed":
            return
        waiting = [self.arrivals[n] for n in self.waiting]
        wanted = max(
            1, self._spread(sum(arrival.load for arrival in waiting), sum(arrival.state for arrival in waiting))
        )
        sessions, where = [], []
        if self.policy != "drain":
            for number in self.running:
                for session in self.running[number].here:
                    arrival = self.arrivals[session]
                    fixed = self._stop_s(session) > rules.longest_stop_s or number not in warm
                    sessions.append((session, Session(arrival.load, arrival.state, number, fixed)))
            room = Room(rules.room.load * rules.fill, rules.room.memory * rules.fill)
            where = place([entry for _, entry in sessions], room, warm) if sessions else []
            wanted = max(wanted, len(set(where)))
        opened = [n for n, replica in self.running.items() if replica.open]
        for number in [n for n, replica in self.running.items() if not replica.open][: max(0, wanted - len(opened))]:
            self.running[number].open = True  # one that was to go stays
            opened.append(number)
        for _ in range(min(wanted, rules.most) - len(opened)):
            self.running[self.next_number] = _Replica(self.now + rules.start_s)
            opened.append(self.next_number)
            self.next_number += 1
        self.replayed.most_replicas = max(self.replayed.most_replicas, len(self.running))
        if wanted >= len(opened):
            self.calm_since = self.now
        fewer = self.now - self.calm_since >= rules.calm_s
        burst = any(replica.load > rules.room.load * (1 + 1e-9) for replica in self.running.values())
        if self.policy != "drain" and (burst or fewer) and set(where) <= set(warm):
            for (session, was), to in zip(sessions, where, strict=True):
                if to != was.at:
                    self._move(session, self.running[was.at], to)
        if fewer:
            spare = sorted(warm, key=lambda n: (len(self.running[n].here) + self.running[n].coming, -n))
            for number in spare[: len(opened) - wanted]:
                self.running[number].open = False
        empty = [n for n, replica in self.running.items() if not (replica.open or replica.here or replica.coming)]
        for number in empty:
            del self.running[number]

    def _move(self, session: int, source: _Replica, to: int) -> None:
        seen, target = self.replayed.sessions[session], self.running[to]
        stop = self._stop_s(session)
        begin = max(self.now, source.sends_until_s if self.policy == "move" else 0.0)
        if begin + stop - self.now > self.rules.longest_stop_s:
            return  # the link is taken for too long: at a later look
        self._leave(source, session)
        target.coming += 1
        self._reserve(target, session, 1)
        source.sends_until_s = begin + stop
        seen.moves += 1
        seen.stopped_s += begin + stop - self.now
        self.replayed.moved_bytes += self.arrivals[session].state if self.policy == "move" else 0.0
        self.sent.append(self.after(begin + stop - self.now, ("lands", session, to)))
