"""The search against looking at every plan, on random small spaces: dense and with experts, with memory binding or not.

    python validation/planning/exact.py [--spaces 200] [--plans 60] [--seed 0]

Of each space every plan is replayed. Then, at the device's memory and at one that some plans exceed, the search has to
find the least step time of those that fit, and prove it; and on the way no bound may exceed what was replayed. Prints
one line a failure, and the counts.
"""

from __future__ import annotations

import argparse
import random
import time
from itertools import islice

from every_plan import every_plan

from windtunnel.errors import UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.oracle import Layout, Replayed, replayed, straggling
from windtunnel.studies.planning.search.best_first import Search
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space.plan_space import Space

MODELS = ("llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite")
CLUSTERS = ("h100-sxm", "a100-sxm4-80gb", "b200")
OPEN = {  # fields that may be fixed, so that the space is small
    "tp": (1, 2, 4),
    "pp": (1, 2),
    "cp": (1, 2),
    "micro_batch": (1, 2),
    "recompute": ("none", "full"),
    "zero_stage": (0, 1),
    "cuda_graphs": (False, True),
    "overlap_tp": (False, True),
    "etp": (1,),
    "ep": (1, 2, 4),
}


def drawn(draw: random.Random, plans_most: int) -> tuple[Space, list[Layout]]:
    """A space of at least two and at most so many plans, and all of them."""
    while True:
        name = draw.choice(MODELS)
        model = load_model(name).with_changes(layers=draw.randint(1, 6))
        cluster = parse_cluster(f"{draw.choice(CLUSTERS)}:{draw.choice((2, 4, 8, 16))}")
        framework = draw.choice(("megatron", "megatron", "torchtitan", "nanotron"))
        given = {
            "global_batch": draw.choice((4, 8, 16, 32)),
            "seq_len": draw.choice((1024, 4096, 16384)),
            "framework": framework,
        }
        for field in draw.sample(sorted(OPEN), draw.randint(3, 7)):
            if field in ("etp", "ep") and name == "llama-3-8b":
                continue
            given[field] = draw.choice(OPEN[field])
        space = Space(model, cluster, given)
        try:
            plans = list(islice(every_plan(space), plans_most + 1))
        except UserError:  # a field that was drawn cannot be with another one
            continue
        if 2 <= len(plans) <= plans_most:
            return space, plans


def failures(space: Space, plans: list[Layout], draw: random.Random) -> tuple[list[str], int]:
    """What does not hold, and how many of the plans exceed the smaller memory."""
    said: list[str] = []
    bounds = Bounds(straggling(space.cluster))
    known: list[tuple[Layout, Replayed]] = [(layout, replayed(layout)) for layout in plans]
    for layout, one in known:
        if bounds.step_ns(layout) > one.step_ns:
            said.append(f"bound {bounds.step_ns(layout)} above {one.step_ns}: {layout.plan}")
        if bounds.memory_bytes(layout) > one.peak_bytes:
            said.append(f"memory bound {bounds.memory_bytes(layout)} above {one.peak_bytes}: {layout.plan}")
    device = known[0][1].capacity_bytes
    peaks = sorted(one.peak_bytes for _, one in known)
    tight = min(device, peaks[draw.randrange(len(peaks))])
    for capacity in dict.fromkeys((device, tight)):
        least = min((one.step_ns for _, one in known if one.peak_bytes <= capacity), default=None)
        answer = Search(space, bounds, capacity_bytes=capacity).run(1)
        found = answer.plans[0].replay.step_ns if answer.plans else None
        if found != least or answer.gap != 0.0 or answer.counts.legal != len(plans):
            said.append(f"{found} found, {least} is least, gap {answer.gap}: {space.model.name} {space.fixed}")
    return said, sum(peak > tight for peak in peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", type=int, default=200)
    parser.add_argument("--plans", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    plans_seen = equal = mixtures = binding = 0
    begun = time.process_time()
    for _ in range(arguments.spaces):
        space, plans = drawn(draw, arguments.plans)
        said, over = failures(space, plans, draw)
        plans_seen += len(plans)
        equal += not said
        mixtures += space.mixture
        binding += over > 0
        for line in said:
            print(line, flush=True)
    print(
        f"{equal} of {arguments.spaces} spaces equal brute force ({mixtures} with experts, {binding} with memory "
        f"binding, {plans_seen:,} plans replayed; {time.process_time() - begun:.0f} s of CPU)"
    )
    raise SystemExit(equal != arguments.spaces)


if __name__ == "__main__":
    main()
