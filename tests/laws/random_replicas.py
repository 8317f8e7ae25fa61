"""Prints whether serving is compiled, and then stamps and counts of random replicas under random load.

python random_replicas.py CASES
"""

from __future__ import annotations

import sys

import numpy as np
from prices import plain_times

from windtunnel.studies.serving import loop
from windtunnel.studies.serving.replica import Replica, Rules
from windtunnel.studies.serving.routing import ROUTERS
from windtunnel.studies.serving.workload.requests import Workload

BLOCK = 16


def case(seed: int) -> tuple[object, ...]:
    """Stamps of all requests of one case, and each replica's counts."""
    draw = np.random.default_rng(seed)

    def one_of(*choices: object) -> object:
        return choices[int(draw.integers(len(choices)))]

    def up_to(most: int) -> int:
        return int(draw.integers(1, most + 1))

    values = {
        "batching": one_of("mixed", "prefill_first"),
        "chunked": one_of(True, False),
        "reserve": one_of("prompt", "output", "ratio"),
        "max_num_seqs": up_to(20),
        "token_budget": 64 * up_to(16),
        "longest_chunk": one_of(64, 256, 1024),
        "block_size": BLOCK,
        "prefix_caching": one_of(True, False),
        "lag": one_of(True, False),
        "receive_steps": one_of(1, 1, 4),
        "gather": one_of(1, 1, 3),
        "gather_steps": up_to(20),
        "ranks": one_of(1, 1, 2),
        "beside_blocks": one_of(0, 0, 2),
    }
    rules = Rules(**values)  # type: ignore[arg-type]
    count, blocks = up_to(60), 60 + up_to(300)
    prompts, outputs = draw.integers(1, 700, count), draw.integers(1, 300, count)
    names = [tuple(int(draw.integers(3)) * 1000 + place for place in range(size // BLOCK)) for size in prompts]
    closed = bool(one_of(True, False, False))
    sent_ns = None if closed else np.cumsum(draw.exponential(1e9 / up_to(60), count)).astype(np.int64)
    load = Workload(prompts, outputs, sent_ns, up_to(12) if closed else None, names, BLOCK)
    replicas = [Replica(plain_times(), rules, blocks) for _ in range(up_to(4))]
    router = ROUTERS[sorted(ROUTERS)[int(draw.integers(len(ROUTERS)))]]()
    sent, refused = loop.simulate(load, replicas, router, block_size=BLOCK, longest=blocks * BLOCK)
    stamps = [(o.index, o.cached_len, o.queued_ns, o.scheduled_ns, o.first_ns, o.last_ns, o.preemptions) for o in sent]
    tallies = [replica.tally for replica in replicas]
    counts = [(tally.busy_ticks, tally.block_ticks, tally.steps, sorted(tally.gap_counts.items())) for tally in tallies]
    return seed, stamps, [one.index for one in refused], counts, [replica.pool.hits for replica in replicas]


if __name__ == "__main__":
    print("source" if loop.__file__.endswith(".py") else "compiled")
    for seed in range(int(sys.argv[1])):
        print(case(seed))
