"""Names of metrics that say the same wherever they stand, on a console or in what a tracker exports: field and unit.

A name may have a path before it: `train/`, or the name of a run. Only names whose unit is beyond doubt are here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MS, MIB, GIB, GB = 1e-3, 2**20, 2**30, 10**9
METRICS: Mapping[str, tuple[str, float]] = {
    # seconds of a step: NeMo, MaxText, verl, slime, OpenRLHF
    "train_step_timing in s": ("seconds", 1.0), "perf/step_time_seconds": ("seconds", 1.0),
    "timing_s/step": ("seconds", 1.0), "perf/time_per_step": ("seconds", 1.0), "perf/step_time": ("seconds", 1.0),
    "timing/step_total": ("seconds", 1.0), "continuous_training/total_duration_avg_s": ("seconds", 1.0),  # torchforge
    "elapsed_time_per_iteration_ms": ("seconds", MS),
    # steps a second: Composer, OLMo-core, TensorFlow's Estimator, DiT and what descends from it
    "throughput/batches_per_sec": ("steps_per_s", 1.0), "throughput/device/BPS": ("steps_per_s", 1.0),
    "global_step/sec": ("steps_per_s", 1.0), "Train Steps/Sec": ("steps_per_s", 1.0),
    # tokens a second of one GPU: NeMo, torchtitan, Composer, OLMo-core, verl, MaxText
    "tokens/gpu/sec": ("tokens_per_s_per_gpu", 1.0),
    "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", 1.0), "throughput(tps)": ("tokens_per_s_per_gpu", 1.0),
    "throughput/device/tokens_per_sec": ("tokens_per_s_per_gpu", 1.0),
    "throughput/device/TPS": ("tokens_per_s_per_gpu", 1.0), "perf/throughput": ("tokens_per_s_per_gpu", 1.0),
    "perf/per_device_tokens_per_sec": ("tokens_per_s_per_gpu", 1.0),
    # memory at its peak: Axolotl by its two releases, OLMo-core, Composer, torchtune, DeepSpeed, ms-swift, verl, Gaudi
    "memory/max_allocated (GiB)": ("allocated_bytes", GIB), "memory/device_reserved (GiB)": ("reserved_bytes", GIB),
    "memory/max_mem_allocated(gib)": ("allocated_bytes", GIB),
    "memory/device_mem_reserved(gib)": ("reserved_bytes", GIB),
    "gpu_memory/GPU reserved mem (GiB)": ("reserved_bytes", GIB),
    "memory/peak_allocated_mem": ("allocated_bytes", GB), "memory/peak_reserved_mem": ("reserved_bytes", GB),
    "max_memory_allocated (GB)": ("allocated_bytes", GIB),
    "peak_memory_alloc": ("allocated_bytes", GIB), "peak_memory_reserved": ("reserved_bytes", GIB),
    "MaxMemAllocated": ("allocated_bytes", GIB), "memory(GiB)": ("reserved_bytes", GIB),
    "perf/max_memory_allocated_gb": ("allocated_bytes", GIB), "perf/max_memory_reserved_gb": ("reserved_bytes", GIB),
}  # fmt: skip
OF_EVALUATION = re.compile(r"(?i)(?:^|/)(?:eval(?:uation)?|val|valid(?:ation)?|test)(?:_metrics)?/")  # a path before


def names_of(field: str) -> dict[str, float]:
    """Unit by name of the metrics that say one thing."""
    return {name: unit for name, (metric_field, unit) in METRICS.items() if metric_field == field}
