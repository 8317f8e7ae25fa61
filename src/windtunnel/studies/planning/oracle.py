"""What the planner asks of the training study: legality, memory and the replayed step.

Only this file and those in `least` know how `training` is built. The planner owns no physics: legality is `resolve` and
`schedule`, time and memory are those that `predict` gives, to the nanosecond and the byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.physics.cost.training import calibrated_training_costs, training_costs
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.model import Model
from windtunnel.studies.planning.least.beside_passes import held_by_ranks
from windtunnel.studies.training import Plan, predict, read_plan
from windtunnel.studies.training.launch.megatron.writing import hides_exchange, interleaves
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.by_stage import simulate_by_stage
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.lowering.simulated import Simulated, simulate
from windtunnel.studies.training.memory.model_state import state_bytes
from windtunnel.studies.training.memory.peak import least_bytes, peak_bytes, ranks_peak_bytes
from windtunnel.studies.training.mixed import check_lies_on_one, stages_of
from windtunnel.studies.training.plan import PEAK_DTYPE, RECOMPUTE_PARTS
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import NAMES as SCHEDULES
from windtunnel.studies.training.schedules import Kind, legal, schedule, walk

__all__ = [
    "PEAK_DTYPE",
    "RECOMPUTE_PARTS",
    "SCHEDULES",
    "Layout",
    "Plan",
    "check_lies_on_one",
    "hides_exchange",
    "interleaves",
    "predict",
    "read_plan",
    "stages_of",
]  # with what is defined below

PIECES_KEPT = 256
HOST_SHARE = 0.9  # of a host's memory: the rest is the system's, the data loaders' and the page cache's


def laid_out(model: Model, cluster: Cluster, plan: Plan) -> Layout:
    """The plan as it would run. Raises UserError where `predict` would: a degree or a schedule that cannot be."""
    layout = resolve(model, cluster, plan)
    plan = layout.plan
    legal(layout.schedule, plan.pp, layout.micro_batches, plan.virtual_stages, plan.micro_batch_group)
    return layout


@dataclass(frozen=True, slots=True)
class Replayed:
    """One plan, replayed event by event."""

    step_ns: int
    peak_bytes: int
    capacity_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the fullest rank has the memory, without giving back what it caches."""
        return self.peak_bytes <= self.capacity_bytes


_PIECES: OrderedDict[tuple[object, ...], tuple[Model, tuple[Piece, ...]]] = OrderedDict()
# Fields that change the time of a step but no tensor of it.
_NO_TENSOR = dict.fromkeys(
    ("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "overlap_ep", "overlap_tp", "cuda_graphs")
)


def pieces(layout: Layout) -> tuple[Piece, ...]:
    """The pieces of a layout, remembered: plans that differ in overlap and launch only share them."""
    key = (id(layout.model), layout.cluster, layout.plan.with_fields(_NO_TENSOR), layout.etp)
    entry = _PIECES.get(key)
    if entry is None:
        entry = _PIECES[key] = (layout.model, pieces_of(layout))
        while len(_PIECES) > PIECES_KEPT:
            _PIECES.popitem(last=False)
    return entry[1]


def memory_bytes(layout: Layout, capacity: int | None = None) -> int:
    """What the fullest rank needs on its device; nothing is timed for it. Beyond `capacity`: at least so much.

    No plan is proposed that fits only because its allocator gives cached memory back, again and again: nobody can say
    how long its step takes.
    """
    return peak_bytes(layout, pieces(layout), layout.schedule_table(), capacity)


def least_memory_bytes(layout: Layout) -> int:
    """The same if no memory were lost between tensors: never more, and sooner known."""
    return least_bytes(layout, pieces(layout), layout.schedule_table())


def host_holds(layout: Layout) -> bool:
    """Whether what goes to the host finds room there."""
    away = {name: 0 for name in ("offload_optimizer", "offload_activations") if getattr(layout.plan, name)}
    if not away:
        return True
    cluster = layout.cluster
    moved = memory_bytes(laid_out(layout.model, cluster, layout.user_plan.with_fields(away))) - memory_bytes(layout)
    return moved * min(cluster.gpus_per_node, cluster.n_gpus) <= HOST_SHARE * cluster.host.memory_bytes


def ranks_bytes(layout: Layout) -> list[int]:
    """The same of every pipeline rank."""
    return ranks_peak_bytes(layout, pieces(layout), layout.schedule_table())


def step_ns(layout: Layout) -> int:
    """Step time of one plan, replayed."""
    pricer = Pricer(layout)
    return _with_waiting(simulate(layout, pieces(layout), layout.schedule_table(), pricer), pricer)


def staged_step_ns(layouts: Sequence[Layout], type_of: Sequence[int]) -> int:
    """The same where pipeline ranks lie on several types, one layout each, as if all GPUs were of it."""
    pricers, pieces_by_type = [Pricer(layout) for layout in layouts], [pieces(layout) for layout in layouts]
    return _with_waiting(simulate_by_stage(pricers, pieces_by_type, layouts[0].schedule_table(), type_of), pricers[0])


def _with_waiting(simulated: Simulated, pricer: Pricer) -> int:
    waiting = round(simulated.makespan_ns * pricer.training.straggling(pricer.layout.cluster.n_gpus))
    return simulated.makespan_ns + waiting


def replayed(layout: Layout) -> Replayed:
    """Step time and peak memory of one plan."""
    return Replayed(step_ns(layout), memory_bytes(layout), layout.cluster.gpu.usable_memory_bytes)


def straggling(cluster: Cluster) -> float:
    """Waiting for the slowest rank, in parts of a step."""
    calibration = cluster.calibration
    generation = cluster.gpu.generation
    costs = training_costs(generation) if calibration is None else calibrated_training_costs(generation, calibration)
    return costs.straggling(cluster.n_gpus)


def checked(fields: Mapping[str, object]) -> Plan:
    """The fields as a Plan reads them. Raises UserError where `predict` would."""
    return read_plan(fields)


def saved_bytes_of_a_rank(layout: Layout) -> float:
    """Parameters and optimizer state that the fullest rank writes into a checkpoint."""
    layout_pieces = pieces(layout)
    dense = held_by_ranks(layout, np.array([piece.dense_parameters for piece in layout_pieces]))
    expert = held_by_ranks(layout, np.array([piece.expert_parameters for piece in layout_pieces]))
    states = [state_bytes(layout, a, b) for a, b in zip(dense.tolist(), expert.tolist(), strict=True)]
    return max(state.parameters + state.optimizer for state in states)


def walked_1f1b(
    stages: int, micro_batches: int, forward_s: Sequence[float], backward_s: Sequence[float]
) -> list[float]:  # fmt: skip
    """When each stage ends its last pass, in seconds, its passes one after the other as 1F1B orders them."""
    order = schedule("1f1b", stages, micro_batches)
    table = np.array([forward_s, backward_s], np.float64)
    which = (order.kind != Kind.FORWARD).astype(np.int64)
    ends = walk(order, table[which, order.rank])
    return [float(ends[order.rank_offset[r] : order.rank_offset[r + 1]].max()) for r in range(stages)]
