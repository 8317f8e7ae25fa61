"""Speed of the replay, as ratios against a plain-Python twin (lists, no arrays): `python benchmarks/replay.py`.

The graph is a pipeline of ranks, each with a host, a compute and two communication streams, joined by rendezvous.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from windtunnel.engine import Slowdown, critical_path, exposed, replay
from windtunnel.graph import Graph, GraphBuilder, OpKind

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


def main() -> None:
    """Print one table per graph size, and what a fresh process pays."""
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
    program = "from windtunnel.engine import kernels"
    fresh = seconds(lambda: subprocess.run([sys.executable, "-c", program], check=True), 3)
    floor = seconds(lambda: subprocess.run([sys.executable, "-c", "import numba"], check=True), 3)
    print(f"fresh process until the kernels are loaded: {fresh:.2f} s, of which `import numba`: {floor:.2f} s")


if __name__ == "__main__":
    main()
