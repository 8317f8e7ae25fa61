"""Clusters as people and nvidia-smi write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import InputFileError
from windtunnel.physics.hardware import parse_cluster

TABLE = """| NVIDIA-SMI 535.183.01             Driver Version: 535.183.01   CUDA Version: 12.2     |
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:18:00.0 Off |                    0 |
| N/A   61C    P0             612W / 700W |  71233MiB / 81559MiB |     98%      Default |
|   1  NVIDIA H100 80GB HBM3          On  | 00000000:2A:00.0 Off |                    0 |
"""
CSV = """timestamp, name, pci.bus_id, power.draw [W]
2026/11/20 10:12:33.123, NVIDIA H100 80GB HBM3, 00000000:18:00.0, 612.33 W
2026/11/20 10:12:33.123, NVIDIA H100 80GB HBM3, 00000000:2A:00.0, 598.11 W
2026/11/20 10:12:34.123, NVIDIA H100 80GB HBM3, 00000000:18:00.0, 612.33 W
"""
LISTED = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"


@pytest.mark.parametrize("text", [TABLE, CSV, LISTED])
def test_what_nvidia_smi_printed_is_a_cluster(text: str, tmp_path: Path) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(text)
    cluster = parse_cluster(str(path))
    assert (cluster.gpu.name, cluster.n_gpus) == ("h100-sxm", 2)


def test_several_kinds_of_gpu_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(LISTED + "GPU 2: NVIDIA A40 (UUID: GPU-3)\n")
    with pytest.raises(InputFileError, match="2 x NVIDIA H100 80GB HBM3 and 1 x NVIDIA A40"):
        parse_cluster(str(path))


@pytest.mark.parametrize(
    ("word", "gpu", "count"),
    [
        ("8xh100", "h100-sxm", 8),
        ("8 x H100", "h100-sxm", 8),
        ("NVIDIA H100 80GB HBM3:8", "h100-sxm", 8),
        ("NVIDIA H100 PCIe:2", "h100-pcie", 2),
        ("NVIDIA A100-SXM4-80GB:8", "a100-80gb-sxm", 8),
        ("NVIDIA A100 80GB PCIe:4", "a100-80gb-pcie", 4),
        ("NVIDIA H200:8", "h200-sxm", 8),
        ("NVIDIA B300 SXM6 AC:8", "b300-sxm", 8),
        ("NVIDIA GeForce RTX 4090:1", "rtx-4090", 1),
        ("Tesla V100-SXM2-32GB:8", "v100-32gb-sxm", 8),
        ("AMD Instinct MI300X:8", "mi300x", 8),
        ("h100-sxm-96gb-hbm2e-500w:8", "h100-sxm-96gb-hbm2e-500w", 8),
    ],
)
def test_names_as_drivers_and_people_write_them(word: str, gpu: str, count: int) -> None:
    cluster = parse_cluster(word)
    assert (cluster.gpu.name, cluster.n_gpus) == (gpu, count)
