"""Allocations of one rank over a step: the tapes of its blocks, strung together by its schedule.

A pass over a model piece is the tapes of its blocks one after the other; where parameters are sharded, each block's are
gathered before it and the next block's ahead of that, and its weight gradients leave with it. A rank's step is its
passes in the order of the schedule, and then the optimizer.

`reserved_bytes` replays two whole steps through the caching allocator, because the optimizer's state is made at the end
of the first one, in the middle of what the activations left behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.training.keeping import INPUT
from windtunnel.training.tensors import Tape

Events = NDArray[np.int64]  # [n, 2]: slot, bytes; bytes < 0 frees


@dataclass(frozen=True, eq=False)
class Passes:
    """Events of one piece's forward and backward pass over one micro-batch, in shared slots."""

    forward: Events
    backward: Events
    slots: int
    saved_bytes: int  # what stays from the forward to the backward pass
    forward_workspace_bytes: int  # the most that the forward pass holds beyond what stays
    backward_workspace_bytes: int  # the most that the backward pass holds beyond what the forward pass left
    # Where gradients are made anew in every step, by the first micro-batch's backward pass:
    gradient_bytes: int = 0  # all that it makes
    peak_gradient_bytes: int = 0  # of these, when it holds the most
    later_workspace_bytes: int = 0  # as `backward_workspace_bytes`, where gradients are there already
    gradients: int = 0  # tensors among them; the last so many events of `backward` free them
    later_backward: Events | None = None  # `backward` of the other micro-batches


@dataclass(frozen=True, slots=True)
class Unit:
    """One block of a piece: its tape, and the bytes that sharding gathers and reduces for it (0: nothing)."""

    tape: Tape
    gathered: int
    reduced: int
    root: bool = False  # of the unit that is reduced when the pass ends


def with_gradients(units: list[Unit], later: list[Unit], received_bytes: int) -> Passes:
    """Passes whose backward makes the gradients anew: `units` in the first micro-batch, `later` in all others."""
    passes = string_together(units, received_bytes, False)
    back = passes.backward
    count = sum(len(unit.tape.weights) for unit in units)
    weights = np.isin(back[:, 0], back[len(back) - count :, 0]) & (back[:, 1] > 0)  # the last events free them all
    at = int(np.argmax(np.cumsum(back[:, 1]))) if len(back) else -1
    others = string_together(later, received_bytes, False)
    return replace(
        passes,
        gradient_bytes=int(back[weights, 1].sum()),
        peak_gradient_bytes=int(back[: at + 1, 1][weights[: at + 1]].sum()),
        later_workspace_bytes=others.backward_workspace_bytes,
        gradients=count,
        later_backward=others.backward,
    )


def _highest(events: Events) -> int:
    return int(np.cumsum(events[:, 1]).max(initial=0))


def string_together(units: list[Unit], received_bytes: int, frees_weights_at_once: bool) -> Passes:
    """The passes of one piece. `received_bytes`: its input from the stage before, 0 for the first stage."""
    if not units:  # a stage that only hands on
        return Passes(_events([]), _events([]), 1, 0, 0, 0)
    bases = np.concatenate(([1], 1 + np.cumsum([len(unit.tape.sizes) for unit in units])))
    slots = int(bases[-1])
    maps: list[NDArray[np.int64]] = []
    before = 0  # slot of the tensor that enters the next block
    for unit, base in zip(units, bases, strict=False):
        where = np.arange(base, base + len(unit.tape.sizes))
        where[INPUT] = before
        maps.append(where)
        before = int(where[unit.tape.output]) if unit.tape.output >= 0 else -1
    gather = [slots + 2 * number for number in range(len(units))]
    reduce = [slots + 2 * number + 1 for number in range(len(units))]
    slots += 2 * len(units)
    forward: list[tuple[int, int]] = [(0, received_bytes)] if received_bytes else []
    parts: list[Events] = [_events(forward)]
    for number, (unit, where) in enumerate(zip(units, maps, strict=True)):
        parts.append(_around(units, gather, number, number + 1))
        parts.append(_mapped(unit.tape.forward, unit.tape, where))
        parts.append(_events([(gather[number], -unit.gathered)] if unit.gathered else []))
    if before >= 0:  # the output has been sent
        parts.append(_events([(before, -units[-1].tape.sizes[units[-1].tape.output])]))
    ahead = np.concatenate(parts)
    parts = []
    incoming, outgoing = -1, None
    for number in reversed(range(len(units))):
        unit, where = units[number], maps[number]
        tape = unit.tape
        if tape.incoming >= 0:
            if incoming >= 0:
                where[tape.incoming] = incoming
            else:  # received
                parts.append(_events([(int(where[tape.incoming]), tape.sizes[tape.incoming])]))
        parts.append(_around(units, gather, number, number - 1))
        parts.append(_mapped(tape.backward, tape, where))
        if unit.gathered:
            parts.append(_events([(gather[number], -unit.gathered)]))
        if frees_weights_at_once and not unit.root:
            if unit.reduced:
                parts.append(_events([(reduce[number], unit.reduced)]))
            parts.append(_events([(int(where[slot]), -tape.sizes[slot]) for slot in tape.weights]))
            if unit.reduced:
                parts.append(_events([(reduce[number], -unit.reduced)]))
        incoming = int(where[tape.outgoing]) if tape.outgoing >= 0 else -1
        outgoing = (incoming, tape.sizes[tape.outgoing]) if incoming >= 0 else None
    root = [number for number, unit in enumerate(units) if unit.root and frees_weights_at_once]
    if root:
        whole = sum(units[number].reduced for number in root)
        weights = [(number, slot) for number in root for slot in units[number].tape.weights]
        parts.append(_events([(reduce[root[0]], whole)] if whole else []))
        parts.append(_events([(int(maps[number][slot]), -units[number].tape.sizes[slot]) for number, slot in weights]))
        parts.append(_events([(reduce[root[0]], -whole)] if whole else []))
    if outgoing is not None:
        parts.append(_events([(outgoing[0], -outgoing[1])]))
    if not frees_weights_at_once:
        for unit, where in zip(units, maps, strict=True):
            parts.append(_events([(int(where[slot]), -unit.tape.sizes[slot]) for slot in unit.tape.weights]))
    back = np.concatenate(parts)
    saved = int(ahead[:, 1].sum())
    return Passes(ahead, back, slots, saved, max(0, _highest(ahead) - saved), _highest(back))


def _around(units: list[Unit], gather: list[int], number: int, following: int) -> Events:
    """Gather a block's parameters if that has not been done ahead, and the following block's ahead."""
    first = number == 0 if following > number else number == len(units) - 1
    events = [(gather[number], units[number].gathered)] if first and units[number].gathered else []
    if 0 <= following < len(units) and units[following].gathered:
        events.append((gather[following], units[following].gathered))
    return _events(events)


def _events(events: list[tuple[int, int]]) -> Events:
    return np.array(events, np.int64).reshape(-1, 2)


def _mapped(events: tuple[tuple[int, int], ...], tape: Tape, where: NDArray[np.int64]) -> Events:
    table = np.array(events, np.int64).reshape(-1, 2)
    sizes = np.array(tape.sizes, np.int64)
    return np.stack((where[table[:, 0]], np.where(table[:, 1] > 0, table[:, 1], -sizes[table[:, 0]])), axis=1)


@dataclass(frozen=True, slots=True)
class Resident:
    """What lives outside passes, as tensors: before the first step, from its end on, and inside each optimizer step."""

    first: tuple[int, ...]
    optimizer: tuple[int, ...]
    transient: tuple[int, ...]  # alive together


def step_events(actions: list[tuple[Passes, bool, int]], base: int) -> tuple[Events, int]:
    """The passes of one step in order: (passes, whether forward, key of the micro-batch's slots); and the next base.

    The forward and the backward of one key share their slots.
    """
    bases: dict[int, int] = {}
    parts: list[Events] = []
    for passes, is_forward, key in actions:
        if key not in bases:
            bases[key] = base
            base += passes.slots
        events = (passes.forward if is_forward else passes.backward).copy()
        events[:, 0] += bases[key]
        parts.append(events)
    return (np.concatenate(parts) if parts else _events([])), base


def two_steps(actions: list[tuple[Passes, bool, int]], resident: Resident) -> Events:
    """Events of a rank from its start to the end of its second step."""
    base = len(resident.first) + len(resident.optimizer)
    parts = [_events([(slot, size) for slot, size in enumerate(resident.first)])]
    made = _events([(len(resident.first) + slot, size) for slot, size in enumerate(resident.optimizer)])
    for number in range(2):
        events, base = step_events(actions, base)
        parts.append(events)
        if number == 0:
            parts.append(made)
        held = _events([(base + slot, size) for slot, size in enumerate(resident.transient)])
        parts += [held, held * np.array([1, -1])]
        base += len(resident.transient)
    return np.concatenate(parts)
