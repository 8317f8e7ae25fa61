"""What a framework keeps, and the writer of tapes: tensors with references, freed when the last one goes.

The rules of each framework are data, in `cost/calibration/memory.yaml`. Which tensors a backward op needs is that of
Korthikanti et al. 2022 (arXiv 2205.05198), section 4: a GEMM its input, a norm its input, flash attention its inputs,
output and log-sum-exp, an activation function its input, the loss the softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from windtunnel.physics.cost.device_memory import memory_document
from windtunnel.physics.model.operations import KEPT_BYTES, Operation
from windtunnel.questions.asked.parts.plan import Plan

INPUT = 0  # slot of a block's input
READS_NORM = ("qkv", "q", "q_down", "kv_down", "router", "permute", "mlp_up", "shared_up")
BLOCKS = ("mlp", "moe", "shared_experts")  # that recomputation makes again from their input on
BRANCHES = ("qkv", "q", "q_up", "kv_up")  # what attention reads together


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a framework keeps; see `cost/calibration/memory.yaml` for the fields."""

    gathered_inputs: bool
    gathers_again: bool
    triton_norms: bool
    weight_gradients: bool
    stand_in: bool
    buckets: bool
    updated_copy: bool
    root_gathered: bool
    expandable: bool
    fsdp2: bool
    torch_pipelining: bool
    loss: Mapping[str, Any]
    foreach_releases: tuple[str, ...] = ()
    adapter_outputs: bool = False  # eagerly, what an adapter makes is scaled and added by kernels of their own
    autograd_keeps: bool = False
    quantised_weights: bool = False  # copies that the forward pass made of weights that it gathered

    @property
    def keeps_all_inputs(self) -> bool:
        """Whether no gathered input of a GEMM is gathered a second time."""
        return self.gathered_inputs and not self.gathers_again


@lru_cache
def keeping(framework: str, release: str | None = None) -> Keeping:
    """What the framework keeps; `release` as in a plan, e.g. `nemo-24.11`."""
    frameworks = memory_document()["frameworks"]
    fields = dict(frameworks[framework])
    if "like" in fields:
        fields = {name: value for name, value in frameworks[fields["like"]].items() if name != "loss_of_releases"} | {
            name: value for name, value in fields.items() if name != "like"
        }
    older = fields.pop("loss_of_releases", None)
    if older is not None and release is not None and release.startswith(tuple(older["names"])):
        fields["loss"] = older
    return Keeping(foreach_releases=tuple(fields.pop("foreach_releases", ())), **fields)


def expands(plan: Plan) -> bool:
    """Whether segments of PyTorch's allocator grow."""
    stated = plan.expandable_segments
    return keeping(plan.framework).expandable if stated is None else stated


class WeightGradient(NamedTuple):
    """Backward of an op with weights: what their gradient is made of, for schedules that put it off."""

    at: int  # event of the backward tape at which it begins
    weight: int  # slot of the gradient or of what stands in for it, -1: none of its own
    gathered: int  # slot of what is gathered for it again, -1: nothing
    inputs: tuple[int, ...]  # slots of what it reads of the forward pass
    gradient: int  # slot of the gradient of the output
    linear: bool = True  # else a norm


@dataclass(slots=True)
class SavedForBackward:
    """What the forward of one op leaves for its backward."""

    op: Operation
    size: int  # bytes of the input
    saved_bytes: list[int]
    again: float  # bytes that selective recomputation makes again before the backward of this op


class Writer:
    """Slots, references and events of one block."""

    def __init__(
        self, keep: Keeping, parts: frozenset[str], precision: str, tp: int, compiled: bool = False
    ) -> None:  # fmt: skip
        self.keep, self.parts, self.tp, self.compiled = keep, parts, tp, compiled
        self.loss = keep.loss.get("compiled", keep.loss) if compiled and tp == 1 else keep.loss
        self.cast = KEPT_BYTES.get(precision, 0.0)
        self.size: dict[int, int] = {}
        self.part_bytes: dict[int, int] = {}  # what slots take that stand for more than themselves
        self.holds: dict[int, int] = {}
        self.events: list[tuple[int, int]] = []
        self.gradients: list[int] = []  # of weights
        self.stays: set[int] = set()  # slots that are not offloaded
        self.learners: list[WeightGradient] = []
        self.slots = 1

    def reserve(self, size: float) -> int:
        """A tensor that another block makes, with one reference."""
        slot, self.slots = self.slots, self.slots + 1
        self.size[slot], self.holds[slot] = max(int(size), 1), 1
        return slot

    def new(self, size: float, share: float = 1.0) -> int:
        """A tensor with one reference. `share`: of its bytes, where the others are a tensor of their own."""
        slot = self.reserve(size)
        if share != 1.0:
            self.part_bytes[slot] = max(1, int(share * size))
        self.events.append((slot, self.bytes_of(slot)))
        return slot

    def bytes_of(self, slot: int) -> int:
        """What a slot takes."""
        return self.part_bytes.get(slot, self.size[slot])

    def sizes(self) -> tuple[int, ...]:
        """Of all slots."""
        return tuple(self.bytes_of(slot) for slot in range(self.slots))

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

    def fetch(self, slot: int) -> None:
        """A tensor that is back from the host, with one reference."""
        self.holds[slot] = 1
        self.events.append((slot, self.bytes_of(slot)))

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
    if op.part in parts and op.part in ("attention", *BLOCKS):
        return True
    return previous is not None and previous.part in parts and previous.kind == "memory"


def drops_own(op: Operation, parts: frozenset[str]) -> bool:
    """Whether selective recomputation makes again what an element-wise op keeps."""
    if "ops" in parts:
        return op.part not in ("head", "residual")
    if op.part in ("activation", "moe_activation"):  # by itself its input stays, and its output is made again
        return bool(parts & (frozenset(BLOCKS) if op.part == "activation" else {"moe"}))
    return op.part in parts and op.part != "norms"


def kept_products(operations: tuple[Operation, ...], compiled: bool) -> dict[str, float]:
    """Share of each linear layer's output that per-op recomputation keeps, by name (torchtitan's default policy).

    It keeps every other matrix product of a layer, the first among them, with queries, keys and values, and gate and
    up, in matrices of their own. The last one's nothing reads again: eager keeps it all the same, a compiler does not.
    Experts' grouped products are another operator (`_grouped_mm`), which its list does not hold: none is kept.
    """
    linear = [op for op in operations if op.kind == "gemm" and op.part != "head"]
    shares: dict[str, float] = {}
    count = 0
    for op in linear:
        widths = _matrices(op, operations)
        kept_width = 0.0
        for width in widths:
            count += 1
            kept_width += width if count % 2 else 0.0
        shares[op.name] = kept_width / sum(widths)
    if compiled and linear:
        shares[linear[-1].name] = 0.0
    return shares


def _matrices(op: Operation, operations: tuple[Operation, ...]) -> tuple[float, ...]:
    """Widths of the matrices that an op stands for."""
    if op.name == "qkv":
        core = next((operation.shape for operation in operations if operation.kind == "attention"), None)
        if core is not None:
            return core[3] * core[5], core[4] * core[5], core[4] * core[6]
        return 1.0, 1.0, 1.0
    gated = op.name in ("mlp_up", "shared_up", "experts_up") and _gated(op, operations)
    return (1.0, 1.0) if gated else (1.0,)


def _gated(up: Operation, operations: tuple[Operation, ...]) -> bool:
    """Whether it is two matrices, gate and up: twice as wide as what goes on."""
    names = {"mlp_up": "mlp_down", "shared_up": "shared_down", "experts_up": "experts_down"}
    down = next((operation for operation in operations if operation.name == names[up.name]), None)
    return down is not None and up.shape[-2] > 1.5 * down.shape[-1]
