"""What a framework keeps, and the writer of tapes: tensors with references, freed when the last one goes.

The rules of each framework are data, in `cost/calibration/memory.yaml`. Which tensors a backward op needs is that of
Korthikanti et al. 2022 (arXiv 2205.05198), section 4: a GEMM its input, a norm its input, flash attention its inputs,
output and log-sum-exp, an activation function its input, the loss the softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from windtunnel.model.operations import KEPT_BYTES, Operation

INPUT = 0  # slot of a block's input
READS_NORM = ("qkv", "q", "q_down", "kv_down", "router", "permute", "mlp_up", "shared_up")
BRANCHES = ("qkv", "q", "q_up", "kv_up")  # what attention reads together


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a framework keeps; see `cost/calibration/memory.yaml` for the fields."""

    gathered_inputs: bool
    gathers_again: bool
    triton_norms: bool
    weight_gradients: bool
    buckets: bool
    updated_copy: bool
    root_gathered: bool
    own_low_precision: bool
    expandable: bool
    loss: Mapping[str, Any]

    @property
    def keeps_all_inputs(self) -> bool:
        """Whether no gathered input of a GEMM is gathered a second time."""
        return self.gathered_inputs and not self.gathers_again


@lru_cache
def memory_document() -> dict[str, Any]:
    """Constants of memory, as in the calibration file."""
    import yaml

    data = yaml.safe_load(files("windtunnel.cost.calibration").joinpath("memory.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


@lru_cache
def keeping(framework: str, release: str | None = None) -> Keeping:
    """What the framework keeps; `release` as in a plan, e.g. `nemo-24.11`."""
    fields = dict(memory_document()["frameworks"][framework])
    older = fields.pop("loss_of_releases", None)
    if older is not None and release is not None and release.partition("-")[0] in older["names"]:
        fields["loss"] = older
    return Keeping(**fields)


@dataclass(slots=True)
class Step:
    """What the forward of one op leaves for its backward."""

    op: Operation
    size: int  # bytes of the input
    held: list[int]
    again: float  # bytes that selective recomputation makes again before the backward of this op


class Writer:
    """Slots, references and events of one block."""

    def __init__(self, keep: Keeping, parts: frozenset[str], precision: str, tp: int) -> None:
        self.keep, self.parts, self.tp = keep, parts, tp
        self.cast = KEPT_BYTES.get(precision, 0.0)
        self.size: dict[int, int] = {}
        self.holds: dict[int, int] = {}
        self.events: list[tuple[int, int]] = []
        self.gradients: list[int] = []  # of weights
        self.slots = 1

    def reserve(self, size: float) -> int:
        """A tensor that another block makes, with one reference."""
        slot, self.slots = self.slots, self.slots + 1
        self.size[slot], self.holds[slot] = max(int(size), 1), 1
        return slot

    def new(self, size: float) -> int:
        """A tensor with one reference."""
        slot = self.reserve(size)
        self.events.append((slot, self.size[slot]))
        return slot

    def hold(self, slot: int) -> int:
        """One more reference."""
        self.holds[slot] += 1
        return slot

    def drop(self, *slots: int) -> None:
        """One reference less each; a tensor without any is freed."""
        for slot in slots:
            self.holds[slot] -= 1
            if not self.holds[slot]:
                self.events.append((slot, 0))

    def moved(self, source: int, size: float) -> int:
        """A new tensor in place of one that is no longer read."""
        slot = self.new(size)
        self.drop(source)
        return slot


def input_is_recomputed(op: Operation, previous: Operation | None, parts: frozenset[str]) -> bool:
    """Whether selective recomputation makes a GEMM's input again."""
    if op.part == "head":
        return False
    if "ops" in parts:
        return True  # the policy keeps outputs of GEMMs, not inputs
    if op.part in parts and op.part in ("attention", "mlp"):
        return True
    return previous is not None and previous.part in parts and previous.kind == "memory"


def drops_own(op: Operation, parts: frozenset[str]) -> bool:
    """Whether selective recomputation makes again what an element-wise op keeps."""
    if "ops" in parts:
        return op.part not in ("head", "residual")
    return op.part in parts and op.part not in ("norms", "activation", "moe_activation")
