"""A saved result, read again: where did the time go, and what explains the difference between two runs?

    python examples/03_read_a_result.py

`windtunnel predict` leaves a folder under `runs/` named by the hash of its content; here the same is done from Python,
once in bf16 and once in fp8, and both folders are read back. No simulation is needed to read.
"""

from __future__ import annotations

import tempfile
import textwrap
from pathlib import Path

import windtunnel
from windtunnel.faces.report.comparison.compare import compare

PLAN = {"tp": 4, "pp": 4, "virtual_stages": 5, "global_batch": 256, "seq_len": 4096}


def save_two(root: Path) -> tuple[Path, Path]:
    """Run folders of the same job in bf16 and fp8."""
    first, second = (
        windtunnel.save_result(windtunnel.predict("llama-3-70b", "h100-sxm:128", PLAN | {"precision": kind}), root)
        for kind in ("bf16", "fp8")
    )
    return first, second


def main() -> None:
    """Save two results, read them back, and print where they differ."""
    with tempfile.TemporaryDirectory() as root:
        result, other = (windtunnel.load_result(folder) for folder in save_two(Path(root)))

    print("Where the step goes in bf16 (mean over all GPUs)")
    assert sum(result.breakdown_ns.values()) == result.step_time_ns
    for name, nanoseconds in sorted(result.breakdown_ns.items(), key=lambda item: -item[1]):
        if nanoseconds > 0.01 * result.step_time_ns:
            print(f"  {name:30s} {nanoseconds / 1e6:8.1f} ms {nanoseconds / result.step_time_ns:6.1%}")

    print("\nHow sure: share of busy time by source of its price")
    for source, share in sorted(result.provenance.items(), key=lambda item: -item[1]):
        print(f"  {source:30s} {share:17.1%}")

    print("\nPipeline stages: idle share of each")
    for stage in result.stages:
        idle = stage.breakdown_ns.get("pipeline bubble", 0) / result.step_time_ns
        print(f"  stage {stage.stage}, {stage.layers} layers {idle:32.1%}")

    print("\nfp8 instead of bf16")
    print(textwrap.indent(textwrap.fill(compare(result, other).explanation, 100), "  "))
    print(f"  worth it? {result.step_time_ns / other.step_time_ns:.2f} times the speed")


if __name__ == "__main__":
    main()
