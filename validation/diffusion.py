"""Pictures and videos of diffusion transformers against `windtunnel serve`: `validation/diffusion.csv`, one GPU each.

    python validation/diffusion.py

Source: The ML.ENERGY Benchmark (Chung et al., 2025; xDiT), github.com/ml-energy/leaderboard at 0cd52da, read
2026-11-28: seconds of a batch of images, text encoders and the decoder of the image included, which windtunnel leaves
out. `blind_s`: as predicted before any of these rows was looked at.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.run import serve
from windtunnel.studies.serving.workload.requests import Workload


def main() -> None:
    errors, blind, watts = [], [], []
    for row in csv.DictReader((Path(__file__).parent / "diffusion.csv").open()):
        n, steps, measured = int(row["images"]), int(row["steps"]), float(row["batch_s"])
        load = Workload([1] * n, [steps] * n, concurrency=n)
        found = serve(row["model"], f"{row['gpu']}:1", Deployment(), load)
        seconds = found.duration_s
        errors.append(seconds / measured - 1)
        blind.append(float(row["blind_s"]) / measured - 1)
        watts.append(found.gpu_watts / float(row["power_w"]) - 1)
        print(
            f"{row['gpu']:9} {n:3} images  {measured:7.2f} s  {seconds:7.2f} s  {errors[-1]:+6.1%}"
            f"  blind {blind[-1]:+6.1%}  {row['power_w']} W  {found.gpu_watts:.0f} W"
        )
    for name, values in (("seconds", errors), ("blind", blind), ("power", watts)):
        print(f"{name}: mean {np.mean(np.abs(values)):.1%}, bias {np.mean(values):+.1%}")


if __name__ == "__main__":
    main()
