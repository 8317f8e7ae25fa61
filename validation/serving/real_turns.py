"""`windtunnel serve real tiny-llama` in turns: predicted over measured, each turn a process of its own.

    python validation/serving/real_turns.py --turns 5 --requests 80

Every turn measures its own prices, predicts each policy and runs it (other requests each time), so a turn says how good
one use of the command is. Printed are, by policy, the geometric mean of predicted / measured over the turns and its
range, and the load of the machine before each turn. Figures are worth something where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys

MEASURES = (("TTFT", "ttft_s", "mean"), ("TPOT", "tpot_s", "mean"), ("E2E", "e2e_s", "mean"), ("p99", "e2e_s", "p99"))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--turns", type=int, default=5)
    words.add_argument("--requests", type=int, default=80)
    asked = words.parse_args()
    turns = [_turn(seed, asked.requests) for seed in range(asked.turns)]
    print("policy                " + "".join(f"{name:>22}" for name, *_ in MEASURES) + "   machine")
    for policy in turns[0]["policies"]:
        cells = []
        for _, key, column in MEASURES:
            pairs = [turn["policies"][policy] for turn in turns]
            ratios = [pair["predicted"][key][column] / pair["measured"][key][column] for pair in pairs]
            middle = math.prod(ratios) ** (1.0 / len(ratios))
            cells.append(f"{middle:8.3f} ({min(ratios):.2f}-{max(ratios):.2f})")
        machine = [turn["policies"][policy]["machine_slower"] for turn in turns]
        print(f"{policy:22}" + "".join(f"{cell:>22}" for cell in cells) + f"   {min(machine):.2f}-{max(machine):.2f}")
    rates = ", ".join(f"{turn['rate_per_s']:.1f}" for turn in turns)
    print(f"requests per second: {rates}; single steps fitted within", end=" ")
    print(", ".join(f"{turn['step_fit_error']:.1%}" for turn in turns))


def _turn(seed: int, requests: int) -> dict[str, object]:
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "windtunnel", "serve", "real", "tiny-llama", "--json"]
    done = subprocess.run(
        [*command, "--requests", str(requests), "--seed", str(seed)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    print(f"turn {seed}: load {load:.1f} before it", flush=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
