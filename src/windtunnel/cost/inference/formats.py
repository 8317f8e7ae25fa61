"""Number formats of weights: their bytes, and what they are multiplied in."""

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
