"""Prices of the ops of one layout, as in training: kernels from `cost.kernels`, beside them its host and its links.

Backward follows from forward: a GEMM has two, of the transposed shapes (Megatron adds the weight gradient into an
fp32 buffer, which is more bytes per weight than the plain GEMM writes); attention has its own kernel; an element-wise
op moves its stated bytes.

On a device that was measured itself (`cost.calibrated`) every op has the price that was measured there, and what was
not measured moves its bytes at the measured bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import cached_property

import numpy as np

from windtunnel.physics.cost.calibrated import CalibratedCosts, calibrated_costs
from windtunnel.physics.cost.kernels import KernelCosts, kernel_costs
from windtunnel.physics.cost.price import FREE, Price, Source
from windtunnel.physics.cost.scans import scan_price
from windtunnel.physics.cost.sustained import sustained_gemm, sustained_grouped_gemm, unaligned
from windtunnel.physics.cost.training import TrainingCosts, calibrated_training_costs, training_costs
from windtunnel.physics.hardware.calibration import LARGER_PROCESSES
from windtunnel.physics.model.adapters import ADAPTER
from windtunnel.physics.model.operations import CAST_BYTES, Operation
from windtunnel.studies.training.host_prices import HostPrices
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.link_prices import LinkPrices
from windtunnel.studies.training.plan import PEAK_DTYPE, Plan

LONG_SEQUENCE = (
    8192  # tokens from which on attention comes nearer to what it takes alone: prime-rl, 16k and 64k on Hopper
)
ADDED_WIDTH = 4096  # elements per row of what is added up as flat tensors
NOT_MEASURED = (0.6, 1.6)  # band of bytes over bandwidth on a calibrated device; an estimate
# oneDNN keeps the code of the last 1,024 shapes (ONEDNN_PRIMITIVE_CACHE_CAPACITY). An expert's products have six for
# each number of rows: forward, input's and weight's gradient, of two matrices. Routed rows are taken to be anything
# from none to three times the mean, which is an assumption.
SHAPES_REMEMBERED, SHAPES_PER_ROWS, ROUTED_SPREAD = 1024, 6, 3.0

# What runs beside an op's kernel in plain PyTorch, eagerly: calls of modules, views, nodes of autograd. Read off
# PyTorch 2.13: `linear` views its input as a matrix and its output back, and going back each of these is a node, as are
# the product, the transposition and the parameter; queries, keys, values and output are viewed and turned by head.
_LINEAR_FORWARD, _LINEAR_BACKWARD = {"module_call_s": 1.0, "view_call_s": 2.0}, {"grad_node_s": 6.0}
_FORWARD_CALLS = {
    "gemm": _LINEAR_FORWARD,
    "grouped_gemm": _LINEAR_FORWARD,
    "attention": {"module_call_s": 1.0, "view_call_s": 8.0},
    "memory": {"module_call_s": 1.0},
}
_BACKWARD_CALLS = {
    "gemm": _LINEAR_BACKWARD,
    "grouped_gemm": _LINEAR_BACKWARD,
    "attention": {"grad_node_s": 8.0},
    "memory": {"grad_node_s": 1.0},
}


# Of a frozen weight. nf4: a scale in 8 bits for every 64 (QLoRA, arXiv 2305.14314: .127 bits a weight).
FROZEN_BYTES = {"bf16": 2.0, "int8": 1.0, "nf4": 0.516}


def parameter_bytes(plan: Plan) -> float:
    """Bytes per parameter of what sharded ranks gather from each other."""
    if plan.fp8_parameters:
        return 1.0
    return 4.0 if plan.precision == "fp32" else 2.0


def _beyond_product(layout: Layout) -> float:
    """Bytes per weight that its gradient moves behind the 16-bit product that makes it.

    A GEMM of Megatron's adds to the gradient buffer itself; FSDP2's copy into what it reduces, in fp32, moves as much.
    In a pipeline FSDP2 first adds the product to the sum of all micro-batches. nanotron's product is a tensor, which is
    read and added.
    """
    width = layout.gradient_bytes
    if layout.habits.adds_gradients:
        return 2.0 * width + 2.0
    return 2.0 * width + (2.0 if layout.shares_once else -2.0)


class Pricer:
    """Prices one layout's ops. Same op, same price: every look-up is memoised for the life of the pricer."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.slow_compute = self.slow_links = 1.0
        self.document_length: int | None = None  # attention stays inside documents of so many tokens; None: sequences
        self.kernels: KernelCosts = kernel_costs(layout.cluster.gpu)
        self.calibrated: CalibratedCosts | None = calibrated_costs(layout.cluster)
        calibration = layout.cluster.calibration
        generation = layout.cluster.gpu.generation
        self.training: TrainingCosts = (
            training_costs(generation) if calibration is None else calibrated_training_costs(generation, calibration)
        )
        self.on_cpu = calibration is not None and calibration.kind == "cpu"
        self._sigma = self.training.uncertainty
        self._measured_host = {} if calibration is None else calibration.host
        # By identity: hashing an op costs as much as pricing it. It is kept, so that its identity stays its own.
        self._ops: dict[tuple[int, str], tuple[Operation, Price]] = {}
        self._moved: dict[float, Price] = {}
        self._gemms: dict[tuple[int, int, int, str], Price] = {}
        plan = layout.plan
        self._dtype = plan.precision if plan.precision in ("fp32", "bf16", "fp16") else "bf16"
        self._low_dtype = PEAK_DTYPE.get(plan.precision, self._dtype)
        self._gradient_bytes = _beyond_product(layout)
        self.host = HostPrices(layout, self.training)
        self.links = LinkPrices(layout, self.training)
        # DeepEP and HybridEP bring tokens to their places as they arrive.
        in_place = layout.deduplicates or self.host.software.fused_exchange
        self.gathered = 1.0 if in_place else self.training.gathered

    @cached_property
    def pass_key(self) -> tuple[object, ...]:
        """What passes depend on besides their pieces; every pass of a step is looked up by it."""
        return self.layout.pass_key

    def like(self, layout: Layout, *, same_ops: bool) -> Pricer:
        """Prices of another layout of the same cluster, framework and formats: what is known of kernels is shared.

        `same_ops`: its ranks have the very same ops, so that their prices are shared too. Where ranks are, and so what
        they send each other, may differ, and how ops are launched.
        """
        other = Pricer(layout)
        other._moved, other._gemms = self._moved, self._gemms
        if same_ops:
            other._ops = self._ops
        return other

    def slowed(self, compute: float, links: float) -> Pricer:
        """The same prices on a cell whose compute and whose links across nodes take so many times as long."""
        other = copy(self)
        other.slow_compute, other.slow_links = compute, links
        return other

    def with_documents(self, length: int) -> Pricer:
        """The same prices for sequences that are packed from documents of `length` tokens (fused attention only)."""
        other = copy(self)
        other.document_length = length
        other._ops = {}
        return other

    def _once(self, op: Operation, role: str, price: Callable[[Operation], Price]) -> Price:
        entry = self._ops.get((id(op), role))
        if entry is None:
            entry = self._ops[id(op), role] = (op, price(op))
        return entry[1]

    def forward(self, op: Operation) -> Price:
        """The op's own kernels, forward, without casts and transfers."""
        return self._once(
            op, "forward", lambda op: self._kernel(op, backward=False).plus(self._beside(op, _FORWARD_CALLS))
        )

    def input_gradient(self, op: Operation) -> Price:
        """Backward with respect to the input: dgrad of a GEMM, the whole backward of anything else."""
        return self._once(
            op, "dgrad", lambda op: self._kernel(op, backward=True).plus(self._beside(op, _BACKWARD_CALLS))
        )

    def _kernel(self, op: Operation, *, backward: bool) -> Price:
        if op.kind in ("gemm", "grouped_gemm"):
            if self.calibrated is not None:
                return self._measured_gemm(op, "dgrad" if backward else "forward")
            *groups, m, n, k = op.shape
            n, k = (k, n) if backward else (n, k)
            if groups:
                return self._grouped(op, m, n, k)
            return self._aligned(self._gemm(m, n, k, op.low_precision), op)
        if op.kind == "gemm_batch":
            return self._batched(op.shape).scaled(2.0 if backward else 1.0)
        if op.kind == "attention":
            return self._attention(op, backward=backward)
        if op.kind == "scan":
            return scan_price(self.layout.cluster.gpu, op, backward=backward)
        if op.kind == "memory":
            return self._element_wise(op, backward=backward)
        return FREE

    def _beside(self, op: Operation, calls: dict[str, dict[str, float]]) -> Price:
        """On a CPU, what Python and autograd do around an op's kernel and no kernel's time holds."""
        if not self.on_cpu or self.layout.plan.compile or op.kind not in calls or op.backward_only:
            return FREE
        seconds = sum(count * self._measured_host.get(name, 0.0) for name, count in calls[op.kind].items())
        seconds *= max(1, op.repeats)
        return Price(seconds, 0.6 * seconds, 1.6 * seconds, Source.INTERPOLATED) if seconds else FREE

    def weight_gradient(self, op: Operation) -> Price:
        """wgrad of a GEMM, accumulated into the gradient buffer where there is one; free for anything else."""
        return self._once(op, "wgrad", self._weight_gradient)

    def _weight_gradient(self, op: Operation) -> Price:
        if op.kind not in ("gemm", "grouped_gemm"):
            return FREE
        if self.calibrated is not None:
            alone = self._measured_gemm(op, "wgrad")
        elif op.kind == "gemm":
            m, n, k = op.shape
            alone = self._aligned(self._gemm(n, k, m, op.low_precision), op)
        else:
            _, m, n, k = op.shape
            alone = self._grouped(op, n, k, m)
        if self.layout.habits.pure_precision:  # the product itself becomes the gradient
            return alone
        extra = op.weight_elements * self._gradient_bytes
        return alone.plus(self.moved(extra)) if extra > 0 else alone

    def square_gemm(self, size: int) -> Price:
        """One GEMM of size x size x size in 16 bits."""
        return self._gemm(size, size, size, low=False)

    def cast(self, op: Operation, *, backward: bool) -> Price | None:
        """Quantising the input (or the output's gradient) of a low-precision GEMM; None where there is none."""
        moved = op.backward_bytes if backward else op.forward_bytes
        return self.moved(moved) if op.low_precision and moved else None

    def weight_cast(self, op: Operation) -> Price | None:
        """Quantising the weights of a low-precision GEMM; None where that is done once in a step, or not at all.

        Or the other way: frozen weights of fewer bits made 16 bits wide for every product (bitsandbytes).
        """
        if self.layout.widens_weights and op.kind in ("gemm", "grouped_gemm") and op.part not in (ADAPTER, "head"):
            *groups, _, n, k = op.shape
            return self.moved((FROZEN_BYTES[self.layout.plan.frozen_dtype] + 2.0) * math.prod(groups) * n * k)
        if not (op.low_precision and op.weight_elements and self.layout.casts_weights):
            return None
        return self.moved(op.weight_elements * CAST_BYTES[self.layout.plan.precision])

    def weight_transposition(self, op: Operation) -> Price | None:
        """Turning fp8 weights for the product that gives the input's gradient; None where they need not be."""
        turned = op.low_precision and op.weight_elements and self.layout.transposes_weights
        return self.copied(op.weight_elements) if turned else None

    def moved(self, bytes_total: float) -> Price:
        """An element-wise kernel that moves so many bytes."""
        price = self._moved.get(bytes_total)
        if price is None:
            price = self._moved[bytes_total] = self._moved_once(bytes_total)
        return price

    def _moved_once(self, bytes_total: float) -> Price:
        if self.calibrated is not None:
            seconds = self.calibrated.copy(bytes_total / 2.0).seconds if bytes_total >= 2.0 else 0.0
            low, high = NOT_MEASURED
            return Price(seconds, seconds * low, seconds * high, Source.ROOFLINE) if seconds else FREE
        return self.kernels.memory_bound(bytes_total).fitted(
            self.training.sustained.memory, self._sigma["memory-bound"]
        )

    def copied(self, bytes_total: float) -> Price:
        """A plain copy of so many bytes: read and written, and nothing that a real element-wise kernel adds to that."""
        if self.calibrated is not None:
            return self.moved(2.0 * bytes_total)
        return self.kernels.memory_bound(2.0 * bytes_total)

    def added(self, elements: float) -> Price:
        """Adding so many elements to as many others in place, as gradients of later micro-batches are."""
        if self.calibrated is None:
            return self.moved(3.0 * elements * (4 if self._dtype == "fp32" else 2))
        width = min(elements, float(ADDED_WIDTH))
        return self.calibrated.elementwise("add backward", max(1.0, elements / width), width, self._dtype)

    def new_pages(self, bytes_total: float, held_bytes: float, *, update: bool = False) -> Price:
        """Faults on so many bytes that lie on pages handed out anew (`training/memory/new_pages.py`); on a CPU only.

        `held_bytes`: the most that the process holds in a step. Pages of a large process may cost more (`calibrate`).
        """
        host = self._measured_host
        usual = host.get("new_page_s_per_byte", 0.0)
        levels = {size << 30: host[name] for size, name in LARGER_PROCESSES.items() if name in host}
        more = float(np.interp(held_bytes, [0, *levels], [usual, *levels.values()])) - usual
        each = more + (host.get(f"new_page_update_{self._dtype}_s_per_byte", usual) if update else usual)
        seconds = max(0.0, each) * bytes_total if self.on_cpu else 0.0
        return Price(seconds, 0.7 * seconds, 1.3 * seconds, Source.INTERPOLATED) if seconds else FREE

    def _measured_gemm(self, op: Operation, role: str) -> Price:
        assert self.calibrated is not None
        dtype = self._low_dtype if op.low_precision else self._dtype
        *_, m, n, k = (max(1.0, float(round(size))) for size in op.shape)
        if op.kind == "gemm":
            return self.calibrated.gemm(role, m, n, k, dtype)
        price = self.calibrated.grouped_gemm(role, int(op.shape[0]), m, n, k, dtype)
        # What the library prepares for a shape that it does not remember: code, on a CPU.
        remembered = min(1.0, SHAPES_REMEMBERED / (SHAPES_PER_ROWS * ROUTED_SPREAD * m))
        new = op.new_shapes * (1.0 - remembered) * self._measured_host.get(f"new_shape_{role}_{dtype}_s", 0.0)
        return price.plus(Price(new, 0.5 * new, 1.5 * new, Source.INTERPOLATED)) if new else price

    def _element_wise(self, op: Operation, *, backward: bool) -> Price:
        """A memory op. What a compiler fuses was not measured as one."""
        bytes_total, timed = op.backward_bytes if backward else op.forward_bytes, op.timed
        fused = bool(self.layout.plan.compile) and op.part not in ("embedding", "head") and op.name != "final_norm"
        if self.calibrated is None:
            return self.moved(bytes_total * (self.gathered if op.part == "moe_permute" else 1.0))
        if timed is None or fused:
            launches = self.host.unmeasured_launch_s * op.kernels
            price = self.moved(bytes_total)
            return Price(price.seconds + launches, price.p5 + launches, price.p95 + launches, Source.ROOFLINE)
        times = timed.backward if backward else timed.forward
        if not times:
            return FREE
        phase = "backward" if backward else "forward"
        rows, width = max(1.0, timed.rows), max(1.0, timed.width)
        price = self.calibrated.elementwise(f"{timed.op} {phase}", rows, width, self._dtype).scaled(times)
        if op.name == "embedding" and backward:
            # Was timed on a small table; the rest of a real one's gradient has to be filled with zeros.
            table = self.layout.model.vocab_size * self.layout.model.hidden_size / self.layout.plan.tp
            price = price.plus(self.calibrated.optimizer("zero_grad", table, self._dtype))
        return price

    def _gemm(self, m: float, n: float, k: float, low: bool) -> Price:
        dtype = self._low_dtype if low else self._dtype
        m, n, k = (max(1, round(size)) for size in (m, n, k))
        if self.calibrated is not None:  # what belongs to no linear layer
            return self.calibrated.gemm("forward", float(m), float(n), float(k), dtype)
        gemm = self._gemms.get((m, n, k, dtype))
        if gemm is None:
            gemm = self._gemms[m, n, k, dtype] = sustained_gemm(self.kernels, self.training, m, n, k, dtype)
        return gemm

    def _aligned(self, price: Price, op: Operation) -> Price:
        """A 16-bit product at the length of its rows; the narrow formats refuse what is not aligned."""
        _, n, k = op.shape
        factor = unaligned(n, k)
        dtype = self._low_dtype if op.low_precision else self._dtype
        if factor == 1.0 or dtype not in ("bf16", "fp16"):
            return price
        return price.fitted(factor, self._sigma["gemm"])

    def _grouped(self, op: Operation, m: float, n: float, k: float) -> Price:
        groups, dtype = op.shape[0], self._low_dtype if op.low_precision else self._dtype
        if op.apart:
            return self._gemm(m, n, k, op.low_precision).scaled(groups)
        return sustained_grouped_gemm(self.kernels, self.training, groups, m, n, k, dtype)

    def _batched(self, shape: tuple[float, ...]) -> Price:
        """Products of many small matrices: as long as a cube of the same FLOPs computes, or as their bytes take."""
        width = 4.0 if self._dtype == "fp32" else 2.0
        batch, m, n, k = shape
        side = (batch * m * n * k) ** (1.0 / 3.0)
        together = self._gemm(side, side, side, low=False)
        bytes_bound = self.moved(width * batch * (m * n + m * k + n * k))
        return max(together, bytes_bound, key=lambda price: price.seconds)

    def _attention(self, op: Operation, *, backward: bool) -> Price:
        batch, seq_q, seq_kv, heads, kv_heads, d, dv, window, cp = op.shape
        exact = 1.0
        if self.document_length is not None and self.document_length < seq_q:
            parts = math.ceil(seq_q / self.document_length)
            exact = seq_q / (parts * self.document_length)  # the last document may be shorter
            batch, seq_q, seq_kv = batch * parts, self.document_length, self.document_length
        if self.calibrated is not None:
            share = exact / cp
            if window and window < seq_q:
                share *= (window - window * (window - 1) / (2 * seq_q)) / ((seq_q + 1) / 2)
            if not op.causal:
                share *= seq_q / float(self.calibrated.attended(seq_q))
            whole = self.calibrated.attention(
                max(1, int(batch)),
                int(seq_q),
                max(1, int(heads)),
                max(1, int(kv_heads)),
                round((d + dv) / 2),
                self._dtype,
                backward,
            )
            return whole.scaled(share)
        if op.variant == "products":
            scores = self._batched((batch * heads, seq_q, seq_kv, d)).plus(
                self._batched((batch * heads, seq_q, dv, seq_kv))
            )
            products = scores.scaled(2.0 if backward else 1.0)
            return products.plus(self.moved(op.backward_bytes if backward else op.forward_bytes)).scaled(exact)
        price = self.kernels.attention(
            max(1, int(batch)),
            int(seq_q),
            int(seq_kv),
            max(1, int(heads)),
            max(1, int(kv_heads)),
            int(d),
            causal=op.causal,
            window=int(window) or None,
            backward=backward,
            dtype=self._dtype,
            value_head_dim=int(dv),
        )
        if op.index_shape:
            price = price.plus(self._batched(op.index_shape).scaled((2.0 if backward else 1.0) * cp))
        factor = self.training.sustained.attention
        if op.variant not in ("triton", "flash2"):
            # What the best kernel loses in training beside one alone it loses at its ends, and long ones less of.
            factor = 1.0 + (factor - 1.0) * min(1.0, LONG_SEQUENCE / min(seq_q, window or seq_q))
        if op.variant == "triton":
            factor *= self.training.sustained.attention_triton
        elif op.variant == "flash2":
            factor *= self.training.sustained.attention_flash2
        return price.fitted(factor, self._sigma["attention"]).scaled(exact / cp)
