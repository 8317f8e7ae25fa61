"""Lab 3, solved."""

from __future__ import annotations

from typing import NamedTuple


class DeadlockError(Exception):
    """Ranks wait for each other for ever."""


class Action(NamedTuple):
    """One pass of one micro-batch through one rank's piece."""

    kind: str
    micro_batch: int


def gpipe(stages: int, micro_batches: int, rank: int) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action(kind, i) for kind in "FB" for i in range(micro_batches)]


def one_f_one_b(stages: int, micro_batches: int, rank: int) -> list[Action]:
    """Warm-up of forwards, then one forward and one backward, then the backwards that are left."""
    warm_up = min(stages - 1 - rank, micro_batches)
    actions = [Action("F", i) for i in range(warm_up)]
    for i in range(micro_batches - warm_up):
        actions += [Action("F", warm_up + i), Action("B", i)]
    return actions + [Action("B", i) for i in range(micro_batches - warm_up, micro_batches)]


def most_in_flight(actions: list[Action]) -> int:
    """Most micro-batches whose forward is done and whose backward is not."""
    held = most = 0
    for action in actions:
        held += 1 if action.kind == "F" else -1
        most = max(most, held)
    return most


def ends_s(orders: list[list[Action]], forward_s: float, backward_s: float) -> list[list[float]]:
    """Go round the ranks, running what can run, until all is done or nothing moves."""
    done: dict[tuple[int, Action], float] = {}
    ends: list[list[float]] = [[] for _ in orders]
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(orders):
            while len(ends[rank]) < len(actions):
                action = actions[len(ends[rank])]
                needs = [(rank, Action("F", action.micro_batch))] if action.kind == "B" else []
                neighbour = rank - 1 if action.kind == "F" else rank + 1
                if 0 <= neighbour < len(orders):
                    needs.append((neighbour, action))
                if any(need not in done for need in needs):
                    break
                free = ends[rank][-1] if ends[rank] else 0.0
                start = max([free, *(done[need] for need in needs)])
                end = start + (forward_s if action.kind == "F" else backward_s)
                done[rank, action] = end
                ends[rank].append(end)
                moved = True
    if any(len(one) < len(actions) for one, actions in zip(ends, orders, strict=True)):
        raise DeadlockError
    return ends


def bubble_share(stages: int, micro_batches: int) -> float:
    """Idle time of a rank over the time of its work."""
    return (stages - 1) / micro_batches
