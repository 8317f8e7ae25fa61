"""Speed of coflows, as ratios against a plain-Python twin: `python benchmarks/coflows.py [TRACE.txt]`.

CoflowSim's clock under FAIR, the policy whose rules are short enough to be written twice: each quantum, each flow moves
the lesser of equal shares at its two ports. The twin does just that with lists; the ends must be equal. The other
policies are timed alone. CPU seconds, best of three after a first call that compiles.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "validation"))
from oracles.coflowsim.clock import run_ticks

from windtunnel.studies.fleet.flows import POLICIES, Trace, read_trace, run_flows

MIB = 1048576


def main() -> None:
    path = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "tests/unit/studies/fleet/coflows.txt"
    )
    trace = read_trace(path)
    flows = sum(len(set(s.mappers)) * len({p for p, _ in s.reducers}) for s in trace.shuffles)
    print(f"{path.name}: {len(trace.shuffles)} coflows, {flows:,} flows, {trace.n_ports} ports")
    best: dict[tuple[str, str], float] = {}
    for clock, run in (("coflowsim", run_ticks), ("exact", run_flows)):
        for policy in POLICIES:
            run(Trace(trace.n_ports, trace.shuffles[:2]), policy)
            for _ in range(3):
                begun = time.process_time()
                run(trace, policy)
                took = time.process_time() - begun
                best[clock, policy] = min(took, best.get((clock, policy), took))
            print(f"{clock:10} {policy:7} {best[clock, policy]:8.3f} CPU-s")
    begun = time.process_time()
    plain = plainly_fair(trace)
    took = time.process_time() - begun
    assert run_ticks(trace, "fair").finish.tolist() == plain, "the twin ends otherwise"
    print(f"plain twin fair    {took:8.3f} CPU-s, {took / best['coflowsim', 'fair']:.0f} x the compiled")


def plainly_fair(trace: Trace) -> list[int]:
    """End of every coflow in ticks, one flow and one quantum at a time."""
    coming = sorted(range(len(trace.shuffles)), key=lambda i: trace.shuffles[i].arrival_ms)
    finish = [-1] * len(trace.shuffles)
    flows: list[list] = []  # coflow, source, target, bytes left
    unfinished: Counter[int] = Counter()
    epoch = 0
    while coming or unfinished:
        while coming and trace.shuffles[coming[0]].arrival_ms <= epoch + 10_240:
            c = coming.pop(0)
            sources = sorted(set(trace.shuffles[c].mappers))
            received: Counter[int] = Counter()
            for port, mib in trace.shuffles[c].reducers:
                received[port] += -(-int(mib * MIB) // MIB)
            for port, mib in received.items():
                each = -(-mib // len(sources)) * MIB
                flows += [[c, source, port, float(each)] for source in sources]
            unfinished[c] += len(sources) * len(received)
        for clock in range(epoch, epoch + 10_240, 8):
            if not unfinished:
                break
            into = Counter(flow[2] for flow in flows)
            outof = Counter(flow[1] for flow in flows)
            for flow in flows:
                flow[3] -= min(MIB / max(into[flow[2]], outof[flow[1]]), flow[3])
                if flow[3] <= 1e-3:
                    unfinished[flow[0]] -= 1
                    if not unfinished[flow[0]]:
                        del unfinished[flow[0]]
                        finish[flow[0]] = clock + 8
            flows = [flow for flow in flows if flow[3] > 1e-3]
        epoch += 10_240
    return finish


if __name__ == "__main__":
    main()
