"""Which session is served by which instance: the fewest instances that keep every bound, then the fewest bytes moved.

A session brings `load`, by which it makes each step of its instance longer, and `state`, its cache. An instance keeps
its bound while its sessions' loads are within `room`, and holds `memory` bytes. Who stays costs nothing; who moves
costs its state. Sessions that may not move stay, even above the room.

    greedy   for k = 1, 2, ...: the k instances with most state stay, each keeps its largest states while they fit, all
             others go first fit, by falling load
    exact    branch and bound from there, for few sessions: best of all placements (held to enumeration by a test)

ScaleFlux anneals; from the old placement one session at a time cannot empty an instance, so that ends with more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXACT = 10  # sessions
FRESH = -1  # nowhere yet


@dataclass(frozen=True, slots=True)
class Session:
    """What placing sees of one. `at`: its instance, or FRESH."""

    load: float
    state: float
    at: int = FRESH
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Of an instance."""

    load: float
    memory: float


def cost_of(sessions: Sequence[Session], where: Sequence[int]) -> tuple[int, float]:
    """(instances, bytes moved) of a placement."""
    moved = sum(session.state for session, to in zip(sessions, where, strict=True) if session.at not in (to, FRESH))
    return len(set(where)), moved


def place(sessions: Sequence[Session], room: Room, instances: Sequence[int]) -> list[int]:
    """The instance of each session. `instances`: those there are; further ones get the next numbers.

    A session that no instance can hold within its bound gets one of its own.
    """
    where = _greedy(sessions, room, instances)
    return where if len(sessions) > EXACT else _exact(sessions, room, instances, where)


def _greedy(sessions: Sequence[Session], room: Room, instances: Sequence[int]) -> list[int]:
    there = sorted(instances, key=lambda at: (-sum(s.fixed for s in sessions if s.at == at), -_state(sessions, at), at))
    least = max((rank + 1 for rank, at in enumerate(there) if any(s.fixed and s.at == at for s in sessions)), default=1)
    first = max(instances, default=-1) + 1
    for count in range(least, len(there) + len(sessions) + 1):
        keep = (there + list(range(first, first + max(0, count - len(there)))))[:count]
        where = _fitted(sessions, room, keep)
        if where is not None:
            return where
    raise AssertionError("one instance a session is always enough")


def _state(sessions: Sequence[Session], at: int) -> float:
    return sum(session.state for session in sessions if session.at == at)


def _fitted(sessions: Sequence[Session], room: Room, keep: Sequence[int]) -> list[int] | None:
    """On these instances alone, or None."""
    load, memory = dict.fromkeys(keep, 0.0), dict.fromkeys(keep, 0.0)
    where = [FRESH] * len(sessions)

    def put(number: int, at: int) -> None:
        where[number] = at
        load[at] += sessions[number].load
        memory[at] += sessions[number].state

    def fits(session: Session, at: int) -> bool:
        return not load[at] or (load[at] + session.load <= room.load and memory[at] + session.state <= room.memory)

    order = sorted(range(len(sessions)), key=lambda n: (not sessions[n].fixed, -sessions[n].state, n))
    for number in order:
        session = sessions[number]
        if session.at in load and (session.fixed or fits(session, session.at)):
            put(number, session.at)
    for number in sorted(order, key=lambda n: (-sessions[n].load, n)):
        if where[number] == FRESH:
            to = next((at for at in keep if fits(sessions[number], at)), None)
            if to is None:
                return None
            put(number, to)
    return where


def _exact(sessions: Sequence[Session], room: Room, instances: Sequence[int], first: list[int]) -> list[int]:
    best, cost = list(first), cost_of(sessions, first)
    order = sorted(range(len(sessions)), key=lambda n: (not sessions[n].fixed, -sessions[n].load))
    new = max(instances, default=-1) + 1
    load: dict[int, float] = {}
    memory: dict[int, float] = {}
    where = [FRESH] * len(sessions)

    def go(depth: int, used: int, moved: float) -> None:
        nonlocal best, cost
        if (used, moved) >= cost:
            return
        if depth == len(order):
            best, cost = list(where), (used, moved)
            return
        number = order[depth]
        session = sessions[number]
        opened = sum(at >= new for at in load)
        for at in [session.at] if session.fixed else [*instances, *range(new, new + opened + 1)]:
            in_use = at in load
            if (
                in_use
                and not session.fixed
                and (load[at] + session.load > room.load or memory[at] + session.state > room.memory)
            ):
                continue
            before = load.get(at, 0.0), memory.get(at, 0.0)
            load[at], memory[at], where[number] = before[0] + session.load, before[1] + session.state, at
            go(depth + 1, used + (not in_use), moved + (session.state if session.at not in (at, FRESH) else 0.0))
            if in_use:
                load[at], memory[at] = before
            else:
                del load[at], memory[at]

    go(0, 0, 0.0)
    return best
