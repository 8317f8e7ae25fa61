"""What a working window costs and saves: prices of one layer, memory by window, and the window itself.

device    = activations and workspace as they were
          + state of what is always there (embedding, head, w layers) at the state's bytes per parameter
          + 2 min(w, L - w) buffers of one layer's parameters, the window's pool
reserved  = allocated x 1.36: buffers that come and go leave gaps (`constants`)
host      = state of the L - w layers
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from windtunnel.errors import LayoutError, SpecError
from windtunnel.physics.model.operations import Transfer
from windtunnel.physics.step.result import Result
from windtunnel.studies.techniques import constants
from windtunnel.studies.techniques.flat import FlatStep, play
from windtunnel.studies.techniques.flat.lower import layer_tasks
from windtunnel.studies.techniques.offload.window import LayerTimes, WindowTimeline, by_formula, timeline
from windtunnel.studies.techniques.parameters import OffloadPlan
from windtunnel.studies.techniques.priced import MemoryShares, TechniquePrice, TimelinePicture
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.pricing import parameter_bytes
from windtunnel.studies.training.schedules import Kind
from windtunnel.units import format_bytes

FP32_STATE = 16.0  # bytes per parameter: itself, gradient, two moments


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one rank."""

    layer_parameters: float  # count
    other_parameters: float  # count: embedding, head
    state_width: float  # bytes of parameter, gradient and moments together
    copied_width: float  # bytes of a parameter on the device
    state: float  # parameters, gradients and optimizer without a window, as `predict` has them
    stays: float  # activations and workspace
    outside: int  # of the allocator

    layers: int

    def resident(self, window: int) -> float:
        """State of what is always there."""
        return (self.other_parameters + window * self.layer_parameters) * self.state_width

    def pool(self, window: int) -> float:
        """Buffers of the layers that come and go."""
        return 2.0 * min(window, self.layers - window) * self.layer_parameters * self.copied_width

    def device(self, window: int) -> int:
        """At the peak, as the allocator hands it out."""
        return int(self.resident(window) + self.pool(window) + self.stays)

    def reserved(self, window: int) -> int:
        """What it takes from the device."""
        return int(self.device(window) * constants.RESERVED_OVER_ALLOCATED) + self.outside


def price_offload(step: FlatStep, result: Result, offload: OffloadPlan) -> TechniquePrice:
    """A step with a working window against the same step with everything on the device, fit or not."""
    layout = step.layout
    if layout.zero_stage > 1:
        raise LayoutError(
            f"offload with zero_stage {layout.plan.zero_stage}: a window holds whole layers, ZeRO-2 and -3 cut them",
            "use zero_stage 0 or 1",
        )
    if layout.plan.offload_optimizer:
        raise LayoutError("offload with offload_optimizer: both move the optimizer", "leave one of them out")
    blocks = [block for block in step.blocks if not block.is_end]
    layers = len(blocks)
    if offload.window is not None and not 1 <= offload.window <= layers:
        raise SpecError("window", offload.window, f"give 1 to {layers}, the layers of this rank, or auto")
    times, ends = layer_times(step, blocks, offload)
    sizes = sizes_of(step, blocks, result)
    budget = offload.device_memory or layout.cluster.gpu.usable_memory_bytes
    host = offload.host_memory or layout.cluster.host.memory_bytes // layout.cluster.gpus_per_node
    state = sizes.layer_parameters * sizes.state_width

    def stepped(window: int) -> WindowTimeline:
        host_layers = int(host // state)
        times_here = times if layers - window > host_layers and offload.nvme else replace(times, drive=0.0)
        drives = max(0, layers - window - host_layers) if offload.nvme else 0
        return timeline(
            times_here, layers, window, micro_batches=layout.micro_batches, before_s=ends[0], after_s=ends[1],
            end_s=ends[2], updaters=offload.updaters, drive_layers=drives,
        )  # fmt: skip

    # The host holds what is not in the window, unless a drive does.
    least = 1 if offload.nvme else max(1, layers - int(host // state))
    if offload.window is not None and offload.window < least:
        remedy = f"holds {int(host // state)} layers' state, not {layers - offload.window}: give window={least} or more"
        raise SpecError("host_memory", format_bytes(host), f"{remedy}, a larger host_memory, or nvme=true")
    fitting = [
        window for window in range(1, layers + 1) if sizes.reserved(window) * constants.WINDOW_HEADROOM <= budget
    ]
    if offload.window is None and least > max(fitting, default=1):
        away = layers - max(fitting, default=1)
        remedy = f"holds {int(host // state)} layers' state, and {away} or more are not on the device: give a larger"
        raise SpecError("host_memory", format_bytes(host), f"{remedy} host_memory, or nvme=true")
    window = offload.window or chosen(times, layers, [number for number in fitting if number >= least], ends)
    needed = sizes.reserved(window)
    if offload.device_memory is not None and needed > budget:
        remedy = f"a window of {window} needs {format_bytes(needed)}: give that or more"
        raise SpecError("device_memory", format_bytes(budget), remedy)
    after = stepped(window)
    whole = stepped(layers)
    stall = after.step_s - whole.step_s
    return TechniquePrice(
        without_s=whole.step_s,
        with_s=after.step_s,
        parameters={**asdict(offload), "window": window, "device_memory": int(budget), "host_memory": int(host)},
        details={
            "layers": layers,
            "forward_s": times.forward,
            "backward_s": times.backward,
            "fetch_s": times.fetch,
            "gradients_s": times.gradients,
            "update_s": times.update,
            "stall_s": max(0.0, stall),
            "formula_step_s": by_formula(times, layers, window, sum(ends)),
            "allocated_bytes": sizes.device(window),
            "host_bytes": (layers - window) * state,
        },
        on_device=MemoryShares(
            sizes.resident(window) / sizes.state, sizes.pool(window) / sizes.state, constants.RESERVED_OVER_ALLOCATED
        ),
        before=TimelinePicture(whole.tasks, whole.played, {}),
        after=TimelinePicture(after.tasks, after.played, {}),
    )


def chosen(times: LayerTimes, layers: int, fitting: list[int], ends: tuple[float, float, float]) -> int:
    """The smallest window that hides everything, else the largest that fits; 1 where nothing fits."""
    if not fitting:
        return 1
    hides = max(times.fetch, times.gradients, times.update, times.drive) <= times.backward
    if hides and times.fetch <= times.forward:
        return min(2, max(fitting))  # one runs while the next is on its way
    return min(fitting, key=lambda w: (round(by_formula(times, layers, w, sum(ends)), 9), w))


def layer_times(
    step: FlatStep, blocks: list[Block], offload: OffloadPlan
) -> tuple[LayerTimes, tuple[float, float, float]]:  # fmt: skip
    """Seconds of the mean layer, and of what stands before, between and behind the layers."""
    layout, pricer = step.layout, step.pricer

    def took(block: Block, phase: Kind) -> float:
        return play(layer_tasks(pricer, block, phase), step.lanes).makespan_ns / 1e9

    n = len(blocks)
    forward = sum(took(block, Kind.FORWARD) for block in blocks) / n
    backward = sum(took(block, Kind.BACKWARD) for block in blocks) / n
    parameters = sum(block.dense_parameters + block.expert_parameters for block in blocks) / n
    ends = [block for block in step.blocks if block.is_end]
    first = sum(took(block, Kind.FORWARD) for block in ends[:1])
    between = sum(took(block, Kind.FORWARD) for block in ends[1:]) + sum(took(b, Kind.BACKWARD) for b in ends)
    update = step.one_batch[-2] if step.one_batch[-1].name == "between steps" else step.one_batch[-1]
    assert update.role == "update", "a step ends with its update"
    everything = sum(block.dense_parameters + block.expert_parameters for block in step.blocks)
    per_parameter = update.work_ns / 1e9 / everything
    link = layout.cluster.host.offload_bandwidth_bytes_per_s * constants.PCIE_EFFICIENCY
    width = parameter_bytes(layout.plan)
    gradient = layout.gradient_bytes
    if layout.plan.precision == "fp32":
        gradient = 4.0
    traffic = constants.EAGER_ADAM_BYTES if offload.optimizer == "eager" else constants.FUSED_ADAM_BYTES
    drive = parameters * (FP32_STATE - 4.0) * 2.0 / constants.NVME_BYTES_PER_S if offload.nvme else 0.0
    reduce = 0.0
    if layout.group("dp").size > 1:
        reduce = pricer.links.transfer(Transfer("all_reduce", "dp", parameters * gradient))[0].seconds
    times = LayerTimes(
        forward=forward,
        backward=backward,
        fetch=parameters * width / link,
        gradients=parameters * gradient / link,
        update=parameters * traffic / (offload.host_threads * constants.HOST_BYTES_PER_S_PER_THREAD),
        resident_update=parameters * per_parameter,
        drive=drive,
        reduce=reduce,
    )
    others = sum(block.dense_parameters for block in ends)
    return times, (first, between, others * per_parameter + pricer.host.step_s)


def sizes_of(step: FlatStep, blocks: list[Block], result: Result) -> Sizes:
    """What one layer and the rest weigh, from the memory that `predict` found for the job as it was."""
    layout, full = step.layout, result.peak_memory
    count = sum(block.dense_parameters + block.expert_parameters for block in step.blocks)
    inside = sum(block.dense_parameters + block.expert_parameters for block in blocks)
    state = {name: float(full.categories.get(name, 0)) for name in ("parameters", "gradients", "optimizer")}
    width = FP32_STATE if layout.plan.precision == "fp32" else sum(state.values()) / count
    return Sizes(
        layer_parameters=inside / len(blocks),
        other_parameters=count - inside,
        state_width=width,
        copied_width=parameter_bytes(layout.plan),
        state=sum(state.values()),
        stays=full.peak_allocated_bytes - sum(state.values()),
        layers=len(blocks),
        outside=max(0, full.device_bytes - full.peak_reserved_bytes),
    )
