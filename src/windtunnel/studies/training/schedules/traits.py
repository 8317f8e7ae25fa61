"""What the rest of the program must know about each schedule besides its table: one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """Of one schedule. What is not said is as in plain 1F1B."""

    most_chunks: int | None = 1  # model chunks per rank; None: as many as there are layers for
    splits_backward: bool = False  # has the gradients of inputs and of weights apart
    in_line: bool = True  # stage v is on rank v modulo the stages
    ends_with_first: bool = False  # a rank's last pass is the backward of its first stage
    turns: bool = False  # V shape: the pipeline comes back, its first and last stage are on one rank
    both_ways: bool = False  # micro-batches enter at both ends; every rank has two stages of the model
    hides_dispatch: bool = False  # made to run one micro-batch's expert dispatch under another's computation
    has_runtime: bool = True  # needs a pipeline runtime, which gathers a rank's whole stages (FSDP)


TRAITS: Mapping[str, Traits] = {
    "gpipe": Traits(ends_with_first=True, has_runtime=False),
    "1f1b": Traits(ends_with_first=True, has_runtime=False),
    "zb-h1": Traits(splits_backward=True),
    "interleaved": Traits(most_chunks=None, ends_with_first=True),
    "zb-v": Traits(most_chunks=2, splits_backward=True, in_line=False, turns=True),
    "dualpipe": Traits(most_chunks=2, splits_backward=True, in_line=False, both_ways=True, hides_dispatch=True),
    "dualpipe-v": Traits(most_chunks=2, splits_backward=True, in_line=False, turns=True, hides_dispatch=True),
}
