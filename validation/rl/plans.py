"""`rl plan` against trying everything, on small random spaces: the same best step, and no bound above what it bounds.

python validation/rl/plans.py [HOW MANY] [FIRST SEED]
"""

from __future__ import annotations

import random
import sys

from windtunnel.errors import UserError
from windtunnel.questions.asked.rl import RlPlan
from windtunnel.questions.reading import read_part
from windtunnel.studies.rl.plan import search

SHOWN = 1e-9  # relative: sums in another order


def space(seed: int) -> RlPlan:
    """A question whose candidates are few and small."""
    draw = random.Random(seed)
    mean = draw.choice([60, 200, 700, 1500])
    return read_part(
        RlPlan,
        {
            "model": draw.choice(["llama-3.2-1b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-30b-a3b"]),
            "cluster": draw.choice(["h100-sxm:4", "h100-sxm:8", "h20:8", "gb200:4", "h100-sxm:16"]),
            "framework": draw.choice(["nemo-rl", "nemo-rl-0.6", "verl", "areal", "slime", "skyrl"]),
            "prompts": draw.choice([3, 8, 16, 33]),
            "samples": draw.choice([1, 4, 7]),
            "lengths": f"mean={mean},cap={mean * draw.choice([1, 2, 6])},sd={draw.choice([0, 0.3, 0.66, 1.2])}",
            "prompt_tokens": draw.choice([20, 150, 900]),
            "async_steps": draw.choice([0, 0.5, 1, 2, 4]),
            "partial": draw.choice([None, True, False]),
            "rollout": {
                "turns": draw.choice([1, 1, 1, 3]),
                "tool_wait": 0.5,
                "tool_tokens": 40,
                "max_num_seqs": draw.choice([None, None, 4]),
                "gpu_memory_utilization": draw.choice([None, None, 0.5]),
            },
            "beside": {"useful": draw.choice([1.0, 1.0, 1.0, 0.6]), "reward": draw.choice([0.0, 0.2])},
            "learner": {"tp": 1, "pp": 1},
            "seed": seed,
        },
    )


def main() -> None:
    """Compare, and say how many were simulated."""
    given = [int(text) for text in sys.argv[1:3]]
    many, first = [*given, *(50, 0)[len(given) :]]
    wrong = refused = simulated = candidates = above = 0
    for seed in range(first, first + many):
        question = space(seed)
        try:
            every = search(question, prove=False)
        except UserError as error:
            refused += 1
            print(seed, "refused:", " ".join(str(error).split())[:100])
            continue
        proved = search(question, prove=True)
        simulated += sum(1 for one in proved.tried if one.step_s is not None)
        candidates += len(proved.tried)
        best, found = every.best.step_time_s, proved.best.step_time_s
        for one in every.tried:
            if one.step_s is not None and one.bound_s > one.step_s * (1 + SHOWN):
                above += 1
                print(f"{seed}: {one.words}: bound {one.bound_s:.3f} above {one.step_s:.3f} s, best {best:.3f}")
        if found > best * (1 + SHOWN):
            wrong += 1
            print(f"{seed}: found {found:.4f}, best {best:.4f} s: {every.best.spec}")
    print(
        f"{many - refused} spaces, {wrong} not the best; {above} bounds too high; {simulated} of {candidates} simulated"
    )


if __name__ == "__main__":
    main()
