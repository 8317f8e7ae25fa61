"""DistMind's pool of weights against fixed places (MPS) and cold starts (Ray): throughput and latency.

    python validation/serving_policies/distmind.py [--gpus 16] [--apps 80]

Applications are copies of five models in batches of 8 on V100; popularity is Zipf 0, 0.9 or 0.99. Compute is FLOPs of
the published models at half of 15.7 TFLOP/s, weights 4 bytes a parameter, 100 Gb/s, PCIe 3. The abstract: throughput up
to 279 % higher, latency up to 94 % lower than MPS and Ray. Its GPUs, applications and rates are not in it: ours are the
flags, and latency is compared from a quarter of what the pool can carry to nine tenths of it. Nothing is fitted.
"""

from __future__ import annotations

import argparse

import numpy as np

from windtunnel.studies.serving.weight_pool.loop import Servers, SmallModel, System, play_pool, zipf

BATCH, FLOPS = 8, 0.5 * 15.7e12
# parameters, FLOPs of one input (2 per multiply-add): ResNet and DenseNet papers, Inception-v3; BERT and GPT-2 at 128
FIVE = {
    "resnet152": (60.2e6, 23e9),
    "inception-v3": (27.2e6, 11.4e9),
    "densenet201": (20.0e6, 8.6e9),
    "bert-base": (110e6, 22.5e9),
    "gpt-2": (124e6, 31.7e9),
}
SYSTEMS: tuple[System, ...] = ("pool", "fixed", "cold")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--gpus", type=int, default=16)
    words.add_argument("--apps", type=int, default=80)
    asked = words.parse_args()
    small = [SmallModel(name, 4 * size, BATCH * flops / FLOPS) for name, (size, flops) in FIVE.items()]
    apps = [small[(7 * a) % 5] for a in range(asked.apps)]  # kinds spread over the ranks
    servers = Servers(gpus=asked.gpus)
    gains, cuts = [], []
    for exponent in (0.0, 0.9, 0.99):
        which = zipf(asked.apps, exponent, 20_000, 1)
        rates: dict[str, float] = {}
        for system in SYSTEMS:
            done = play_pool(system, servers, apps, which, in_flight=8 * asked.gpus, until_s=20.0)
            rates[system] = done.rate_per_s(5.0, 20.0)
        gain = rates["pool"] / rates["fixed"] - 1.0
        gains.append(gain)
        busy = rates["pool"] * float(np.mean([apps[a].compute_s for a in which])) / asked.gpus
        print(
            f"zipf {exponent}: pool {rates['pool']:.0f}/s ({busy:.0%} of the GPUs' time computes), "
            f"fixed {rates['fixed']:.0f}/s, cold {rates['cold']:.1f}/s: {gain:+.0%} over fixed places"
        )
        for share in (0.25, 0.5, 0.75, 0.9):
            n = int(rates["pool"] * share * 20.0)
            rng = np.random.default_rng(2)
            sent = [float(t) for t in np.cumsum(rng.exponential(1.0 / (rates["pool"] * share), n))]
            mean = {}
            for system in SYSTEMS:
                done = play_pool(system, servers, apps, which[:n], arrivals_s=sent)
                mean[system] = float(np.mean(done.latency_s))
            cut = 1.0 - mean["pool"] / mean["fixed"]
            cuts.append(cut)
            print(
                f"    at {share:.0%} of it: mean latency pool {mean['pool'] * 1e3:.0f} ms, fixed "
                f"{mean['fixed'] * 1e3:.0f} ms ({cut:.0%} less), cold {mean['cold']:.1f} s "
                f"({1 - mean['pool'] / mean['cold']:.0%} less)"
            )
    print(f"throughput {min(gains):+.0%} to {max(gains):+.0%} over fixed places (published: up to +279 %); ", end="")
    print(f"mean latency up to {max(cuts):.0%} lower (published: up to 94 %)")


if __name__ == "__main__":
    main()
