"""What one operation costs on a device that was measured itself (`hardware.calibration`), one curve per operation.

    costs = calibrated_costs(cluster)                           # None: the cluster has no calibration
    costs.gemm("dgrad", m=4096, n=4096, k=4096, dtype="bf16")   # a Price

A curve (`cost.fitting`) is a physical form, what it leaves interpolated. Terms of the forms, each with a coefficient
that cannot be negative:

    gemm            m n k, m n, m k, n k, 1              FLOPs, bytes of the three matrices, launch
    grouped gemm    the gemm's price x groups, groups, 1; without gemms its terms x groups
    attention       b h s a d, b h s a, b h s d, b kv s d, 1     a keys that a query meets (`attended`)
    others          x, max(0, x - x_j), rows, 1          x elements; steeper beyond x_j: caches end

Sources: MEASURED on a point, where the price is the point's own; INTERPOLATED inside the box that the points span, in
logs of the sizes; FITTED beyond it by less than a factor of 40 over all sizes together, or from a sibling (another
dtype, the forward kernel for a gradient); ROOFLINE further out or where nothing like it was measured. The band is the
fit's, 10 % more per factor e outside. No price is below half the shortest time of its operation, and none beats the
best measured FLOP rate (gemm) by more than 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.measured.fitting import Array, Fit, fit
from windtunnel.physics.cost.price import FREE, Price, Source
from windtunnel.physics.hardware.calibration import COPIES, Calibration, Points, operation, size_names
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.hardware.gpu import Gpu

_Z = 1.645  # standard deviations from the median to the 5th or 95th percentile
_RUN_Z = 1.282  # and to the 10th or 90th, of single runs
_OUTSIDE_BAND = 0.10  # log half-width added per factor e beyond the points
_ROOFLINE_BEYOND = math.log(40.0)
_SIBLING_BAND = 0.20  # log half-width added where another dtype or phase stands in; an estimate
_UNMEASURED_BAND = 0.5  # log half-width where only bytes and bandwidth are known; an estimate
_STEPS = 5  # places where an element-wise curve may get steeper
_BEST_RATE_MARGIN = 1.1
_WIDEST = 0.5  # standard deviation up to which the mean of a log-normal time is believed
_FLOOR_SHARE = 0.5
_KEY_BLOCK = 512.0  # of PyTorch's attention on a CPU
_ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "mxfp8": 1, "int8": 1}

# Tensors of rows x width that an operation reads and writes altogether, where it was not measured.
_MOVED = {
    **{"rms_norm": 2, "layer_norm": 2, "swiglu": 3, "gelu": 2, "rope": 2, "add": 3, "dropout": 2, "softmax": 2},
    **{"embedding": 2, "cross_entropy": 3, "cast": 2, "gather_rows": 2, "scatter_add_rows": 3},
    **{"adamw": 7, "zero_grad": 1, "clip_norm": 3},
}
_BACKWARD_MOVES = 1.5  # of what forward moves


@dataclass(frozen=True, eq=False)
class Curve:
    """One operation, phase and dtype: what was measured and what was made of it, for prices and for plots."""

    op: str  # "gemm forward"
    dtype: str
    names: tuple[str, ...]  # of the sizes
    shapes: NDArray[np.int64]
    seconds: Array
    low: Array
    high: Array
    terms: tuple[str, ...]  # of the form
    fitted: Fit
    steps: tuple[float, ...]  # element counts at which the form may get steeper
    exact: dict[tuple[float, ...], int] = field(repr=False)

    @property
    def left_out_seconds(self) -> Array:
        """Each point as predicted from all others."""
        return self.seconds * np.exp(-self.fitted.left_out)

    @property
    def mean_error(self) -> float:
        """Mean relative error of the points, each predicted from the others."""
        return float(np.abs(np.expm1(-self.fitted.left_out)).mean())

    @property
    def formula(self) -> str:
        """The form as text, seconds."""
        pairs = zip(self.fitted.coefficients, self.terms, strict=True)
        return " + ".join(f"{value:.3g} {term}" for value, term in pairs if value > 0.0) or "0"


@dataclass(frozen=True, eq=False)
class CalibratedCosts:
    """Prices of single operations on a calibrated device. Get it from `calibrated_costs`."""

    calibration: Calibration
    gpu: Gpu
    _curves: dict[tuple[str, str], Curve | None] = field(default_factory=dict, repr=False)
    _prices: dict[tuple[object, ...], Price] = field(default_factory=dict, repr=False)

    def gemm(self, role: str, m: float, n: float, k: float, dtype: str) -> Price:
        """A linear layer x[m, k], w[n, k] -> y[m, n]; `role` is forward, dgrad or wgrad, sizes are the layer's in all.

        Raises:
            SpecError: an unknown role, or a size below 1.
        """
        return self._priced(f"gemm {role}", (m, n, k), dtype)

    def grouped_gemm(self, role: str, groups: int, m: float, n: float, k: float, dtype: str) -> Price:
        """`groups` linear layers of (m, n, k) one after the other, weights of their own; `m` rows each on average."""
        return self._priced(f"grouped_gemm {role}", (groups, max(1.0, m), n, k), dtype)

    def attention(
        self, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, dtype: str, backward: bool = False
    ) -> Price:
        """Causal attention over `batch` sequences, forward, or backward alone."""
        phase = "backward" if backward else "forward"
        return self._priced(f"attention {phase}", (batch, seq, heads, kv_heads, head_dim), dtype)

    def attended(self, seq: Array | float) -> Array:
        """Keys that a query of causal attention is multiplied with, on average over `seq` of them.

        Half of them on a GPU. On a CPU PyTorch goes by blocks of 512 keys, and masks what it has computed of the last
        (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: kv_split_size): up to 512 nothing is saved.
        """
        seq = np.asarray(seq, dtype=np.float64)
        if self.calibration.kind != "cpu":
            return np.asarray(seq / 2.0)
        blocks = np.floor(seq / _KEY_BLOCK)
        whole = blocks * _KEY_BLOCK  # rows that meet whole blocks only; the others meet all keys
        return np.asarray((whole * (blocks + 1) * _KEY_BLOCK / 2.0 + (seq - whole) * seq) / seq)

    def elementwise(self, op_phase: str, rows: float, width: float, dtype: str) -> Price:
        """An operation on rows x width: "rms_norm backward", "cross_entropy forward" (tokens, vocab), ..."""
        return self._priced(op_phase, (rows, width), dtype)

    def optimizer(self, kind: str, parameters: float, dtype: str) -> Price:
        """ "adamw foreach", "adamw fused", "zero_grad" or "clip_norm" over so many parameters."""
        return FREE if parameters == 0 else self._priced(kind, (parameters,), dtype)

    def copy(self, bytes_total: float, kind: str = "copy") -> Price:
        """A copy on the device, or over its link to the host (`kind` h2d or d2h)."""
        dtypes = sorted(name for op, name in self.calibration.points if op == f"{kind} forward")
        return FREE if bytes_total == 0 else self._priced(kind, (bytes_total,), dtypes[0] if dtypes else "int8")

    def curve(self, op_phase: str, dtype: str) -> Curve | None:
        """The curve of one operation; None where it was not measured in this dtype."""
        key = (op_phase, dtype)
        if key not in self._curves:
            points = self.calibration.points.get(key)
            self._curves[key] = None if points is None else self._fitted(op_phase, dtype, points)
        return self._curves[key]

    def curves(self) -> tuple[Curve, ...]:
        """All of them, by operation and dtype."""
        curves = (self.curve(*key) for key in sorted(self.calibration.points))
        return tuple(curve for curve in curves if curve is not None)

    def measured(self, op_phase: str, dtype: str) -> bool:
        """Whether this operation was measured in this dtype."""
        return (operation(op_phase) or op_phase, dtype) in self.calibration.points

    # -------------------------------------------------------------------------------------------------- pricing

    def _priced(self, op_phase: str, shape: tuple[float, ...], dtype: str) -> Price:
        key = (op_phase, shape, dtype)
        price = self._prices.get(key)
        if price is None:
            op = operation(op_phase)
            if op is None or len(shape) != len(size_names(op)):
                raise SpecError("operation", op_phase, "is none that a calibrated device prices with these sizes")
            for name, size in zip(size_names(op), shape, strict=True):
                if not (math.isfinite(size) and size >= 1):
                    raise SpecError(name, size, f"a size of {op} must be 1 or more")
            price = self._prices[key] = self._own(op, shape, dtype) or self._sibling(op, shape, dtype)
        return price

    def _own(self, op: str, shape: tuple[float, ...], dtype: str) -> Price | None:
        curve = self.curve(op, dtype)
        if curve is None:
            return None
        point = curve.exact.get(shape)
        if point is not None:
            seconds = float(curve.seconds[point])
            low = float(curve.low[point] / seconds) ** (_Z / _RUN_Z)
            return Price(
                seconds, seconds * low, seconds * float(curve.high[point] / seconds) ** (_Z / _RUN_Z), Source(0)
            )
        sizes = np.array([shape])
        estimate = curve.fitted.at(self._terms(op, dtype, sizes, curve.steps)[0], _features(op, sizes)[0])
        # The mean of what is only known by its log: a step adds up hundreds of these, and sums of means are right.
        mean = math.exp(estimate.log_value + 0.5 * min(estimate.spread, _WIDEST) ** 2)
        seconds = max(mean, _FLOOR_SHARE * float(curve.seconds.min()))
        if op.startswith("gemm"):
            best = float((curve.shapes.astype(float).prod(axis=1) / curve.seconds).max())
            seconds = max(seconds, math.prod(shape) / (best * _BEST_RATE_MARGIN))
        source = Source.INTERPOLATED
        if estimate.outside > 1e-9:
            source = Source.ROOFLINE if estimate.outside > _ROOFLINE_BEYOND else Source.FITTED
        return _banded(seconds, _Z * estimate.spread + _OUTSIDE_BAND * estimate.outside, source)

    def _sibling(self, op: str, shape: tuple[float, ...], dtype: str) -> Price:
        """What was not measured: from another dtype, from the forward kernel, from single gemms, or from bytes."""
        name, _, phase = op.partition(" ")
        others = [other for kind, other in self.calibration.points if kind == op]
        if others and name not in COPIES:
            nearest = min(others, key=lambda other: (abs(_bytes(other) - _bytes(dtype)), other))
            price = self._own(op, shape, nearest)
            assert price is not None
            if name in ("gemm", "grouped_gemm", "attention"):
                factor = self._rate(nearest) / self._rate(dtype)
            else:
                factor = _bytes(dtype) / _bytes(nearest)
            return _widened(price.scaled(factor), _SIBLING_BAND * (1.0 if factor == 1.0 else 2.0), Source.FITTED)
        if others:
            return _widened(self._own(op, shape, min(others)) or FREE, _SIBLING_BAND, Source.FITTED)
        if name == "grouped_gemm":
            groups, m, n, k = shape
            return _widened(self._priced(f"gemm {phase}", (m, n, k), dtype).scaled(groups), 0.1, Source.FITTED)
        if phase in ("dgrad", "wgrad") and any(kind == "gemm forward" for kind, _ in self.calibration.points):
            m, n, k = shape
            turned = (m, k, n) if phase == "dgrad" else (n, k, m)
            return _widened(self._priced("gemm forward", turned, dtype), _SIBLING_BAND, Source.FITTED)
        if op == "attention backward" and any(kind == "attention forward" for kind, _ in self.calibration.points):
            return _widened(self._priced("attention forward", shape, dtype).scaled(2.5), 0.4, Source.FITTED)
        return self._roofline(name, phase, shape, dtype)

    def _roofline(self, name: str, phase: str, shape: tuple[float, ...], dtype: str) -> Price:
        launch = self.calibration.host.get("launch_eager_s", 0.0)
        if name == "gemm":
            m, n, k = shape
            return roofline.gemm(self.gpu, m, n, k, dtype if self.gpu.supports(dtype) else "bf16")
        if name == "attention":
            batch, seq, heads, kv_heads, head_dim = shape
            bytes_total = 2.0 * _bytes(dtype) * batch * seq * (heads + kv_heads) * head_dim
            price = roofline.attention(self.gpu, batch * heads * seq, seq / 2.0, head_dim, bytes_total, "bf16")
            return price.scaled(2.5) if phase == "backward" else price
        if name in COPIES:
            moved = 2.0 * shape[0]
        else:
            back = _BACKWARD_MOVES if phase == "backward" else 1.0
            moved = _MOVED[name] * back * math.prod(shape) * _bytes(dtype)
        return _banded(launch + moved / self._bandwidth(), _UNMEASURED_BAND, Source.ROOFLINE)

    def _bandwidth(self) -> float:
        """Bytes per second, read plus written: of the longest measured copy, else the data sheet's at 80 %."""
        for (op, _), points in self.calibration.points.items():
            if op == "copy forward":
                longest = int(points.shapes[:, 0].argmax())
                return 2.0 * float(points.shapes[longest, 0]) / float(points.seconds[longest])
        return 0.8 * self.gpu.memory_bandwidth_bytes_per_s

    def _rate(self, dtype: str) -> float:
        return self.gpu.flops_per_s.get("bf16" if dtype == "fp16" else dtype, self.gpu.peak_flops("bf16"))

    # -------------------------------------------------------------------------------------------------- fitting

    def _fitted(self, op: str, dtype: str, points: Points) -> Curve:
        points = _merged(points)
        shapes = points.shapes.astype(np.float64)
        steps = _steps(op, shapes)
        spread = np.log(points.high / points.low) / (2.0 * _RUN_Z)
        fitted = fit(self._terms(op, dtype, shapes, steps), _features(op, shapes), points.seconds, spread)
        exact = {tuple(float(size) for size in shape): row for row, shape in enumerate(points.shapes.tolist())}
        terms = _term_names(op, steps, self._base(op, dtype) is not None)
        return Curve(op, dtype, size_names(op), *points[:4], terms=terms, fitted=fitted, steps=steps, exact=exact)

    def _base(self, op: str, dtype: str) -> Curve | None:
        """The single gemm whose price is the leading term of a grouped one."""
        return self.curve(f"gemm {op.split()[1]}", dtype) if op.startswith("grouped_gemm") else None

    def _terms(self, op: str, dtype: str, shapes: Array, steps: Sequence[float]) -> Array:
        constant = np.ones(len(shapes))
        columns = shapes.T
        if op.startswith("gemm"):
            return np.stack([*_gemm_terms(*columns), constant], axis=1)
        if op.startswith("grouped_gemm"):
            groups = columns[0]
            if self._base(op, dtype) is None:
                return np.stack([*(groups * term for term in _gemm_terms(*columns[1:])), groups, constant], axis=1)
            phase = op.split()[1]
            each = np.array([self.gemm(phase, m, n, k, dtype).seconds for _, m, n, k in shapes.tolist()])
            return np.stack([groups * each, groups, constant], axis=1)
        if op.startswith("attention"):
            batch, seq, heads, kv_heads, dim = columns
            rows, keys = batch * heads * seq, self.attended(seq)
            return np.stack(
                [rows * keys * dim, rows * keys, rows * dim, batch * kv_heads * seq * dim, constant], axis=1
            )
        elements = shapes.prod(axis=1)
        beyond = [np.maximum(0.0, elements - step) for step in steps]
        rows_of = [columns[0]] if shapes.shape[1] > 1 else []
        return np.stack([elements, *beyond, *rows_of, constant], axis=1)


@lru_cache(maxsize=16)
def _costs(calibration: Calibration, gpu: Gpu) -> CalibratedCosts:
    return CalibratedCosts(calibration, gpu)


def calibrated_costs(cluster: Cluster) -> CalibratedCosts | None:
    """Prices of a cluster's calibrated device, each curve fitted once per process; None without a calibration."""
    return None if cluster.calibration is None else _costs(cluster.calibration, cluster.gpu)


def _gemm_terms(m: Array, n: Array, k: Array) -> tuple[Array, ...]:
    return m * n * k, m * n, m * k, n * k


def _term_names(op: str, steps: Sequence[float], on_gemm: bool) -> tuple[str, ...]:
    if op.startswith("gemm"):
        return ("m n k", "m n", "m k", "n k", "1")
    if op.startswith("grouped_gemm"):
        return ("groups gemm", "groups", "1") if on_gemm else ("g m n k", "g m n", "g m k", "g n k", "g", "1")
    if op.startswith("attention"):
        return ("b h s a d", "b h s a", "b h s d", "b kv s d", "1")
    names = size_names(op)
    whole = " ".join(names)
    beyond = tuple(f"max(0, {whole} - {step:.3g})" for step in steps)
    return (whole, *beyond, *names[:1], "1") if len(names) > 1 else (whole, *beyond, "1")


def _features(op: str, shapes: Array) -> Array:
    """Logs of what decides which points are alike."""
    logs = np.log(shapes)
    if op.startswith("gemm"):
        return np.asarray(logs)
    if op.startswith("grouped_gemm"):
        return np.asarray(logs * np.array([0.5, 1.0, 1.0, 1.0]))
    if op.startswith("attention"):
        batch, seq, heads, kv_heads, dim = logs.T
        return np.stack([batch + heads, seq, dim, 0.5 * (heads - kv_heads)], axis=1)
    if shapes.shape[1] == 1:
        return np.asarray(logs)
    return np.stack([logs.sum(axis=1), 0.3 * logs[:, 1]], axis=1)


def _steps(op: str, shapes: Array) -> tuple[float, ...]:
    """Where an element-wise curve may get steeper: between points, evenly in the log, fewer where points are few."""
    if op.split()[0] in ("gemm", "grouped_gemm", "attention"):
        return ()
    elements = np.unique(shapes.prod(axis=1))
    count = min(_STEPS, (len(elements) - 1) // 3)
    if count < 1:
        return ()
    inner = np.quantile(np.log(elements), np.arange(1, count + 1) / (count + 1.0))
    return tuple(float(value) for value in np.exp(inner))


def _merged(points: Points) -> Points:
    """One row per shape: the median of rows that repeat it, the widest of their bands."""
    shapes, place = np.unique(points.shapes, axis=0, return_inverse=True)
    place = place.ravel()
    if len(shapes) == len(points.shapes):
        return points
    groups = [np.flatnonzero(place == row) for row in range(len(shapes))]
    middle = np.array([np.median(points.seconds[rows]) for rows in groups])
    low, high = (
        np.array([pick(times[rows]) for rows in groups])
        for pick, times in ((np.min, points.low), (np.max, points.high))
    )
    return Points(shapes, middle, low, high)


def _bytes(dtype: str) -> float:
    return float(_ELEMENT_BYTES.get(dtype, 2))


def _banded(seconds: float, half_width: float, source: Source) -> Price:
    return Price(seconds, seconds * math.exp(-half_width), seconds * math.exp(half_width), source)


def _widened(price: Price, half_width: float, source: Source) -> Price:
    """Wider to both sides; the source is at best `source`."""
    return price.widened(half_width, half_width, Source(max(price.source, source)))
