"""The backward pass in two, for schedules that put off the gradients of weights: what each half allocates and frees.

The first half (B) gives the gradient of the input, the second (W) those of the weights. What a linear layer's weight
gradient is made of, its input and the gradient of its output, stays from B to W (Qi et al., arXiv 2401.10241, section
2). `torch.distributed.pipelining` (PyTorch 2.13, `_backward.py`) keeps autograd's graph for W, and with it everything
that the forward pass saved in front of the last linear layer; and norms' gradients are made in W too.
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.studies.training.memory.forward_trace import Tape


class Halves(NamedTuple):
    """Events of both halves, and the slots that go when the last block of the piece has had its second."""

    inputs: tuple[tuple[int, int], ...]
    weights: tuple[tuple[int, int], ...]
    rest: tuple[int, ...]


def halves(tape: Tape, *, graph: bool) -> Halves:
    """Of one block; `graph`: autograd's graph stays until W."""
    learners = [learner for learner in tape.learners if graph or learner.linear]
    read_later = {slot for learner in learners for slot in (*learner.inputs, learner.gradient)}
    begins = min((learner.at for learner in learners), default=len(tape.backward))
    if graph:  # what is saved and not freed in front of the last linear layer
        saved = {slot for slot, size in tape.forward if size} - {slot for slot, size in tape.forward if not size}
        read_later |= saved - {slot for slot, size in tape.backward[:begins] if not size} - {tape.output}
    put_off = {slot for learner in learners for slot in (learner.weight, learner.gathered)}
    inputs = [(slot, size) for slot, size in tape.backward if slot not in put_off and (size or slot not in read_later)]
    freed = {slot for slot, size in tape.backward if not size}
    weights: list[tuple[int, int]] = []
    for number, learner in enumerate(learners):
        new = [slot for slot in (learner.gathered, learner.weight) if slot >= 0]
        weights += [(slot, tape.sizes[slot]) for slot in new]
        wanted = {slot for other in learners[number + 1 :] for slot in (*other.inputs, other.gradient)}
        leaving = dict.fromkeys((learner.gathered, learner.weight, *learner.inputs, learner.gradient))
        weights += [(slot, 0) for slot in leaving if slot in freed and slot not in wanted]
        freed -= set(leaving) - wanted
    return Halves(tuple(inputs), tuple(weights), tuple(sorted(read_later & freed)))
