"""Speed of the replay, as ratios against a plain-Python twin (lists, no arrays): `python benchmarks/replay.py`.

The graph is a pipeline of ranks, each with a host, a compute and two communication streams, joined by rendezvous.
Then a whole job that nothing folds, every op with a duration of its own, and the same job folded:
`python benchmarks/replay.py --ops 40000000` takes 4 GiB and half a minute, and leaves out the fold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from windtunnel.physics.engine import Slowdown, critical_path, exposed, replay
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind
from windtunnel.physics.graph.fold import refine
from windtunnel.physics.graph.footprint import GIB, graph_bytes, replay_bytes

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "laws"))
from exact_fold import fold

CLASS_OF_KIND = {OpKind.HOST: 0, OpKind.COMPUTE: 1, OpKind.COLLECTIVE: 2, OpKind.SEND: 2, OpKind.RECV: 2}
FACTOR = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [0.0, 0.3, 0.0]])


def pipeline(ranks: int, micro_batches: int, layers: int) -> tuple[Graph, np.ndarray]:
    """Forward passes of `layers` layers per rank and micro-batch: launch, two kernels, all-reduce, send."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    for rank in range(ranks):
        host, compute, link, peer = (b.stream(rank, name) for name in ("host", "compute", "tp", "pp"))
        for batch in range(micro_batches):
            got: list[int] = []
            if rank:
                got = [b.op(OpKind.RECV, peer, duration_ns=900, category="pp", rendezvous=(rank, batch))]
            for _ in range(layers):
                a, c, d = rng.integers(100, 10_000, 3).tolist()
                launch = b.op(OpKind.HOST, host, duration_ns=50, category="host")
                b.op(OpKind.COMPUTE, compute, duration_ns=a, category="gemm", after=[launch, *got])
                reduce = b.op(OpKind.COLLECTIVE, link, duration_ns=c, category="tp", after=[len(b._kind) - 1])
                b.op(OpKind.COMPUTE, compute, duration_ns=d, category="wgrad")
                got = [reduce]
            if rank + 1 < ranks:
                b.op(OpKind.SEND, peer, duration_ns=900, category="pp", after=got, rendezvous=(rank + 1, batch))
    return b.build(), b.duration_ns()


TENSOR, STAGES, MICRO_BATCHES, LAYERS = 4, 8, 32, 4
OPS_PER_PASS = 1 + 4 * LAYERS
OPS_PER_RANK = 2 * MICRO_BATCHES * OPS_PER_PASS + 1
NOTHING = -(10**9)
FOLD_AT_MOST = 10_000_000  # ops; beyond, folding itself takes more memory than this benchmark should


def order_1f1b(stage: int) -> np.ndarray:
    """int64[2 micro-batches]: the passes of a stage in order, forward of m as m, backward as micro-batches + m."""
    warm_up = min(STAGES - 1 - stage, MICRO_BATCHES)
    forward, backward = np.arange(MICRO_BATCHES), MICRO_BATCHES + np.arange(MICRO_BATCHES)
    steady = MICRO_BATCHES - warm_up
    pairs = np.stack([forward[warm_up:], backward[:steady]], axis=1).ravel()
    return np.concatenate([forward[:warm_up], pairs, backward[steady:]])


def job(replicas: int) -> Graph:
    """Every rank of a 1F1B job as a program of its own: tensor x pipeline x data parallel, [replica, stage, tensor].

    A pass is a transfer from the stage before, then for each of its layers twice a kernel and an all-reduce over the
    tensor-parallel group; at the end one all-reduce over the replicas.
    """
    shape = (replicas, STAGES, TENSOR)
    ranks = replicas * STAGES * TENSOR
    n = ranks * OPS_PER_RANK
    assert n < 2**31
    slots = np.stack([order_1f1b(stage) for stage in range(STAGES)])
    slot_of = np.argsort(slots, axis=1)
    # One rank's ops, in order: place in the pass, and the whole step.
    place = np.append(np.tile(np.arange(OPS_PER_PASS), 2 * MICRO_BATCHES), OPS_PER_PASS)
    reduces = (place > 0) & (place % 2 == 0)
    stream = np.where(place == 0, 2, np.where(reduces, 1, 0))
    stream[-1] = 3
    kind = np.where(place == 0, OpKind.SEND, np.where(reduces, OpKind.COLLECTIVE, OpKind.COMPUTE))
    kind[-1] = OpKind.COLLECTIVE
    # What each op of a stage waits for: the op before it in its pass, or the last of the pass that feeds it.
    waits = np.tile(np.arange(OPS_PER_RANK) - 1, (STAGES, 1)).astype(np.int64)
    for stage in range(STAGES):
        for slot, which in enumerate(slots[stage]):
            backward = which >= MICRO_BATCHES
            source = stage + (1 if backward else -1)
            turn = backward and source == STAGES
            if turn:
                source, which = stage, which - MICRO_BATCHES
            elif source < 0:
                source, which = stage, slots[stage][slot - 1] if slot else -1
            last = (slot_of[source, which] + 1) * OPS_PER_PASS - 1
            hop = (source - stage) * TENSOR * OPS_PER_RANK + last
            waits[stage, slot * OPS_PER_PASS] = NOTHING if which < 0 else hop
    begins = (np.arange(ranks, dtype=np.int32) * OPS_PER_RANK).reshape(*shape, 1)
    dep_idx = np.ascontiguousarray(np.broadcast_to(waits[:, None, :], (*shape, OPS_PER_RANK)), dtype=np.int32)
    counts = np.broadcast_to((waits != NOTHING)[:, None, :], (*shape, OPS_PER_RANK))
    dep_ptr = np.zeros(n + 1, np.int64)
    np.cumsum(counts.reshape(-1), out=dep_ptr[1:])
    dep_idx += begins
    dep_idx = dep_idx.reshape(-1)[counts.reshape(-1)]
    # A rendezvous is named by its first member.
    rendezvous = np.full((*shape, OPS_PER_RANK), -1, np.int32)
    at = np.flatnonzero(reduces[:-1]).astype(np.int32)
    rendezvous[..., at] = begins[:, :, :1] + at
    rendezvous[..., -1] = begins[:1, ..., 0] + (OPS_PER_RANK - 1)
    streams = np.add.outer(np.arange(ranks, dtype=np.int32) * 4, stream.astype(np.int32))
    return Graph(
        kind=np.tile(kind.astype(np.uint8), ranks),
        stream=streams.reshape(-1),
        stream_rank=np.repeat(np.arange(ranks, dtype=np.int32), 4),
        dep_ptr=dep_ptr,
        dep_idx=dep_idx,
        rendezvous=rendezvous.reshape(-1),
        label=np.zeros(n, np.int32),
        category=np.tile(stream.astype(np.uint8), ranks),
        flops=np.zeros(n),
        bytes=np.zeros(n),
        multiplicity=np.ones(ranks, np.int64),
        categories=("compute", "tp", "pp", "dp"),
    )


def plain_python(graph: Graph, duration: list[int]) -> list[int]:
    """The same pass as `replay_fixed`, as one would write it without arrays."""
    n = graph.n_ops
    stream, rendezvous = graph.stream.tolist(), graph.rendezvous.tolist()
    ptr, idx = graph.dep_ptr.tolist(), graph.dep_idx.tolist()
    after = [idx[ptr[i] : ptr[i + 1]] for i in range(n)]
    queues: list[list[int]] = [[] for _ in range(graph.n_streams)]
    members: dict[int, list[int]] = {}
    for i in range(n):
        queues[stream[i]].append(i)
        if rendezvous[i] >= 0:
            members.setdefault(rendezvous[i], []).append(i)
    end = [-1] * n
    ready = [0] * n
    arrived = dict.fromkeys(members, 0)
    head, free = [0] * graph.n_streams, [0] * graph.n_streams
    waiting: dict[int, list[int]] = {}
    pending = list(range(graph.n_streams))
    while pending:
        s = pending.pop()
        queue = queues[s]
        while head[s] < len(queue):
            i = queue[head[s]]
            t = free[s]
            blocker = -1
            for d in after[i]:
                if end[d] < 0:
                    blocker = d
                    break
                t = max(t, end[d])
            if blocker >= 0:
                waiting.setdefault(blocker, []).append(s)
                break
            ready[i] = t
            group = [i]
            if rendezvous[i] >= 0:
                group = members[rendezvous[i]]
                arrived[rendezvous[i]] += 1
                if arrived[rendezvous[i]] < len(group):
                    break
                t = max(ready[m] for m in group)
            for m in group:
                q = stream[m]
                free[q] = end[m] = t + duration[m]
                head[q] += 1
                if q != s:
                    pending.append(q)
                pending.extend(waiting.pop(m, ()))
    return end


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Best of `repeats`."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def whole_job(ops: int) -> None:
    """Replay a job that nothing folds; then fold it with equal durations per stage, and with one slow rank."""
    replicas = max(1, round(ops / (OPS_PER_RANK * STAGES * TENSOR)))
    graph = job(replicas)
    n = graph.n_ops
    rng = np.random.default_rng(0)
    by_place = rng.integers(1_000, 100_000, (STAGES, 1, OPS_PER_RANK))
    smooth = np.broadcast_to(by_place, (replicas, STAGES, TENSOR, OPS_PER_RANK)).reshape(-1)
    noisy = smooth + rng.integers(0, 5_000, n, dtype=np.int32)
    needed = graph_bytes(n, len(graph.dep_idx), graph.n_streams)
    whole = needed + replay_bytes(n, graph.n_streams)
    print(
        f"{n:,} ops, {len(graph.dep_idx):,} dependencies, {graph.n_programs:,} ranks: "
        f"graph {needed / GIB:.2f} GiB, with all that a replay takes {whole / GIB:.2f} GiB"
    )
    for name, duration in (("equal durations", smooth), ("every op its own", noisy)):
        taken = seconds(lambda d=duration: replay(graph, d), 2)
        print(f"  replay, {name:18s} {taken:8.3f} s {n / taken / 1e6:8.2f} Mops/s on one core")
    if n > FOLD_AT_MOST:
        return
    slow = smooth.reshape(graph.n_programs, -1).copy()
    slow[0] += slow[0] // 5
    for name, duration in (("equal durations", smooth), ("one slow rank", slow.ravel()), ("every op its own", noisy)):
        taken = seconds(lambda d=duration: fold(graph, d), 1)
        folded = fold(graph, duration)
        fast = seconds(lambda f=folded: replay(f.graph, f.duration_ns), 3)
        line = replay(graph, duration)
        assert np.array_equal(folded.unfold(replay(folded.graph, folded.duration_ns).end_ns), line.end_ns)
        programs = f"{folded.graph.n_programs:,} programs"
        print(f"  fold, {name:20s} {taken:8.3f} s to {programs}, replayed in {fast * 1e3:.3f} ms")


def partitions() -> None:
    """Classes of 98,304 ranks, some of them slow."""
    tensor, context, data, stages = 8, 2, 384, 16
    ranks = np.arange(tensor * context * data * stages).reshape(stages, data, context, tensor)
    families = [
        ranks.reshape(-1, tensor),
        ranks.swapaxes(2, 3).reshape(-1, context),
        ranks.transpose(0, 2, 3, 1).reshape(-1, data),
        ranks.transpose(0, 3, 1, 2).reshape(-1, data * context),
        ranks.reshape(-1, 8 * context * tensor),  # experts over eight replicas
        ranks.transpose(1, 2, 3, 0).reshape(-1, stages),
    ]
    stage = np.repeat(np.arange(stages), tensor * context * data)
    print(f"refine, {ranks.size:,} ranks in {len(families)} families of communicators")
    for slow in (0, 1, 10, 100, ranks.size // 100):
        colour = 2 * stage
        colour[np.random.default_rng(0).choice(ranks.size, slow, replace=False)] += 1
        taken = seconds(lambda c=colour: refine(c, families), 2)
        classes = int(refine(colour, families).max()) + 1
        print(f"  {slow:5d} slow {taken:8.3f} s to {classes:,} classes")


def main() -> None:
    """Print one table per graph size, the whole job, and what a fresh process pays."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--ops", type=int, default=2_000_000, help="size of the whole job (default 2,000,000)")
    arguments = parser.parse_args()
    small_graphs()
    partitions()
    whole_job(arguments.ops)
    program = "from windtunnel.physics.engine.compiled import fixed_kernels, kernels"
    fresh = seconds(lambda: subprocess.run([sys.executable, "-c", program], check=True), 3)
    floor = seconds(lambda: subprocess.run([sys.executable, "-c", "import numba"], check=True), 3)
    print(f"fresh process until the kernels are loaded: {fresh:.2f} s, of which `import numba`: {floor:.2f} s")


def small_graphs() -> None:
    """Against plain Python."""
    for ranks, micro_batches, layers in ((1, 10, 25), (16, 16, 39), (16, 96, 156)):
        graph, duration = pipeline(ranks, micro_batches, layers)
        classes = np.array([CLASS_OF_KIND[OpKind(k)] for k in graph.kind.tolist()], dtype=np.uint8)
        slowdown = Slowdown(classes, FACTOR)
        n = graph.n_ops
        line = replay(graph, duration)
        lengths = duration.tolist()
        assert plain_python(graph, lengths) == line.end_ns.tolist()
        repeats = max(3, min(50, 2_000_000 // n))
        plain = seconds(lambda g=graph, d=lengths: plain_python(g, d), 3)
        rows = {
            "plain Python": plain,
            "replay": seconds(lambda g=graph, d=duration: replay(g, d), repeats),
            "replay, slowdown": seconds(lambda g=graph, d=duration, s=slowdown: replay(g, d, s), repeats),
            "exposed": seconds(lambda g=graph, t=line: exposed(t, g), repeats),
            "critical path": seconds(lambda g=graph, t=line: critical_path(g, t), repeats),
        }
        print(f"{n:,} ops, {graph.n_programs} programs, {graph.n_streams} streams")
        for name, taken in rows.items():
            print(
                f"  {name:18s} {taken * 1e3:10.3f} ms {n / taken / 1e6:8.2f} Mops/s {plain / taken:8.1f}x plain Python"
            )


if __name__ == "__main__":
    main()
