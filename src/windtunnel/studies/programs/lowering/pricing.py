"""What a captured op costs: products and attention by their shapes, everything else by the bytes that it moves.

    product, attention    `cost.kernels` on a catalogue GPU, held to what power sustains in training (`cost.training`);
                          `cost.calibrated` on a device that was measured itself, by kind of op and shape
    anything else         bytes read and written over the memory's bandwidth, never below a launch; a foreach or fused
                          kernel moves the bytes of all its tensors in one launch
    copy                  bytes over the link between host and device
    communication         `cost.communication`, with the members where they really are

Ops without a kernel (an empty tensor is only allocated) cost nothing and are not launched. On a CPU an op runs in the
thread that issues it, so its measured time holds the launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.calibrated import CalibratedCosts, calibrated_costs
from windtunnel.physics.cost.communication.collectives import Group, collective, nic_share, pull, tier
from windtunnel.physics.cost.kernels import KernelCosts, kernel_costs
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.cost.sustained import sustained_gemm, sustained_grouped_gemm
from windtunnel.physics.cost.training import (
    MATH,
    SCALE_OUT,
    SCALE_UP,
    TRAFFIC,
    TrainingCosts,
    calibrated_training_costs,
    training_costs,
)
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.studies.programs.communication import PULL
from windtunnel.studies.programs.op_shapes import (
    Attention,
    Grouped,
    Product,
    attention_of,
    grouped_of,
    plain_name,
    product_of,
    tensor_bytes,
    tensor_elements,
)
from windtunnel.studies.programs.program import Op, TensorSpec

GEMM, ATTENTION, MEMORY, OPTIMIZER, COPY, HOST = (
    *("gemm", "attention", "memory-bound", "optimizer", "exposed host copy", "host"),
)
DTYPES = {
    **{"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"},
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8"), "fp8"),
}
# Only the allocator is asked, or only metadata changes.
NO_KERNEL: frozenset[str] = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "detach"),
        *("_unsafe_view", "view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze"),
        *("split", "split_with_sizes", "as_strided", "record_stream", "resize_", "set_", "lift_fresh", "unbind"),
        "alias",
    )
)
# aten op -> what a calibrated device timed of the same shape, and its phase
_TIMED = {
    "_fused_rms_norm": "rms_norm forward",
    "_fused_rms_norm_backward": "rms_norm backward",
    "native_layer_norm": "layer_norm forward",
    "native_layer_norm_backward": "layer_norm backward",
    "gelu": "gelu forward",
    "gelu_backward": "gelu backward",
    "_softmax": "softmax forward",
    "_softmax_backward_data": "softmax backward",
    "embedding": "embedding forward",
    "embedding_dense_backward": "embedding backward",
    "index_select": "gather_rows forward",
    "index_add": "scatter_add_rows forward",
    "index_add_": "scatter_add_rows forward",
}
NOT_MEASURED = (0.6, 1.6)  # band of bytes over bandwidth on a calibrated device; an estimate
COPY_BAND = 1.3
# `cost.communication` has no collective with a root but broadcast and reduce: the root moves what all would.
_KIND = {"gather": "all_gather", "scatter": "reduce_scatter", "send": "send_recv", "recv": "send_recv"}


class Priced(NamedTuple):
    """An op's price, the part of the step that it belongs to, and its interference class."""

    price: Price
    category: str
    interference: int


@dataclass(frozen=True, eq=False)
class OpPricer:
    """Prices of captured ops on one cluster. Get it from `op_pricer`."""

    cluster: Cluster
    kernels: KernelCosts
    calibrated: CalibratedCosts | None
    training: TrainingCosts
    on_cpu: bool
    launch_s: float  # one kernel, by the host
    compiled_launch_s: float  # one of a compiled graph
    compiled_call_s: float  # of each graph, beyond that
    collective_launch_s: float
    _priced: dict[object, Priced] = field(default_factory=dict, repr=False)

    def price(self, op: Op) -> Priced | None:
        """The price of an op of kind compute or copy; None where nothing is launched."""
        key = (op.name, op.kind, op.inputs, op.outputs, op.scalars, op.bytes_read, op.bytes_written, op.phase,
               op.recompute)  # fmt: skip
        priced = self._priced.get(key)
        if priced is None:
            if plain_name(op) in NO_KERNEL:
                return None
            priced = self._priced[key] = self._price(op)
        return priced

    def _price(self, op: Op) -> Priced:
        if op.kind == "copy":
            return Priced(self._copy(op), COPY, 0)
        priced = self._multiplies(op)
        if priced is None:
            priced = Priced(self._moves(op), MEMORY, TRAFFIC)
        # A Newton-Schulz iteration of the optimizer is a product all the same, but its time is the optimizer's.
        return priced._replace(category=OPTIMIZER) if op.phase == "optimizer" else priced

    def _multiplies(self, op: Op) -> Priced | None:
        product = product_of(op)
        if product is not None:
            return Priced(self._product(op, product), GEMM, MATH)
        grouped = grouped_of(op)
        if grouped is not None:
            return Priced(self._grouped(op, grouped), GEMM, MATH)
        attention = attention_of(op)
        if attention is not None:
            return Priced(self._attention(attention), ATTENTION, MATH)
        return None

    # ------------------------------------------------------------------------------------------ what multiplies

    def _product(self, op: Op, product: Product) -> Price:
        dtype = DTYPES.get(product.dtype, "fp32")
        batch, m, n, k = product[:4]
        if self.calibrated is not None:
            if batch > 1:
                gemm = self.calibrated.gemm("forward", float(m), float(n), float(k), dtype)
                return max(gemm.scaled(batch), self.price_of_moving(self._bytes(op)), key=lambda price: price.seconds)
            return self._timed_product(op, product, dtype).scaled(product.times)
        if batch == 1:
            price = self._gemm(m, n, k, dtype).scaled(product.times)
            if product.parts == 1:
                return price
            # Cut up, a product is no faster: short kernels were timed at a clock that many of them do not get.
            share = self._gemm(m * product.parts, n, k, dtype).scaled(1.0 / product.parts)
            return max(price, share, key=lambda candidate: candidate.seconds)
        # Batched small products are taken as one of the same FLOPs; their outputs are what binds them.
        together = self._gemm(batch * m, n, k, dtype)
        return max(together, self.price_of_moving(self._bytes(op)), key=lambda price: price.seconds)

    def _timed_product(self, op: Op, product: Product, dtype: str) -> Price:
        """As the pass of a linear layer that it is: x w' forward, backward g w or g' x."""
        assert self.calibrated is not None
        m, n, k = (float(size) for size in (product.m, product.n, product.k))
        if op.phase != "backward" or op.recompute:
            return self.calibrated.gemm("forward", m, n, k, dtype)
        if product.turned:
            return self.calibrated.gemm("wgrad", k, m, n, dtype)
        return self.calibrated.gemm("dgrad", m, k, n, dtype)

    def _gemm(self, m: int, n: int, k: int, dtype: str) -> Price:
        gpu, slower = self.cluster.gpu, 1.0
        if dtype == "fp64" and not gpu.supports("fp64"):  # at half the rate of fp32, for want of its own
            slower, dtype = 2.0, "fp32"
        if not gpu.supports(dtype):
            dtype = "fp32" if dtype == "tf32" and gpu.supports("fp32") else "bf16"
        return sustained_gemm(self.kernels, self.training, m, n, k, dtype).scaled(slower)

    def _grouped(self, op: Op, grouped: Grouped) -> Price:
        dtype = DTYPES.get(grouped.dtype, "bf16")
        groups, m, n, k = grouped[:4]
        if self.calibrated is not None:
            role = "forward" if op.phase != "backward" or op.recompute else "dgrad"
            return self.calibrated.grouped_gemm(role, groups, max(1.0, m), n, k, dtype)
        dtype = dtype if self.cluster.gpu.supports(dtype) else "bf16"
        return sustained_grouped_gemm(self.kernels, self.training, groups, m, n, k, dtype)

    def _attention(self, call: Attention) -> Price:
        dtype = DTYPES.get(call.dtype, "bf16")
        if self.calibrated is not None:
            seq = max(call.seq_q, call.seq_kv)
            price = self.calibrated.attention(
                call.batch, seq, call.heads, call.kv_heads, round((call.head_dim + call.value_head_dim) / 2), dtype,
                call.backward,
            )  # fmt: skip
            # Timed on causal squares: without a mask all keys are met, of a rectangle its share.
            more = 1.0 if call.causal else seq / float(self.calibrated.attended(seq))
            return price.scaled(more * call.seq_q * call.seq_kv / seq**2)
        price = self.kernels.attention(
            call.batch,
            call.seq_q,
            call.seq_kv,
            call.heads,
            call.kv_heads,
            call.head_dim,
            causal=call.causal and call.seq_q <= call.seq_kv,
            backward=call.backward,
            dtype=dtype if dtype in ("bf16", "fp16", "fp8", "fp32", "fp64") else "bf16",
            value_head_dim=call.value_head_dim,
        )
        factor = self.training.sustained.attention
        if call.kernel in ("flash", "efficient"):  # FlashAttention-2 is what PyTorch ships
            factor *= self.training.sustained.attention_flash2
        return price.scaled(factor)

    # --------------------------------------------------------------------------------------------- what moves bytes

    def _moves(self, op: Op) -> Price:
        if self.calibrated is None:
            return self.price_of_moving(self._bytes(op))
        timed = _TIMED.get(plain_name(op))
        if plain_name(op) in ("add", "add_") and len(op.inputs) > 1 and op.inputs[0].shape == op.inputs[1].shape:
            timed = f"add {'backward' if op.phase == 'backward' else 'forward'}"
        largest = max((*op.outputs, *op.inputs[:1]), key=tensor_bytes, default=None)
        if timed is not None and largest is not None and len(largest.shape) > 0 and tensor_elements(largest):
            return self._timed(timed, op, largest)
        price = self.price_of_moving(self._bytes(op))
        launch = self.launch_s if self.on_cpu else 0.0
        return Price(price.seconds + launch, price.p5 + launch, price.p95 + launch, Source.ROOFLINE)

    def _timed(self, timed: str, op: Op, largest: TensorSpec) -> Price:
        assert self.calibrated is not None
        width = largest.shape[-1]
        rows = tensor_elements(largest) // width
        if timed == "embedding backward":  # its output is the table, its tokens are those of the gradient
            rows = max(1, tensor_elements(op.inputs[0]) // max(1, op.inputs[0].shape[-1]))
        dtype = DTYPES.get(largest.dtype, "fp32")
        return self.calibrated.elementwise(timed, float(max(1, rows)), float(max(1, width)), dtype)

    def price_of_moving(self, bytes_total: float) -> Price:
        """A kernel that moves so many bytes; at least a launch."""
        if self.calibrated is None:
            return self.kernels.memory_bound(bytes_total).scaled(self.training.sustained.memory)
        seconds = self.calibrated.copy(max(1.0, bytes_total / 2.0)).seconds
        low, high = NOT_MEASURED
        return Price(seconds, seconds * low, seconds * high, Source.ROOFLINE)

    def _bytes(self, op: Op) -> float:
        """As recorded; where nothing was, each tensor once."""
        recorded = op.bytes_read + op.bytes_written
        return recorded or float(sum(tensor_bytes(spec) for spec in (*op.inputs, *op.outputs)))

    def _copy(self, op: Op) -> Price:
        size = float(max((tensor_bytes(spec) for spec in (*op.outputs, *op.inputs)), default=0))
        to_host = bool(op.outputs) and op.outputs[0].device == "host"
        kind = "d2h" if to_host else "h2d"
        if self.calibrated is not None and size:
            is_timed = any(name == f"{kind} forward" or name == kind for name, _ in self.calibrated.calibration.points)
            return self.calibrated.copy(size, kind if is_timed else "copy")
        seconds = roofline.launch_floor_s() + size / self.cluster.host.offload_bandwidth_bytes_per_s
        return Price(seconds, seconds, seconds * COPY_BAND, Source.ROOFLINE)

    # -------------------------------------------------------------------------------------------------- communication

    def communication(self, kind: str, bytes_total: float, group: Group) -> Price:
        """A collective, message or pull alone on its links."""
        if kind == PULL:
            return pull(bytes_total, group, self.cluster)
        price = collective(_KIND.get(kind, kind), int(bytes_total), group, self.cluster)
        if kind in ("send", "recv") and tier(group) == "scale_out":  # NCCL gives a peer few channels
            return price.scaled(self.training.sustained.p2p)
        return price

    def nic_share(self, kind: str, bytes_total: float, group: Group) -> float:
        """Share of a GPU's NIC that a collective takes while alone.

        Messages between stages are left out, as in `step.nic_sharing`: what they meet is in their fitted price.
        """
        if kind in ("send", "recv", PULL):
            return 0.0
        return nic_share(_KIND.get(kind, kind), int(bytes_total), group, self.cluster)


def interference_of(group: Group) -> int:
    """Class of a communication: it slows compute, and compute slows it, by the tier that it crosses."""
    return SCALE_UP if tier(group) == "scale_up" else SCALE_OUT


def op_pricer(cluster: Cluster, *, framework: str = "pytorch", cuda_graphs: bool = False) -> OpPricer:
    """Prices on `cluster`. `framework`: whose host costs (`cost/calibration/training.yaml`) a launch has."""
    calibration, generation = cluster.calibration, cluster.gpu.generation
    training = training_costs(generation) if calibration is None else calibrated_training_costs(generation, calibration)
    speed = cluster.host.cpu_speed if calibration is None else 1.0
    launch = training.graph_launch_s if cuda_graphs else training.launch_s[framework]
    compiled = launch if cuda_graphs or training.compiled_launch_s is None else training.compiled_launch_s
    collective_launch = training.graph_launch_s if cuda_graphs else training.collective_launch_s[framework]
    return OpPricer(
        cluster=cluster,
        kernels=kernel_costs(cluster.gpu),
        calibrated=calibrated_costs(cluster),
        training=training,
        on_cpu=calibration is not None and calibration.kind == "cpu",
        launch_s=launch / speed,
        compiled_launch_s=compiled / speed,
        compiled_call_s=0.0 if cuda_graphs else training.compiled_call_s / speed,
        collective_launch_s=collective_launch / speed,
    )
