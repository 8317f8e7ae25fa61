"""Peak memory of each rank class: state that stays, activations by their lifetimes in the schedule, and workspace.

A rank works through its actions one after the other, so its activations rise by a piece's saved bytes with each forward
and fall with the backward (with the weight gradient, where that is split off). The peak is the largest sum over actions of
what is held before, what the action adds, and its workspace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.model.operations import ACTIVATION_BYTES
from windtunnel.result import StageMemory
from windtunnel.training.layout import Layout
from windtunnel.training.lower import Step
from windtunnel.training.pieces import Piece
from windtunnel.training.pricing import GRADIENT_BYTES
from windtunnel.training.schedules import Kind
from windtunnel.training.state import state_bytes

# CUDA context with the kernels of PyTorch, cuBLAS and NCCL loaded; cuBLAS workspace (32 MiB on Hopper and later).
CONTEXT_BYTES = 700 * 2**20
NCCL_BYTES_PER_COMMUNICATOR = 400 * 2**20  # channel buffers on an NVSwitch node; aiconfigurator-core lists 342-392 MiB
FRAGMENTATION = 0.02  # of allocated bytes, rounding and split blocks; see docs/physics/memory.md
POINTS = 400  # of the drawn timeline


@dataclass(frozen=True, slots=True)
class _Walk:
    peak: float
    at: int  # action
    held: float  # activations at the peak
    workspace: float
    levels: NDArray[np.float64]  # held during each action, workspace included


def memory_of(layout: Layout, pieces: tuple[Piece, ...], step: Step, end_ns: NDArray[np.int64]) -> tuple[StageMemory, ...]:
    """Memory of every pipeline rank."""
    schedule = step.schedule
    communicators = sum(layout.group(name).size > 1 for name in ("tp", "cp", "dp", "ep", "pp"))
    outside = CONTEXT_BYTES + NCCL_BYTES_PER_COMMUNICATOR * communicators
    found = []
    for rank in range(schedule.stages):
        held = [pieces[v] for v in schedule.virtual_stage[rank]]
        dense, expert = sum(p.dense_parameters for p in held), sum(p.expert_parameters for p in held)
        state = state_bytes(layout, dense, expert)
        walk = _walk(schedule.rank_offset[rank], schedule.rank_offset[rank + 1], pieces, step)
        gathered = _gathered_bytes(layout, held)
        categories = {
            "parameters": state.parameters,
            "gradients": state.gradients,
            "optimizer": state.optimizer,
            "activations": walk.held,
            "workspace": walk.workspace + gathered,
        }
        whole = {name: int(value) for name, value in categories.items()}
        allocated = sum(whole.values())
        reserved = int(allocated * (1.0 + FRAGMENTATION))
        static = state.parameters + state.gradients + state.optimizer + gathered
        first = int(schedule.rank_offset[rank])
        times = end_ns[step.action_last[first : int(schedule.rank_offset[rank + 1])]]
        found.append(
            StageMemory(
                stage=rank,
                ranks=layout.cluster.n_gpus // schedule.stages,
                categories=whole,
                peak_allocated_bytes=allocated,
                peak_reserved_bytes=reserved,
                device_bytes=reserved + outside,
                peak_time_ns=int(times[walk.at]),
                timeline=_thinned(times, walk.levels + static),
            )
        )
    return tuple(found)


def _walk(first: int, last: int, pieces: tuple[Piece, ...], step: Step) -> _Walk:
    schedule = step.schedule
    kind, stage = schedule.kind[first:last], schedule.stage_of[first:last]
    saved = np.array([p.saved_bytes for p in pieces])[stage]
    forward = kind == Kind.FORWARD
    releases = (kind == Kind.BACKWARD) | (kind == Kind.BACKWARD_WEIGHT)
    change = np.where(forward, saved, 0.0) - np.where(releases, saved, 0.0)
    after = np.cumsum(change)
    before = after - change
    workspace = np.where(
        forward,
        np.array([p.forward_workspace_bytes for p in pieces])[stage],
        np.array([p.backward_workspace_bytes for p in pieces])[stage],
    )
    during = np.maximum(before, after) + workspace
    at = int(np.argmax(during))
    return _Walk(float(during[at]), at, float(max(before[at], after[at])), float(workspace[at]), during)


def _gathered_bytes(layout: Layout, held: list[Piece]) -> float:
    """Parameters present in full while sharded data parallelism works on them: this block and the next; gradients of one."""
    stage = layout.plan.zero_stage or 0
    if stage < 2:
        return 0.0
    blocks = [block for piece in held for block in piece.blocks]
    largest = sorted((b.dense_parameters + b.expert_parameters for b in blocks), reverse=True)[:2]
    gradients = largest[0] * max(ACTIVATION_BYTES, GRADIENT_BYTES[layout.plan.gradient_dtype or "bf16"])
    return gradients + (sum(largest) * ACTIVATION_BYTES if stage == 3 else 0.0)


def _thinned(times: NDArray[np.int64], levels: NDArray[np.float64]) -> tuple[tuple[int, int], ...]:
    """At most POINTS points; within each stretch the highest one is kept, so the peak survives."""
    n = len(times)
    if n <= POINTS:
        keep = np.arange(n)
    else:
        edges = np.linspace(0, n, POINTS + 1).astype(int)
        keep = np.array([a + int(np.argmax(levels[a:b])) for a, b in zip(edges[:-1], edges[1:], strict=True)])
    return tuple((int(t), int(b)) for t, b in zip(times[keep], levels[keep], strict=True))
