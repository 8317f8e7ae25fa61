"""Allocations of one rank over a step: the passes of its pieces in the order of its schedule, and then the optimizer.

`two_steps` gives two whole steps for the caching allocator to replay, because the optimizer's state is made at the end
of the first one, in the middle of what the activations left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.training.schedules import Kind

Events = NDArray[np.int64]  # [n, 2]: slot, bytes; bytes < 0 frees


class Load(NamedTuple):
    """What one pass does to its rank's memory."""

    adds: int  # bytes that stay behind it; what it frees of others' counts against them
    most: int  # the most that it holds at one time beyond what it finds
    learned: int = 0  # bytes of gradients among those
    learns: int = 0  # and of all gradients that it makes, which stay until the optimizer has run


@dataclass(frozen=True, eq=False)
class Passes:
    """Events of one piece's passes over one micro-batch, in shared slots.

    Where gradients are made anew in every step, the first micro-batch's backward makes them: the last `gradients`
    events of `backward` (and of `backward_weight`) free them, which is when the optimizer has run. All other
    micro-batches run `later_backward` (`later_weight`).
    """

    forward: Events
    backward: Events
    stream: NDArray[np.int64]  # of each slot: which of the device's streams its tensor belongs to
    gradients: int = 0
    later_backward: Events | None = None
    backward_input: Events | None = None  # the backward in two halves, where the schedule asks for that
    backward_weight: Events | None = None
    later_weight: Events | None = None

    @cached_property
    def saved_bytes(self) -> int:
        """What stays from the forward to the backward pass."""
        return self.load(Kind.FORWARD).adds

    @cached_property
    def _loads(self) -> dict[tuple[Kind, bool], Load]:
        return {}

    def load(self, kind: Kind, *, later: bool = False) -> Load:
        """Of one pass; `later`: not the one that makes the gradients."""
        if (kind, later) not in self._loads:
            self._loads[kind, later] = self._load(kind, later)
        return self._loads[kind, later]

    def _load(self, kind: Kind, later: bool) -> Load:
        events, gradients = self._events(kind, later)
        heights = np.cumsum(events[:, 1])
        most = int(heights.max(initial=0))
        if not gradients:
            return Load(int(events[:, 1].sum()), most)
        allocates = np.isin(events[:, 0], events[len(events) - gradients :, 0]) & (events[:, 1] > 0)
        before_peak = slice(0, int(np.argmax(heights)) + 1)
        learned = int(events[before_peak, 1][allocates[before_peak]].sum())
        return Load(int(events[:, 1].sum()), most, learned, int(events[allocates, 1].sum()))

    def _events(self, kind: Kind, later: bool) -> tuple[Events, int]:
        if kind == Kind.FORWARD:
            return self.forward, 0
        if kind == Kind.BACKWARD_INPUT:
            assert self.backward_input is not None
            return self.backward_input, 0
        first, other = self.backward, self.later_backward
        if kind == Kind.BACKWARD_WEIGHT:
            assert self.backward_weight is not None
            first, other = self.backward_weight, self.later_weight
        return (other, 0) if later and other is not None else (first, self.gradients)

    def events(self, kind: Kind, later: bool = False) -> tuple[Events, Events]:
        """Of one pass; and, with which its gradients are freed when the optimizer has run."""
        events, gradients = self._events(kind, later)
        return events[: len(events) - gradients], events[len(events) - gradients :]


@dataclass(frozen=True, slots=True)
class Resident:
    """What lives outside passes, as tensors: before the first step, from its end on, and inside each optimizer step."""

    first: tuple[int, ...]
    optimizer: tuple[int, ...]
    transient: tuple[int, ...]  # alive together


class Action(NamedTuple):
    """One pass of one micro-batch."""

    passes: Passes
    kind: Kind
    key: int  # of the micro-batch's slots, which all its passes share
    later: bool = False  # not the one that makes the gradients


def step_events(actions: list[Action], base: int) -> tuple[Events, Events, NDArray[np.int64]]:
    """The passes of one step in order; what frees the gradients behind the optimizer; and slots' streams."""
    bases: dict[int, int] = {}
    streams: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    parts, freed = [as_events([])], [as_events([])]
    for passes, kind, key, later in actions:
        if key not in bases:
            bases[key] = base
            base += len(passes.stream)
            streams.append(passes.stream)
        for events, into in zip(passes.events(kind, later), (parts, freed), strict=True):
            into.append(events + np.array([bases[key], 0]))
    events, gradients = np.concatenate(parts), np.concatenate(freed)
    slots, place = np.unique(np.concatenate((events, gradients))[:, 0], return_inverse=True)
    changes = np.concatenate((events[:, 1], gradients[:, 1]))
    left = np.bincount(place.ravel(), weights=changes, minlength=len(slots)).astype(np.int64)
    # What else is left goes with the step.
    return np.concatenate((events, np.stack((slots, -left), axis=1)[left > 0])), gradients, np.concatenate(streams)


def two_steps(actions: list[Action], resident: Resident) -> tuple[Events, NDArray[np.int64]]:
    """Events of a rank from its start to the end of its second step, and the stream of each."""
    base = len(resident.first) + len(resident.optimizer)
    parts = [as_events([(slot, size) for slot, size in enumerate(resident.first)])]
    optimizer_events = as_events([(len(resident.first) + slot, size) for slot, size in enumerate(resident.optimizer)])
    streams = [np.zeros(base, np.int64)]
    for number in range(2):
        events, gradients, of_slots = step_events(actions, base)
        base += len(of_slots)
        parts.append(events)
        streams += [of_slots, np.zeros(len(resident.transient), np.int64)]
        if number == 0:
            parts.append(optimizer_events)
        transient = as_events([(base + slot, size) for slot, size in enumerate(resident.transient)])
        parts += [transient, transient * np.array([1, -1]), gradients]
        base += len(resident.transient)
    all_events = np.concatenate(parts)
    return all_events, np.concatenate(streams)[all_events[:, 0]]


def as_events(events: list[tuple[int, int]]) -> Events:
    """Pairs as an array."""
    return np.array(events, np.int64).reshape(-1, 2)
