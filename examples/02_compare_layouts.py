"""Which layout is fastest, and which ones would not even start?

    python examples/02_compare_layouts.py

Every power-of-two split of 256 H100 over tensor, pipeline and data parallelism, for Llama 3.1 70B with 256 sequences of
8,192 tokens per step. Layouts that contradict the model are refused, those that do not fit say by how much.
"""

from __future__ import annotations

from itertools import product

import windtunnel
from windtunnel import LayoutError, Result
from windtunnel.physics.step.result import Infeasible

GPUS = 256
MODEL, CLUSTER = "llama-3.1-70b", f"h100-sxm:{GPUS}"
SHARED = {"global_batch": 256, "seq_len": 8192, "recompute": "selective:core_attention"}


def layouts() -> list[tuple[str, Result]]:
    """Name and prediction of every layout that can be laid out at all."""
    model, cluster = windtunnel.load_model(MODEL), windtunnel.parse_cluster(CLUSTER)
    found = []
    for tp, pp, virtual in product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 5)):
        plan = {**SHARED, "tp": tp, "pp": pp, "virtual_stages": virtual}
        try:
            result = windtunnel.predict(model, cluster, plan)
        except LayoutError:
            continue
        found.append((f"tp {tp}  pp {pp:2d}  vpp {virtual}  dp {GPUS // tp // pp:3d}", result))
    return found


def trouble_of(result: Result) -> Infeasible:
    """Why an infeasible job cannot run."""
    assert result.infeasible is not None
    return result.infeasible


def missing(trouble: Infeasible) -> float:
    """GiB that the fullest GPU lacks."""
    return (trouble.needed_bytes - trouble.capacity_bytes) / 2**30


def main() -> None:
    """Print the feasible layouts, fastest first, and say what the choice is worth."""
    found = layouts()
    feasible = sorted((one for one in found if one[1].status == "ok"), key=lambda one: one[1].step_time_ns)
    crowded = [one for one in found if one[1].status == "infeasible"]

    print(f"{len(found)} layouts, {len(crowded)} of them do not fit in memory\n")
    print("layout                      step       MFU   memory   largest cost but the GEMMs")
    for name, result in feasible[:6]:
        loss = max((item for item in result.breakdown_ns.items() if item[0] != "gemm"), key=lambda item: item[1])
        memory = result.peak_memory.device_bytes / 2**30
        print(
            f"{name}   {result.step_time_s:6.2f} s   {result.mfu:5.1%}   {memory:3.0f} GiB"
            f"   {loss[0]} {loss[1] / result.step_time_ns:.0%}"
        )
    best, worst = feasible[0], feasible[-1]
    gain = worst[1].step_time_ns / best[1].step_time_ns
    print(f"\ntake {' '.join(best[0].split())}: {gain:.1f} times as fast as the slowest that fits")
    if crowded:
        name, result = min(crowded, key=lambda one: missing(trouble_of(one[1])))
        plan = {**SHARED, **{field: result.spec["plan"][field] for field in ("tp", "pp", "virtual_stages")}}
        ways_out = windtunnel.advise(MODEL, CLUSTER, plan)
        told = f"; quickest single way out: {ways_out[0].flags}" if ways_out else ""
        print(f"{' '.join(name.split())} lacks {missing(trouble_of(result)):.1f} GiB{told}")


if __name__ == "__main__":
    main()
