"""What 1,000 samples of a step cost beside one: `python benchmarks/samples.py`.

Llama 3.1 405B on 8,192 and 98,304 GPUs under jitter. Two levels: the sampling alone (`engine.samples`), and all of
`predict` with two more disturbances, the blame of each followed from sample to sample. Peer: one fixed replay of the
unfolded graph per sample, which is what sampling costs without lanes. The promise is 1,000 samples in at most the time
of 20 single ones.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable

import numpy as np

from windtunnel import load_model, parse_cluster, predict, read_plan
from windtunnel.physics.engine import replay
from windtunnel.physics.engine.samples import Variant, lognormal, sample_steps
from windtunnel.studies.training.disturbances.replicas import meets_across, unfold
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import schedule

SIZES = (8_192, 98_304)
MANY = 1_000
MOST = 20.0  # times one sample
SLOW = ("gpu=1037:1.15", "link=node12.nic3:0.5")


def plan(gpus: int) -> dict[str, int]:
    """Llama 3's layout."""
    return {"tp": 8, "pp": 16, "cp": 2, "seq_len": 8192, "global_batch": 48 * gpus // 256}


def best(call: Callable[[], object], rounds: int = 5) -> float:
    """Seconds, best of some rounds after one to warm up: other programs only ever add."""
    call()
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def sampling(gpus: int) -> dict[str, float]:
    """The lane replay alone, and its peer."""
    layout = resolve(load_model("llama-3.1-405b"), parse_cluster(f"h100-sxm:{gpus}"), read_plan(plan(gpus)))
    pieces, pricer = pieces_of(layout), Pricer(layout)
    table = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    step = lower(layout, pieces, table, pricer)
    passes = step.graph.category < len(step.segments)
    units = np.zeros(layout.dp, np.int64)
    job = [Variant(step.duration_ns[None, :], units, (lognormal(0.02, (0,), np.where(passes, 0, -1)),))]

    def run(samples: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        return sample_steps(step.graph, meets_across(step.graph), passes, job, samples)

    ones = np.ones((layout.dp, layout.plan.pp))
    naive = unfold(step, layout, pieces, pricer, ones, ones, fold=False)
    one, many = best(lambda: run(1)), best(lambda: run(MANY))
    fixed = best(lambda: replay(naive.step.graph, naive.step.duration_ns))
    return {
        "ops of all replicas": naive.step.graph.n_ops,
        "one sample s": one,
        f"{MANY} samples s": many,
        "ratio": many / one,
        "lane samples in the time of one fixed replay": fixed / (many / MANY),
    }


def predicting(gpus: int) -> dict[str, float]:
    """All of `predict`, blame included."""

    def run(samples: int) -> object:
        asked = plan(gpus)
        return predict("llama-3.1-405b", f"h100-sxm:{gpus}", asked, slow=SLOW, jitter="2%", samples=samples)

    one, many = best(lambda: run(1)), best(lambda: run(MANY))
    return {"one sample s": one, f"{MANY} samples s": many, "ratio": many / one}


def main() -> None:
    """Print the figures as JSON, and fail where the promise is broken."""
    figures = {f"{gpus} GPUs": {"sampling": sampling(gpus), "predict": predicting(gpus)} for gpus in SIZES}
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(figures | {"peak memory GiB": gib}, indent=2))
    worst = max(level["ratio"] for size in figures.values() for level in size.values())
    raise SystemExit(f"{MANY} samples cost {worst:.1f} times one, more than {MOST:g}" if worst > MOST else 0)


if __name__ == "__main__":
    main()
