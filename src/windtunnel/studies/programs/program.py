"""What one rank of a script executed in one step: ops with their shapes, data dependencies, streams and memory.

The order is that in which Python issued the ops. `after` holds data dependencies and those that streams and events add;
the order on one stream goes without saying. Written as JSON lines, one op each, so that `diff` can show where two ranks
part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.studies.programs.communication import Communication


class TensorSpec(NamedTuple):
    """Shape, dtype (torch's name without "torch.") and whether a tensor lies on the host or the device."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "device"  # or "host"


@dataclass(frozen=True, slots=True)
class Op:
    """One op that reached PyTorch's dispatcher and does work (views are left out), or a communication, or a wait."""

    name: str  # "aten.mm", "c10d.allreduce_", "wait" (host waits for a communication), "sync" (host reads a tensor)
    kind: str  # compute | communication | wait | sync | copy (host to device or back)
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    after: tuple[int, ...] = ()  # indices of earlier ops of the same program
    stream: int = 0  # 0: the default stream; a communication is issued from one and runs on its group's own
    module: str = ""  # qualified name of the innermost module
    phase: str = "other"
    micro_batch: int = 0
    recompute: bool = False
    communication: Communication | None = None
    scalars: tuple[object, ...] = ()  # what else decides the cost: strides of a product, causal or not, ...
    # Of a script that compiles; see `fusion.py`.
    compiled: int = 0  # the call of a compiled function that this is part of, its backward included; 0: none
    reads: tuple[tuple[int, int, int], ...] = ()  # of each input: storage, the op that wrote it last (-1: none), bytes
    writes: tuple[tuple[int, int], ...] = ()  # storage, bytes
    lies: int = 0  # equal where the inputs are the same parts of their storages, and what is given besides them is too
    line: str = ""  # of a communication: the script's, "train.py:41"; no part of what is compared


class MemoryEvent(NamedTuple):
    """A storage comes or goes while op `op` runs (or before it, from Python)."""

    op: int
    storage: int  # a number for each storage
    bytes: int  # > 0 allocates, < 0 frees; as asked for, not rounded
    category: str  # parameter | gradient | optimizer | activation | communication | temporary | other


class Answer(NamedTuple):
    """Python asked for a tensor's value and was told something."""

    op: int
    what: str  # "aten._local_scalar_dense float32 []"
    told: str
    where: str  # file:line of the script


@dataclass(frozen=True, slots=True)
class RankProgram:
    """One rank's steady step."""

    rank: int
    world_size: int
    ops: tuple[Op, ...]
    memory: tuple[MemoryEvent, ...] = ()
    resident: tuple[MemoryEvent, ...] = ()  # what is there when the step begins; op = -1
    answers: tuple[Answer, ...] = ()
    meshes: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = ()  # dimension names and sizes of each DeviceMesh
    coordinates: tuple[tuple[int, ...], ...] = ()  # of this rank in each
    notes: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)  # torch version, script, seconds to capture, parameters, ...
