"""What the host costs beside the kernels of one layout: launches, a step's own time, and where the GPU waits for it.

A CPU runs an op in the thread that launches it: its measured time holds the launch, so there is no host beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windtunnel.physics.cost.communication.collectives import tier
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.cost.training import TrainingCosts, software
from windtunnel.physics.model.adapters import ADAPTER
from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training.layout import Layout

STOPS_BAND = (0.5, 1.7)  # an estimate


class HostPrices:
    """Seconds of the host, for one layout."""

    def __init__(self, layout: Layout, costs: TrainingCosts) -> None:
        self.layout, self.costs = layout, costs
        self.software = software(layout.plan.release)
        plan, calibration = layout.plan, layout.cluster.calibration
        on_cpu = calibration is not None and calibration.kind == "cpu"
        # A calibration has timed its own host.
        speed = layout.cluster.host.cpu_speed if calibration is None else 1.0
        launch_s = (costs.graph_launch_s if plan.cuda_graphs else costs.launch_s[plan.framework]) / speed
        if calibration is not None and plan.compile and not plan.cuda_graphs and costs.compiled_launch_s is not None:
            launch_s = costs.compiled_launch_s
        self.launch_s = 0.0 if on_cpu else launch_s
        self.unmeasured_launch_s = launch_s if on_cpu else 0.0  # of what a calibration of a CPU has not timed
        by_engine = not (plan.cuda_graphs or plan.compile or calibration is not None)
        self.backward_launch_s = self.launch_s * (costs.backward_launch[plan.framework] if by_engine else 1.0)
        self.step_s = costs.step_per_doubling_s[plan.framework] * math.log2(max(1.0, layout.cluster.n_gpus / 8)) / speed
        if plan.full_graph:
            self.step_s *= costs.graphed_step_share
        self.collective_launch_s = self.tp_launch_s = self.exchange_s = 0.0
        if on_cpu:
            return
        together_s = costs.graph_launch_s if plan.cuda_graphs else costs.collective_launch_s[plan.framework]
        self.collective_launch_s = together_s / speed
        self.exchange_s = costs.exchange_s.get(plan.framework, 0.0) / speed
        across = {"pp": layout.late_members, "tp": tier(layout.group("tp")) == "scale_out"}
        late_s = sum(value for what, value in costs.late_member_s.get(plan.framework, {}).items() if across[what])
        self.tp_launch_s = self.collective_launch_s + plan.tp * late_s / speed
        if layout.habits.copies_exchanges and not (plan.compile or plan.cuda_graphs):
            self.tp_launch_s += costs.dtensor_s / speed

    def stops(self, operations: Sequence[Operation]) -> Price | None:
        """What the host keeps the GPU waiting in one pass over a layer; None for nothing."""
        plan = self.layout.plan
        read_s = 0.0 if plan.cuda_graphs else self.costs.read_s.get(plan.framework, 0.0)
        own, beside = self.software, [op for op in operations if op.part == ADAPTER and op.name.endswith(" A")]
        adapters = [op for op in beside if not op.name.startswith("experts")]
        reads = own.layer_reads + own.adapter_reads * len(adapters)
        if any(op.kind == "grouped_gemm" and op.part != ADAPTER for op in operations):
            reads += own.expert_reads if len(beside) == len(adapters) else own.adapted_expert_reads
        if plan.attention_impl == "flash" and self.layout.cluster.gpu.generation.startswith("blackwell"):
            reads += own.flash4_reads
        seconds = reads * read_s
        if own.adapter_reads:  # products of grouped rows, with gradients over all tokens
            seconds += self.costs.adapter_token_s * sum(math.prod(op.shape[:-2]) for op in adapters)
        if not seconds:
            return None
        return Price(seconds, seconds * STOPS_BAND[0], seconds * STOPS_BAND[1], Source.FITTED)
