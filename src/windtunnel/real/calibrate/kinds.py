"""What is measured: kinds of ops, the shapes that training gives them, and what a shape costs at the roofline.

Nothing here needs torch. The work of a shape (FLOPs, bytes moved) only serves to guess how long a measurement will take
and which shapes are comparable; the times themselves are measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Shape = tuple[int, ...]

BYTES_PER_ELEMENT = {"fp32": 4, "bf16": 2, "fp16": 2}
STORED_AS = {"bytes": "fp32", "pinned": "fp32", "pageable": "fp32"}  # dtype of the buffers that are only copied
EMBEDDING_ROWS = 1024  # of the table in `embedding`: filling the rest of a real table's gradient is a `zero_grad`
TENSOR_ELEMENTS = 1 << 22  # of one parameter tensor in `adamw` foreach and fused, `zero_grad`, `clip_norm`


def _octaves(low: int, high: int) -> tuple[int, ...]:
    return tuple(1 << exponent for exponent in range(low.bit_length() - 1, high.bit_length()))


def _half_octaves(low: int, high: int) -> tuple[int, ...]:
    """Powers of two and one and a half times them: 256, 384, 512, ..."""
    powers = _octaves(low, high)
    return tuple(sorted({*powers, *(power + power // 2 for power in powers if power + power // 2 <= high)}))


_TOKENS = _octaves(128, 16384)
_HIDDEN = _half_octaves(256, 8192)
_ROWS = (*_octaves(128, 16384), 65536)
_FFN = (*_half_octaves(512, 16384), 28672)
_VOCABULARY = _octaves(1024, 131072)
_PARAMETERS = _octaves(1 << 10, 1 << 30)
_BYTES = _octaves(1 << 12, 1 << 30)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of op. `weights` are rough shares of a training step, by phase: where time goes, points go."""

    name: str
    axes: tuple[tuple[int, ...], ...]  # values worth measuring, for each dimension of the shape
    flops: Callable[[Shape], float]  # of the forward; twice that for a backward that has two products
    elements: Callable[[Shape], tuple[float, float]]  # of all inputs, and of all outputs
    weights: dict[str, float]
    fits: Callable[[Shape], bool] = lambda shape: True
    in_bytes: bool = False  # the shape is a number of bytes, whatever the dtype

    def shapes(self) -> Iterator[Shape]:
        """Every shape worth measuring."""
        return (shape for shape in itertools.product(*self.axes) if self.fits(shape))

    def cost(self, phase: str, shape: Shape, dtype: str) -> tuple[float, float, float]:
        """FLOPs, bytes moved, and bytes of all buffers of one call."""
        size = 1 if self.in_bytes else BYTES_PER_ELEMENT[dtype]
        inputs, outputs = self.elements(shape)
        twice = 2.0 if phase == "backward" else 1.0
        bytes_total = (inputs + outputs) * twice * size
        if self.name == "cross_entropy":  # works on an fp32 copy of the logits
            bytes_total += 3 * outputs * 4
        return self.flops(shape) * (2.5 if phase == "backward" else 1.0), bytes_total, bytes_total


def _gemm_elements(groups: int, m: int, n: int, k: int) -> tuple[float, float]:
    return groups * (m * k + n * k), groups * m * n


def _rows(inputs: float, outputs: float) -> Callable[[Shape], tuple[float, float]]:
    return lambda shape: (inputs * shape[0] * shape[1], outputs * shape[0] * shape[1])


def _no_flops(shape: Shape) -> float:
    return 0.0


def _both(weight: float) -> dict[str, float]:
    return {"forward": weight, "backward": weight}


_MATRIX = {"forward": 1.0, "dgrad": 1.0, "wgrad": 1.0}

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "gemm",
            (
                _TOKENS,
                (*_HIDDEN, 12288, 16384, 28672, 32768, 65536, 131072),
                (*_HIDDEN, 12288, 16384, 28672),
            ),
            lambda s: 2.0 * s[0] * s[1] * s[2],
            lambda s: _gemm_elements(1, *s),
            dict.fromkeys(_MATRIX, 20.0),
            lambda s: s[1] <= 28672 or s[2] <= 8192,
        ),
        Kind(
            "grouped_gemm",
            ((4, 8, 16), _octaves(32, 4096), _half_octaves(256, 4096), _half_octaves(256, 4096)),
            lambda s: 2.0 * s[0] * s[1] * s[2] * s[3],
            lambda s: _gemm_elements(*s),
            _MATRIX,
        ),
        Kind(
            "attention",
            ((1, 2, 4, 8), _octaves(128, 16384), (4, 8, 12, 16, 32), (1, 2, 4, 8, 12, 16, 32), (64, 128)),
            lambda s: 2.0 * s[0] * s[1] * s[1] * s[2] * s[4],  # two products, causal: half of each
            lambda s: (s[0] * s[1] * s[4] * (s[2] + 2.0 * s[3]), s[0] * s[1] * s[4] * s[2]),
            _both(6.0),
            lambda s: s[2] % s[3] == 0 and s[2] // s[3] in (1, 2, 4, 8) and s[0] * s[1] <= 16384,
        ),
        Kind("rms_norm", (_ROWS, _HIDDEN), _no_flops, _rows(1, 1), _both(1.0)),
        Kind("layer_norm", (_ROWS, _HIDDEN), _no_flops, _rows(1, 1), _both(1.0)),
        Kind("swiglu", (_ROWS, _FFN), _no_flops, _rows(2, 2), _both(1.5)),
        Kind("gelu", (_ROWS, _FFN), _no_flops, _rows(1, 1), _both(1.0)),
        Kind("rope", (_octaves(1024, 1 << 20), (64, 128)), _no_flops, _rows(1, 5), _both(1.5)),
        Kind("add", (_ROWS, _HIDDEN), _no_flops, _rows(2, 1), _both(1.0)),
        Kind("dropout", (_ROWS, _HIDDEN), _no_flops, _rows(1, 2), _both(0.5)),
        Kind("embedding", (_TOKENS, _HIDDEN), _no_flops, _rows(1, 1), _both(0.5)),
        Kind("cross_entropy", (_TOKENS, _VOCABULARY), _no_flops, _rows(1, 1), _both(2.0)),
        Kind("softmax", (_ROWS, _octaves(8, 8192)), _no_flops, _rows(1, 1), _both(0.5)),
        Kind("cast", (_ROWS, _HIDDEN), _no_flops, _rows(1, 2), {"forward": 0.5}),
        Kind("gather_rows", (_TOKENS, _HIDDEN), _no_flops, _rows(1, 1), _both(0.5)),
        Kind("scatter_add_rows", (_TOKENS, _HIDDEN), _no_flops, _rows(1, 1), _both(0.5)),
        Kind(
            "adamw",
            (_PARAMETERS,),
            _no_flops,
            lambda s: (4.0 * s[0], 6.0 * s[0]),
            {"foreach": 0.5, "fused": 0.5, "single": 3.0},
        ),
        Kind("zero_grad", (_PARAMETERS,), _no_flops, lambda s: (1.0 * s[0], 0.5 * s[0]), {"": 0.5}),
        Kind("clip_norm", (_PARAMETERS,), _no_flops, lambda s: (1.0 * s[0], 2.0 * s[0]), {"": 0.5}),
        Kind("copy", (_BYTES,), _no_flops, lambda s: (s[0], s[0]), {"forward": 1.0}, in_bytes=True),
        Kind("h2d", (_BYTES,), _no_flops, lambda s: (s[0], s[0]), {"forward": 1.0}, in_bytes=True),
        Kind("d2h", (_BYTES,), _no_flops, lambda s: (s[0], s[0]), {"forward": 1.0}, in_bytes=True),
    )
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One op, phase and dtype: what a list of measured points belongs to."""

    kind: str
    phase: str
    dtype: str

    @property
    def key(self) -> str:
        """The op and phase as the file has them."""
        return f"{self.kind} {self.phase}".strip()


def curves(device_kind: str, dtypes: tuple[str, ...], only: tuple[str, ...] = ()) -> list[Curve]:
    """All curves of a device ("cpu" or "cuda"), the most important first. Plain bytes know no dtype."""
    all_curves = []
    for kind in KINDS.values():
        if only and kind.name not in only:
            continue
        for phase in kind.weights:
            # A CPU has no foreach kernels: AdamW there goes tensor by tensor unless told otherwise, a GPU never.
            if device_kind == "cuda" and phase == "single":
                continue
            all_curves += [Curve(kind.name, phase, word) for word in _words(kind, device_kind, dtypes)]
    return all_curves


def _words(kind: Kind, device_kind: str, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    if not kind.in_bytes:
        return dtypes
    if kind.name == "copy":
        return ("bytes",)
    return ("pinned", "pageable") if device_kind == "cuda" else ()
