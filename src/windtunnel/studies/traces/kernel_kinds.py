"""What kind of op a GPU kernel or a collective is, from its name: only for grouping in reports."""

from __future__ import annotations

import re
from functools import lru_cache

_COLLECTIVES = (
    ("all-to-all", re.compile(r"all_?to_?all", re.I)),
    ("reduce-scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all-gather", re.compile(r"all_?gather", re.I)),
    ("all-reduce", re.compile(r"all_?reduce", re.I)),
    ("broadcast", re.compile(r"broadcast", re.I)),
    ("barrier", re.compile(r"barrier", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
    ("gather", re.compile(r"gather", re.I)),
    ("scatter", re.compile(r"scatter", re.I)),
)
_KERNELS = (
    ("attention", re.compile(r"flash|fmha|attention|sdpa|softmax_warp", re.I)),
    ("optimizer", re.compile(r"multi_tensor|adam|lamb|sgd", re.I)),
    ("gemm", re.compile(r"gemm|xmma|cutlass|cublas|nvjet|wgmma|splitk|_mm_|matmul|dot_kernel", re.I)),
    ("convolution", re.compile(r"conv|winograd", re.I)),
    ("norm", re.compile(r"norm", re.I)),
    ("reduction", re.compile(r"reduce", re.I)),
    ("elementwise", re.compile(r"elementwise|vectorized|triton|copy|fill|cat", re.I)),
)
IS_COMMUNICATION = re.compile(r"^(ncclDevKernel|ncclKernel|nccl[A-Z]|rccl|nvshmem|mscclpp)")


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str:
    """`all-reduce` of `allreduce`, `_allgather_base`, `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, ..."""
    return next((kind for kind, pattern in _COLLECTIVES if pattern.search(name)), "communication")


@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> str:
    """`gemm`, `attention`, ... or `other kernels`."""
    return next((kind for kind, pattern in _KERNELS if pattern.search(name)), "other kernels")
