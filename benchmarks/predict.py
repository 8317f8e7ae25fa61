"""Speed of `predict`, as ratios beside the same code uncompiled and a closed form: `python benchmarks/predict.py`.

Llama 3.1 405B in one layout, on 8,192 and on 98,304 GPUs. Two costs matter: one more prediction in a process that is
warm (a search makes thousands), and the whole command that a person types. Every warm prediction here is of another
batch than the one before, so that no answer can be remembered, or of another sequence length, so that no pass can be.

Peers: numba switched off (the replay then runs as plain Python, the rest is the same), and llm-analysis 0.2.2, a closed
form without events (`pip install windtunnel[bench]`; left out where it is not installed).
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

SIZES = (8_192, 98_304)
LAYOUT = {"tp": 8, "pp": 16, "cp": 2, "seq_len": 8192}
BATCHES_PER_REPLICA = (48, 40, 56, 32, 64, 52, 44, 36, 60)  # micro-batches; 48 is Llama 3's own
SEQUENCES = (4096, 6144, 10240, 12288, 14336, 16384, 20480)
COMMAND = "predict llama-3.1-405b --cluster h100-sxm:{gpus} --tp 8 --pp 16 --cp 2 --global-batch {batch} --seq 8192"


def batch(gpus: int, micro_batches: int = BATCHES_PER_REPLICA[0]) -> int:
    """Sequences per step."""
    return micro_batches * gpus // (8 * 16 * 2)


def timed(calls: Iterable[Callable[[], object]], rounds: int = 5) -> list[float]:
    """Seconds of each call, best of some rounds through all of them: other programs only ever add."""
    calls = list(calls)
    taken = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            taken[number] = min(taken[number], time.perf_counter() - begin)
    return taken


def predictions(gpus: int) -> dict[str, Any]:
    """One more prediction and one replay of the step graph in this process, and what was predicted."""
    import numpy as np

    from windtunnel import load_model, parse_cluster, predict, read_plan
    from windtunnel.physics.engine import Slowdown, replay
    from windtunnel.studies.training.layout import resolve
    from windtunnel.studies.training.lowering.lower import lower
    from windtunnel.studies.training.lowering.model_chunks import pieces_of
    from windtunnel.studies.training.pricing import Pricer
    from windtunnel.studies.training.schedules import schedule

    model, cluster = load_model("llama-3.1-405b"), parse_cluster(f"h100-sxm:{gpus}")
    plans = [read_plan({**LAYOUT, "global_batch": batch(gpus, count)}) for count in BATCHES_PER_REPLICA]
    result = predict(model, cluster, plans[0])
    warm = timed([lambda plan=plan: predict(model, cluster, plan) for plan in plans])  # type: ignore[misc]

    lengths = [length + 256 * SIZES.index(gpus) for length in SEQUENCES]  # passes do not depend on the number of GPUs
    others = [read_plan({**LAYOUT, "global_batch": batch(gpus), "seq_len": length}) for length in lengths]
    # One round: in a second one the passes would be remembered.
    fresh = timed([lambda plan=plan: predict(model, cluster, plan) for plan in others], rounds=1)  # type: ignore[misc]

    layout = resolve(model, cluster, plans[0])
    pricer = Pricer(layout)
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    step = lower(layout, pieces_of(layout), chosen, pricer)
    slowdown = Slowdown(step.interference, np.array(pricer.training.slowdown_factors()))
    replays = timed([lambda: replay(step.graph, step.duration_ns, slowdown)])

    inside = sum(
        step.segments[step.segment_of[stage, kind]].graph.n_ops
        for stage, kind in zip(chosen.stage_of.tolist(), chosen.kind.tolist(), strict=True)
    )
    return {
        "predict_s": statistics.median(warm),
        "fresh_s": statistics.median(fresh),
        "replay_s": statistics.median(replays),
        "ops": step.graph.n_ops,
        "simulated": result.n_ops,
        "stands_for": (inside + step.graph.n_ops) * (gpus // result.n_classes),
        "step_s": [result.step_time_s, result.step_time_p5_ns / 1e9, result.step_time_p95_ns / 1e9],
    }


def uncompiled(gpus: int) -> dict[str, Any]:
    """`predictions` with numba switched off."""
    done = subprocess.run(
        [sys.executable, __file__, str(gpus)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def closed_form(gpus: int) -> float | None:
    """Seconds per answer of llm-analysis, None where it is absent.

    It knows no context parallelism, so its replicas are tp x pp = 128 GPUs at half the micro-batches: as much work.
    """
    if find_spec("llm_analysis") is None:
        return None
    logging.disable(logging.WARNING)
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import ModelConfig, ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name

    model = ModelConfig(
        name="llama-3.1-405b", num_layers=126, n_head=128, hidden_dim=16384, vocab_size=128256, max_seq_len=131072,
        num_key_value_heads=8, ffn_embed_dim=53248, expansion_ratio=3.25, model_type="llama",
    )  # fmt: skip

    def answer(micro_batches: int) -> Any:
        analysis = LLMAnalysis(
            model,
            get_gpu_config_by_name("h100-sxm-80gb"),
            get_dtype_config_by_name("w16a16e16"),
            ParallelismConfig(tp_size=8, pp_size=16, dp_size=gpus // 128),
        )
        return analysis.training(
            batch_size_per_gpu=1,
            gradient_accumulation_steps=micro_batches // 2,
            global_batch_size=batch(gpus, micro_batches),
            seq_len=8192,
            mlp_gated_linear_units=True,
        )

    assert answer(BATCHES_PER_REPLICA[0])["latency_per_iter"] > 0
    taken = timed([lambda count=count: answer(count) for count in BATCHES_PER_REPLICA])  # type: ignore[misc]
    return statistics.median(taken)


def command_s(words: list[str], repeats: int = 5) -> float:
    """Seconds of a whole command, best of some."""
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, *words]
        (best,) = timed([lambda: subprocess.run(run, cwd=folder, capture_output=True, check=True)], repeats)
    return best


def main() -> None:
    """Print the tables."""
    found = {gpus: predictions(gpus) for gpus in SIZES}
    plain = {gpus: uncompiled(gpus) for gpus in SIZES}
    peers = {gpus: closed_form(gpus) for gpus in SIZES}
    one = found[SIZES[0]]

    print("one more prediction in a warm process          8,192 GPUs   98,304 GPUs   ratio")
    row("  windtunnel, another batch", [found[gpus]["predict_s"] * 1e3 for gpus in SIZES], "ms")
    row("  windtunnel, another sequence length", [found[gpus]["fresh_s"] * 1e3 for gpus in SIZES], "ms")
    row("  another batch, numba switched off", [plain[gpus]["predict_s"] * 1e3 for gpus in SIZES], "ms")
    row("    of which replay of the step graph", [found[gpus]["replay_s"] * 1e3 for gpus in SIZES], "ms")
    row("    the same replay in plain Python", [plain[gpus]["replay_s"] * 1e3 for gpus in SIZES], "ms")
    known = {gpus: peer for gpus, peer in peers.items() if peer is not None}
    if known:
        row("  llm-analysis, closed form", [known[gpus] * 1e3 for gpus in SIZES], "ms")
    else:
        print("  llm-analysis, closed form                     not installed: pip install '.[bench]' (Python 3.11)")

    print(f"\nreplay: {plain[SIZES[0]]['replay_s'] / one['replay_s']:.0f} times as fast as plain Python")
    if known:
        print(f"predict takes {one['predict_s'] / known[SIZES[0]]:.1f} times as long as the closed form")
    for gpus in SIZES:
        answer, low, high = found[gpus]["step_s"]
        simulated, all_gpus = found[gpus]["simulated"], found[gpus]["stands_for"]
        print(f"{gpus:,} GPUs: step {answer:.2f} s ({low:.2f} to {high:.2f})")
        print(f"  {simulated:,} ops simulated, which stand for {all_gpus:,} on all GPUs")

    print("\nwhole command")
    floor = command_s(["-c", "pass"])
    for name, words in (
        ("python -c pass", ["-c", "pass"]),
        ("windtunnel --help", ["-m", "windtunnel", "--help"]),
        *((f"windtunnel predict, {n:,} GPUs", ["-m", "windtunnel", *COMMAND.format(gpus=n, batch=batch(n)).split()])
          for n in SIZES),
    ):  # fmt: skip
        taken = command_s(words)
        print(f"  {name:40s} {taken:8.3f} s {taken / floor:7.0f} x python -c pass")


def row(name: str, figures: list[float], unit: str) -> None:
    """One line: a figure per size, and the last over the first."""
    cells = "".join(f"{figure:11.3f} {unit}" for figure in figures)
    print(f"{name:43s}{cells} {figures[-1] / figures[0]:7.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(predictions(int(sys.argv[1]))))
    else:
        main()
