"""Alpa's two levels: against looking at every possibility, and against the plans that its authors recorded.

    python validation/planning/alpa.py [alpa_recorded_plans.csv] [--instances 200] [--scale 16384]

1. The dynamic programme over layers and submeshes equals every cut on random instances to 8 layers and 8 devices, with
   memory limits; the integer programme (extra `plan`) equals enumeration on random small blocks.
2. Of each recorded plan (GPT on V100, everything recomputed, sequences of 1,024): what it takes by Alpa's own cost,
   sum of stages + (B - 1) x the longest, on this predictor's prices of passes; and what the dynamic programme finds on
   the same table of layers x submeshes x (data, tensor) meshes. The programme must not lose.
3. With `--scale`: Llama 3.1 405B, each of its 126 layers for itself, on so many H100: CPU seconds of the programme, on
   submeshes of one host and of 2^j hosts (Alpa's "power of two" choice), to 1 % of the best.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np
from every_staging import every_staging
from numpy.typing import NDArray
from shardings import best_by_trying_all, best_sharding

from windtunnel.errors import UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import Model, load_model, transformer
from windtunnel.studies.planning.alpa.stages import best_stages, submeshes
from windtunnel.studies.planning.least.blocks import block_parameters, kept_bytes
from windtunnel.studies.planning.oracle import Layout, Plan, laid_out
from windtunnel.studies.planning.search.bounds import Bounds

# hidden, layers, heads: alpa-projects/alpa, benchmark/alpa/suite_manual_gpt.py (facts)
GPT = {
    "350M": (1024, 24, 16), "760M": (1536, 24, 16), "1.3B": (2048, 24, 32), "2.6B": (2560, 32, 32),
    "6.7B": (4096, 32, 32), "15B": (5120, 48, 40), "39B": (8192, 48, 64),
}  # fmt: skip
SEQUENCE, VOCABULARY, STATE_BYTES = 1024, 51200, 16  # fp16 weights and gradients, fp32 master and two moments
TOLERANCE = 0.005


def random_stages(instances: int, draw: np.random.Generator) -> int:
    """How many random instances the programme solves as looking at every cut does."""
    equal = 0
    for _ in range(instances):
        layers, total, micro = int(draw.integers(2, 9)), int(draw.choice([2, 4, 8])), int(draw.integers(1, 9))
        devices = [width for width in (1, 2, 4, 8) if width <= total]
        times = np.full((layers, layers, len(devices), 1), np.inf)
        for first in range(layers):
            for last in range(first, layers):
                times[first, last, :, 0] = draw.uniform(0.5, 1.5, len(devices)) * (last - first + 1) / devices
        successors = draw.integers(0, layers, times.shape)
        best = np.inf
        for cut in every_staging(layers, devices, total):
            if all(successors[s.first, s.last, s.submesh, 0] >= len(cut) - 1 - q for q, s in enumerate(cut)):
                each = [times[s.first, s.last, s.submesh, 0] for s in cut]
                best = min(best, sum(each) + (micro - 1) * max(each))
        found = best_stages(times, devices, total, micro, successors)
        equal += np.isclose(np.inf if found is None else found.time, best, rtol=1e-12)
    return int(equal)


def random_shardings(instances: int, draw: np.random.Generator) -> int:
    """How many random blocks the integer programme solves as enumeration does."""
    equal = 0
    for _ in range(instances):
        sizes = draw.integers(2, 5, int(draw.integers(2, 7)))
        costs = [draw.uniform(0, 10, size).tolist() for size in sizes]
        memory = [draw.uniform(0, 10, size).tolist() for size in sizes]
        edges = {
            (u, v): draw.uniform(0, 10, (sizes[u], sizes[v])).tolist()
            for u in range(len(sizes))
            for v in range(u + 1, len(sizes))
            if draw.random() < 0.5
        }
        most = float(draw.uniform(2, 6) * len(sizes)) if draw.random() < 0.5 else None
        one, two = best_sharding(costs, edges, memory, most), best_by_trying_all(costs, edges, memory, most)
        equal += (one is None) == (two is None) and (one is None or np.isclose(one.cost, two.cost, rtol=1e-6))
    return int(equal)


def shortest_passes(
    bounds: Bounds, layout: Layout, first: NDArray[np.int64], last: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Forward and backward of stages that hold the blocks first..last of the chain: prices for the programme."""
    return bounds.chain(layout, layout.plan.recompute).passes(first, last)


def table(model: Model, clusters: int, gpus: int, micro_batch: int) -> tuple[np.ndarray, np.ndarray, list, list]:
    """Seconds and most successors by first and last cluster, submesh and mesh; the submeshes; the meshes."""
    per_host = min(8, gpus)
    shapes = [one for one in submeshes(gpus // per_host, per_host) if one[0] * one[1] <= gpus]
    widths = sorted({hosts * wide for hosts, wide in shapes})
    meshes = [(data, tensor) for tensor in (1, 2, 4, 8) for data in (1, 2, 4, 8, 16, 32, 64)]
    size = (clusters, clusters, len(shapes), len(meshes))
    times, successors = np.full(size, np.inf), np.full(size, -1, np.int64)
    each = model.n_layers // clusters
    for c, (data, tensor) in enumerate(meshes):
        if data * tensor not in widths or micro_batch % data:
            continue
        plan = Plan(tp=tensor, global_batch=micro_batch, micro_batch=micro_batch // data, seq_len=SEQUENCE,
                    precision="fp16", recompute="full", framework="megatron", zero_stage=0)  # fmt: skip
        try:
            layout = laid_out(model, parse_cluster(f"v100-32gb-sxm:{data * tensor}"), plan)
        except UserError:
            continue
        bounds = Bounds(0.0)
        blocks = bounds.blocks(layout)
        held = block_parameters(blocks)
        kept, inside = (kept_bytes(layout, recompute, blocks)[0] for recompute in ("full", "none"))
        room = layout.cluster.gpu.usable_memory_bytes
        for k in range(clusters):
            for i in range(k, clusters):
                first, last = (0 if k == 0 else k * each + 1), (i + 1) * each + (i == clusters - 1)
                passes = shortest_passes(bounds, layout, np.array([first]), np.array([last]))
                ends = (held[-1][0] if k == 0 else 0.0) + (held[-2][0] if i == clusters - 1 else 0.0)
                state = STATE_BYTES * (held[0][0] * each * (i - k + 1) + ends)
                left = int((room - state - inside) // max(1.0, kept * each * (i - k + 1)))
                for s, (hosts, wide) in enumerate(shapes):
                    if hosts * wide == data * tensor and left >= 1:
                        times[k, i, s, c] = float(passes[0][0] + passes[1][0]) / 1e9
                        successors[k, i, s, c] = left - 1
    return times, successors, shapes, meshes


def recorded(path: str) -> bool:
    """Whether the programme loses to no recorded plan."""
    never = True
    for row in csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()):
        hidden, layers, heads = GPT[row["model"]]
        model = transformer(hidden=hidden, layers=layers, heads=heads, vocab=VOCABULARY, ffn=4 * hidden, family="gpt")
        gpus, micro, clusters = int(row["gpus"]), int(row["micro_batches"]), int(row["auto_layers"])
        times, successors, shapes, meshes = table(model, clusters, gpus, int(row["global_batch"]) // micro)
        cuts = _repeated(row["stages_layers"])
        logical = [tuple(map(int, one.split("x"))) for one in _repeated(row["logical_mesh"])]
        physical = [tuple(map(int, one.split("x"))) for one in _repeated(row["submesh"])]
        first, theirs, fits = 0, [], True
        for number, (cut, mesh, shape) in enumerate(zip(cuts, logical, physical, strict=True)):
            place = (first, first + int(cut) - 1, shapes.index(shape), meshes.index(mesh))
            theirs.append(times[place])
            fits &= bool(successors[place] >= len(cuts) - 1 - number)
            first += int(cut)
        cost = sum(theirs) + (micro - 1) * max(theirs)
        begun = time.process_time()
        found = best_stages(times, [a * b for a, b in shapes], gpus, micro, successors, TOLERANCE)
        used = time.process_time() - begun
        assert found is not None
        ours = " ".join(f"{s.last - s.first + 1}@{meshes[s.configuration]}" for s in found.stages)
        print(
            f"{row['model']:>5} on {gpus:>2}: recorded {cost:8.2f} s{'' if fits else ' (beyond our memory)'}, found"
            f" {found.time:8.2f} s, {cost / found.time - 1.0:+.1%} ({used:.0f} s of CPU): {ours}",
            flush=True,
        )
        never &= found.time <= cost * (1.0 + TOLERANCE) or not fits
    return never


def scale(gpus: int, micro_batches: int = 32, per_micro_batch: int = 128, length: int = 8192) -> None:
    """CPU seconds for a large cluster."""
    model = load_model("llama-3.1-405b")
    layers = model.n_layers
    widths = [2**j for j in range(gpus.bit_length()) if 2**j <= gpus]
    meshes = [(data, tensor) for tensor in (1, 2, 4, 8) for data in widths if per_micro_batch % data == 0]
    size = (layers, layers, len(widths), len(meshes))
    times, successors = np.full(size, np.inf), np.full(size, -1, np.int64)
    first, last = (part.ravel() for part in np.indices((layers, layers)))
    whole = first <= last
    first, last = first[whole], last[whole]
    begun = time.process_time()
    for c, (data, tensor) in enumerate(meshes):
        if data * tensor not in widths:
            continue
        plan = Plan(tp=tensor, global_batch=per_micro_batch, micro_batch=per_micro_batch // data, seq_len=length,
                    recompute="full", framework="megatron", zero_stage=1)  # fmt: skip
        layout = laid_out(model, parse_cluster({"gpu": "h100-sxm", "n_gpus": data * tensor}), plan)
        bounds = Bounds(0.0)
        blocks = bounds.blocks(layout)
        held = block_parameters(blocks)
        kept, inside = (kept_bytes(layout, recompute, blocks)[0] for recompute in ("full", "none"))
        forward, backward = shortest_passes(
            bounds, layout, np.where(first, first + 1, 0), last + 1 + (last == layers - 1)
        )
        ends = held[-1][0] * (first == 0) + held[-2][0] * (last == layers - 1)
        state = (6 + 12 / data) * (held[0][0] * (last - first + 1) + ends)  # optimizer sharded over replicas
        room = layout.cluster.gpu.usable_memory_bytes - state - inside
        left = np.floor(room / np.maximum(1.0, kept * (last - first + 1))).astype(np.int64)
        s = widths.index(data * tensor)
        times[first, last, s, c] = np.where(left >= 1, (forward + backward) / 1e9, np.inf)
        successors[first, last, s, c] = left - 1
    priced = time.process_time()
    found = best_stages(times, widths, gpus, micro_batches, successors, 0.01)
    used = time.process_time() - priced
    assert found is not None
    stages = [(s.last - s.first + 1, widths[s.submesh], meshes[s.configuration]) for s in found.stages]
    print(f"405B, {layers} layers on {gpus:,} GPUs: {found.time:.2f} s in {len(stages)} stages, within 1 % of the best;"
          f" {used:.1f} s of CPU, and {priced - begun:.1f} s for prices")  # fmt: skip
    print(f"  layers, GPUs, (data, tensor) of each stage: {stages}")


def _repeated(text: str) -> list[str]:
    """`3 3` and `1x2 x2` as lists: the last word `xN` repeats the one before."""
    words = text.split()
    if len(words) == 2 and words[1].startswith("x"):
        return [words[0]] * int(words[1][1:])
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="?")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--scale", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.scale:
        return scale(arguments.scale)
    draw = np.random.default_rng(0)
    print(f"dynamic programme: {random_stages(arguments.instances, draw)} of {arguments.instances} equal every cut")
    print(f"integer programme: {random_shardings(60, draw)} of 60 equal enumeration", flush=True)
    if arguments.plans and not recorded(arguments.plans):
        raise SystemExit("a recorded plan is better")


if __name__ == "__main__":
    main()
