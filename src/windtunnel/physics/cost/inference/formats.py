"""Number formats of weights: their bytes, and what they are multiplied in."""

from __future__ import annotations

from windtunnel.physics.hardware.gpu import Gpu

WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.008,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
    "int8": 1.0,
    "int4": 0.53,
}
"""Bytes of a weight with its scales: of 4 bytes per 128 x 128 (fp8_block), of 1 byte per 16 (nvfp4) or 32 (mxfp4)."""
GEMM_DTYPE = {"fp8_block": "fp8", "mxfp4": "bf16", "int4": "bf16"}  # weights of 4 bits are multiplied in 16
MARLIN = "marlin"  # a word of the kernel's name, as engine profiles ask for it


def multiplied_in(gpu: Gpu, dtype: str) -> str:
    """What the matrix units of a GPU multiply weights of a format in."""
    product_dtype = GEMM_DTYPE.get(dtype, dtype)
    return product_dtype if gpu.supports(product_dtype) else "bf16"


def marlin_sizes(hidden: int, inter: int) -> tuple[int, int]:
    """(hidden, inner size of one rank) of MXFP4 experts as Marlin holds and multiplies them, zeros filled in.

    vLLM: quantization/mxfp4.py, create_weights ("n % 256 == 0 and k % 128 == 0" of both products).
    """
    return 256 * -(-hidden // 256), 128 * -(-inter // 128)
