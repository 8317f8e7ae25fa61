"""The passes of a piece: the tapes of its blocks strung together.

A pass is the tapes of the blocks one after the other; where parameters are sharded, each block's are gathered before it
and the next block's ahead of that, and its weight gradients leave with it, as this rank's share of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.training.lowering.split_backward import halves
from windtunnel.studies.training.memory.allocations import Events, Passes, as_events
from windtunnel.studies.training.memory.forward_trace import Tape
from windtunnel.studies.training.memory.saved_tensors import INPUT

GATHERS, REDUCES = 1, 2  # streams beside that of the passes


@dataclass(frozen=True, slots=True)
class Unit:
    """One block of a piece: its tape, and the bytes that sharding gathers and reduces for it (0: nothing)."""

    tape: Tape
    gathered: int = 0
    flat: int = 0  # into which they are gathered before they are copied to their places, on a stream of their own
    reduced: int = 0
    shard: int = 0  # of its gradients, on this rank, where they are made anew in every step
    root: bool = False  # of the unit that is reduced when the pass ends


@dataclass(frozen=True, slots=True)
class Stringing:
    """What becomes of what the blocks make."""

    at_once: bool = False  # weight gradients leave block by block, else when the pass ends
    stays: bool = False  # weight gradients are the step's own and stay until the optimizer has run
    fsdp2: bool = False  # gathers into flat buffers; what is reduced stays until the next block's is
    split: Literal["", "linears", "graph", "late"] = ""  # also in two halves; "late": all of it in the second
    buffers: bool = False  # for what is received are there all step; what is sent stays until it is not needed at all


def string_together(
    units: list[Unit], received_bytes: int, how: Stringing = Stringing(), later: list[Unit] | None = None
) -> Passes:  # fmt: skip
    """The passes of one piece. `received_bytes`: its input from the stage before, 0 for the first stage.

    `later`: its blocks in all micro-batches but the first, where their tapes differ because gradients are there.
    """
    if not units:  # a stage that only hands on
        nothing = as_events([])
        return Passes(nothing, nothing, np.zeros(1, np.int64), backward_input=nothing, backward_weight=nothing)
    line = _Line(units, how)
    backward, gradients = line.backward()
    others = _Line(later, how) if later is not None else line if gradients else None
    passes = Passes(
        line.forward(received_bytes),
        backward,
        line.stream,
        gradients,
        others.backward(later=True)[0] if others is not None else None,
    )
    if not how.split:
        return passes
    inputs, weights = line.halves()
    later_weight = others.halves(later=True)[1] if others is not None else None
    return replace(passes, backward_input=inputs, backward_weight=weights, later_weight=later_weight)


class _Line:
    """The blocks in a row, with the slots that they share."""

    def __init__(self, units: list[Unit], how: Stringing) -> None:
        self.units, self.how = units, how
        # Of tapes' events, by identity (they are kept, so that it stays their own): slots of the tape, bytes.
        self.tables: dict[tuple[int, int], tuple[object, NDArray[np.int64], NDArray[np.int64]]] = {}
        bases = np.concatenate(([1], 1 + np.cumsum([len(unit.tape.sizes) for unit in units])))
        self.maps: list[NDArray[np.int64]] = []
        before = 0  # slot of the tensor that enters the next block
        for unit, base in zip(units, bases, strict=False):
            where = np.arange(base, base + len(unit.tape.sizes))
            where[INPUT] = before
            self.maps.append(where)
            before = int(where[unit.tape.output]) if unit.tape.output >= 0 else -1
        self.output = before
        following = -1  # slot of the gradient that leaves the block behind
        received = [0]  # slots of what is sent to here
        self.received: Events = as_events([])
        for unit, where in zip(reversed(units), reversed(self.maps), strict=True):
            tape = unit.tape
            if tape.incoming >= 0 and following >= 0:
                where[tape.incoming] = following
            elif tape.incoming >= 0:
                self.received = as_events([(int(where[tape.incoming]), tape.sizes[tape.incoming])])
                received.append(int(where[tape.incoming]))
            following = int(where[tape.outgoing]) if tape.outgoing >= 0 else -1
        first = units[0].tape
        self.sent = as_events([(following, -first.sizes[first.outgoing])] if following >= 0 else [])
        last = units[-1].tape
        self.let_go = as_events([(self.output, -last.sizes[last.output])] if self.output >= 0 else [])
        self.standing: list[int] = []
        if how.buffers:
            self.standing, self.received = received, as_events([])
            self.sent = as_events([])  # the gradient of a buffer, which the next step clears
        extra = int(bases[-1]) + np.arange(4 * len(units)).reshape(4, -1)
        self.gathered, self.flats, self.reduced, self.shards = extra.tolist()
        self.slots = int(bases[-1]) + 4 * len(units)
        self.stream = np.zeros(self.slots, np.int64)
        self.stream[extra[1]], self.stream[extra[3]] = GATHERS, REDUCES

    def forward(self, received_bytes: int) -> Events:
        parts = [as_events([(0, received_bytes)] if received_bytes and not self.how.buffers else [])]
        copied = -1  # whose flat buffer is freed when the next one has been gathered
        for number, unit in enumerate(self.units):
            if self.how.fsdp2:
                parts.append(self._flat(number))
                parts.append(self._flat(copied, -1))
                parts.append(self._there(number))
                copied = number if unit.flat else -1
            else:
                parts.append(self._gather(number, number + 1))
            parts.append(self._mapped(number, unit.tape.forward))
            parts.append(self._there(number, -1))
        parts.append(self._flat(copied, -1))
        if not self.how.buffers:  # the output has been sent
            parts.append(self.let_go)
        return np.concatenate(parts)

    def backward(self, *, later: bool = False) -> tuple[Events, int]:
        """Both halves in one, and how many of its last events free gradients that stay."""
        leaving = _Leaving(self, later, at_once=self.how.at_once)
        parts = [self.received]
        for number in reversed(range(len(self.units))):
            parts += [*self._back(number, self.units[number].tape.backward), leaving.block(number)]
        parts += [leaving.root(), self.sent, self._outputs(), leaving.end()]
        return np.concatenate(parts), leaving.stay

    def halves(self, *, later: bool = False) -> tuple[Events, Events]:
        """The gradients of the input, and those of the weights."""
        if self.how.split == "late":
            return self.received, self.backward(later=later)[0][len(self.received) :]
        split = [halves(unit.tape, graph=self.how.split == "graph") for unit in self.units]
        parts = [self.received]
        for number in reversed(range(len(self.units))):
            parts += self._back(number, split[number].inputs)
        inputs = np.concatenate([*parts, self.sent])
        leaving = _Leaving(self, later, at_once=self.how.at_once and any(unit.reduced for unit in self.units))
        parts = []
        for number in reversed(range(len(self.units))):
            parts.append(self._mapped(number, split[number].weights))
            parts.append(leaving.block(number))
        rest = [
            self._mapped(number, tuple((slot, 0) for slot in of_block.rest)) for number, of_block in enumerate(split)
        ]
        return inputs, np.concatenate([*parts, leaving.root(), *rest, self._outputs(), leaving.end()])

    def _back(self, number: int, events: tuple[tuple[int, int], ...]) -> list[Events]:
        """A block's events, its parameters there, and the block's before it asked for when its gradient has come."""
        tape = self.units[number].tape
        begins = (
            min((learner.at for learner in tape.learners), default=0) if tape.output < 0 else 0
        )  # the loss comes first
        ahead, rest = self._mapped(number, events[:begins]), self._mapped(number, events[begins:])
        if not self.how.fsdp2:
            return [ahead, self._gather(number, number - 1), rest, self._there(number, -1)]
        first = self._flat(number) if number == len(self.units) - 1 else as_events([])
        next_flat = self._flat(number - 1) if number and self.units[number - 1].gathered else as_events([])
        wanted = bool(self.units[number].gathered)
        copied = [first, self._there(number), self._flat(number, -1)] if wanted else []
        return [ahead, *copied, next_flat, rest, self._there(number, -1)]

    def _flat(self, number: int, sign: int = 1) -> Events:
        size = self.units[number].flat if number >= 0 else 0
        return as_events([(self.flats[number], sign * size)] if size else [])

    def _outputs(self) -> Events:
        return self.let_go if self.how.buffers else as_events([])

    def _gather(self, number: int, following: int) -> Events:
        """Gather a block's parameters if that has not been done ahead, and the following block's ahead."""
        first = number == 0 if following > number else number == len(self.units) - 1
        wanted = [number] if first else []
        wanted += [following] if 0 <= following < len(self.units) else []
        return as_events([(self.gathered[n], self.units[n].gathered) for n in wanted if self.units[n].gathered])

    def _there(self, number: int, sign: int = 1) -> Events:
        size = self.units[number].gathered
        return as_events([(self.gathered[number], sign * size)] if size else [])

    def _mapped(self, number: int, events: tuple[tuple[int, int], ...]) -> Events:
        tape = self.units[number].tape
        key = (id(tape), id(events))  # equal blocks share their tape
        if key not in self.tables:
            table, sizes = as_events(list(events)), np.array(tape.sizes, np.int64)
            self.tables[key] = (events, table[:, 0], np.where(table[:, 1] > 0, table[:, 1], -sizes[table[:, 0]]))
        _, own, changes = self.tables[key]
        slots = self.maps[number][own]
        rows = np.empty((len(slots), 2), np.int64)
        rows[:, 0], rows[:, 1] = slots, changes
        return rows[~np.isin(slots, self.standing)] if self.standing else rows


class _Leaving:
    """How weight gradients leave a backward pass, and what stays of them until the optimizer has run."""

    def __init__(self, line: _Line, later: bool, *, at_once: bool) -> None:
        self.line, self.how, self.later, self.at_once = line, line.how, later, at_once
        self.lingering: list[tuple[int, int]] = []
        self.freed_last: list[tuple[int, int]] = []
        self.stay = 0

    def block(self, number: int) -> Events:
        """Behind one block."""
        return as_events([]) if self.line.units[number].root or not self.at_once else self._reduced([number])

    def root(self) -> Events:
        """Behind the last of them."""
        numbers = [number for number, unit in enumerate(self.line.units) if unit.root and self.at_once]
        return as_events([*self._reduced(numbers).tolist(), *self.lingering])

    def end(self) -> Events:
        """What is left."""
        if not self.at_once:
            for number in range(len(self.line.units)):
                self.freed_last += self._weights(number)
            self.stay = len(self.freed_last) if self.how.stays and not self.later else 0
        return as_events(self.freed_last)

    def _weights(self, number: int) -> list[tuple[int, int]]:
        tape, where = self.line.units[number].tape, self.line.maps[number]
        return [(int(where[slot]), -tape.sizes[slot]) for slot in tape.weights]

    def _reduced(self, numbers: list[int]) -> Events:
        """The gradients of some blocks as one: copied to where they are reduced from, and this rank's share made."""
        if not numbers:
            return as_events([])
        line, first = self.line, numbers[0]
        whole = sum(line.units[number].reduced for number in numbers)
        shard = sum(line.units[number].shard for number in numbers)
        events, self.lingering = self.lingering, []
        events = [*events, *([(line.reduced[first], whole)] if whole else [])]
        for number in numbers:
            events += self._weights(number)
        if shard:
            events.append((line.shards[first], shard))
            if self.later:  # added to what is there
                events.append((line.shards[first], -shard))
            else:
                self.freed_last.append((line.shards[first], -shard))
                self.stay += 1
        if whole and self.how.fsdp2:
            self.lingering = [(line.reduced[first], -whole)]
        elif whole:
            events.append((line.reduced[first], -whole))
        return as_events(events)
