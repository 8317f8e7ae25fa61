"""Hardware: one kind of GPU, how many, and how they are joined.

    cluster = parse_cluster("h100-sxm:8192")
    cluster.gpu.peak_flops("bf16")                   # 989.4e12, dense
    cluster.scale_out.bandwidth_bytes_per_s          # 50e9: 400 Gb/s per GPU, one direction
    cluster_with(cluster, oversubscription=2.0)

Numbers are data-sheet figures from `catalogue/*.yaml`, each with its source and date; what of them a kernel or a
collective really gets is measured, and lives in `windtunnel.physics.cost`.
"""

from windtunnel.physics.hardware.catalogue import cluster_names, get_gpu, gpu_names, parse_cluster, with_settings
from windtunnel.physics.hardware.cluster import PROTOCOLS, Cluster, Host, Link, cluster_with
from windtunnel.physics.hardware.gpu import DTYPES, GENERATIONS, Gpu, KernelScale

__all__ = [
    "DTYPES",
    "GENERATIONS",
    "PROTOCOLS",
    "Cluster",
    "Gpu",
    "Host",
    "KernelScale",
    "Link",
    "cluster_names",
    "cluster_with",
    "get_gpu",
    "gpu_names",
    "parse_cluster",
    "with_settings",
]
