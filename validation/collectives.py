"""Hold the collective model against measured NCCL and DeepEP times; with --fit, find its constants.

    python validation/collectives.py TABLE.csv            what the product says, per source and collective
    python validation/collectives.py TABLE.csv --formula  the same with the measured tables off
    python validation/collectives.py TABLE.csv --sizes    per source, collective and size of message
    python validation/collectives.py TABLE.csv --fit      constants from rows of at most 16 ranks, and bands, as YAML

Columns read: id, source, gpu, n_gpus, gpus_per_node, inter_link, collective, algorithm, message_bytes, time_us,
algbw_gb_s, busbw_gb_s, and where there is one, `cluster`: what it is here, instead of what GPU and network tell. A row
without a time takes it from its bandwidth; one without a size is skipped.
"""

from __future__ import annotations

import argparse
import copy
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from windtunnel.physics.cost.communication import nccl
from windtunnel.physics.cost.communication.collectives import Group, collective, formula, group_of, links_of
from windtunnel.physics.hardware import Cluster, parse_cluster

FIT_RANKS = 16
LARGE = 1 << 20
KINDS = {"alltoall": "all_to_all"}
DISPATCH_BYTES = 128 * 8 * 7168 * (1 + 4 / 128)  # DeepEP low latency: 128 tokens x top-8 x hidden, fp8 + fp32 scales
COMBINE_BYTES = 128 * 8 * 7168 * 2  # bf16


@dataclass(frozen=True)
class Row:
    """One measurement, in the model's terms."""

    id: str
    source: str
    kind: str
    bytes_total: float
    seconds: float
    algorithm: str | None
    group: Group
    cluster: Cluster

    @property
    def large(self) -> bool:
        return self.bytes_total > LARGE


def read(path: str) -> tuple[list[Row], dict[str, int]]:
    """The rows that can be represented, and how many were skipped for which reason."""
    rows: list[Row] = []
    skipped: dict[str, int] = {}
    with open(path, newline="", encoding="utf-8") as stream:
        for record in csv.DictReader(stream):
            row = _row(record)
            if isinstance(row, str):
                skipped[row] = skipped.get(row, 0) + 1
            else:
                rows.append(row)
    return rows, skipped


def _row(record: dict[str, str]) -> Row | str:
    kind = KINDS.get(record["collective"], record["collective"])
    n = int(record["n_gpus"])
    size, time_us = _number(record["message_bytes"]), _number(record["time_us"])
    if kind.startswith("ep_"):
        if time_us is None:
            return "DeepEP normal kernels: only a bottleneck bandwidth, bytes per rank not stated"
        size = DISPATCH_BYTES if kind == "ep_dispatch" else COMBINE_BYTES
    if size is None:
        return "message size not stated"
    factor = {"all_reduce": 2 * (n - 1) / n}.get(kind, (n - 1) / n)
    algbw, busbw = _number(record["algbw_gb_s"]), _number(record["busbw_gb_s"])
    if time_us:
        seconds = time_us * 1e-6
    elif algbw:
        seconds = size / algbw / 1e9
    elif busbw:
        seconds = size * factor / busbw / 1e9
    else:
        return "no time and no bandwidth"
    cluster = parse_cluster(record.get("cluster") or _cluster_name(record, n))
    algorithm = "ring" if record["algorithm"].startswith("Ring") else None  # the others are NCCL's own choice
    return Row(record["id"], record["source"], kind, size, seconds, algorithm, group_of(n, 1, cluster), cluster)


def _cluster_name(record: dict[str, str], n: int) -> str:
    gpu, network = record["gpu"], record["inter_link"]
    per_node = int(record["gpus_per_node"])
    if n > per_node:
        n = -(-n // per_node) * per_node
    if "EFA" in network:
        return f"{'aws-p4de' if gpu.startswith('A100') else 'aws-p5'}:{n}"
    names = {"A100": "a100-80gb-sxm", "H100": "h100-sxm", "H200": "h200-sxm", "H800": "h800-sxm", "B200": "b200-sxm"}
    return f"{names.get(gpu.split('-')[0], gpu.lower())}:{n}"


def _number(text: str) -> float | None:
    return float(text) if text.strip() else None


# ------------------------------------------------------------------------------------------------------- judging


def judge(rows: Sequence[Row], use_tables: bool) -> None:
    """Print error per source, collective and scale; then per collective, fitted rows and judged rows apart."""
    said = [_predict(row, use_tables) for row in rows]
    print(f"{'source':56} {'collective':15}   ranks  rows  mean|e|    bias   worst  in band")
    large = [(row, *price) for row, price in zip(rows, said, strict=True) if row.large]
    for (source, kind), part in _grouped(large, lambda item: (item[0].source, item[0].kind)):
        _line(f"{source[:56]:56} {kind:15}", part)
    print("\nby collective, messages above 1 MiB")
    for (kind, scale), part in _grouped(large, lambda item: (item[0].kind, _scale(item[0]))):
        _line(f"{scale:56} {kind:15}", part)
    print("\nby collective, messages of 64 KiB to 1 MiB")
    small = [(r, *p) for r, p in zip(rows, said, strict=True) if not r.large and r.bytes_total >= LARGE / 16]
    for (kind, scale), part in _grouped(small, lambda item: (item[0].kind, _scale(item[0]))):
        _line(f"{scale:56} {kind:15}", part)


def judge_sizes(rows: Sequence[Row], use_tables: bool) -> None:
    """Print mean error and bias per source, collective, ranks and class of size, then over all."""
    said = [(row, *_predict(row, use_tables)) for row in rows]
    classes = ("< 1 MiB", "1 to 64 MiB", "> 64 MiB")
    print(f"{'source':48} {'collective':14} {'ranks':>5}" + "".join(f" {name:>22}" for name in classes))
    for head, part in [*_grouped(said, lambda item: (item[0].source, item[0].kind, item[0].group.size)), (None, said)]:
        line = f"{head[0][:48]:48} {head[1]:14} {head[2]:5}" if head else f"{'all':69}"
        for number in range(len(classes)):
            here = [error for row, error, _ in part if _size_class(row) == number]
            mean, bias = (np.mean(np.abs(here)), np.mean(here)) if here else (0.0, 0.0)
            line += f" {len(here):5} {mean:7.1%} {bias:+8.1%}" if here else " " * 23
        print(line)


def _size_class(row: Row) -> int:
    return (row.bytes_total >= LARGE) + (row.bytes_total > 64 * LARGE)


def _scale(row: Row) -> str:
    if row.group.size > FIT_RANKS:
        return "judged: more than 16 ranks"
    return "fitted: 1 domain" if row.group.domains == 1 else "fitted: 2 domains, 16 ranks"


def _predict(row: Row, use_tables: bool) -> tuple[float, bool | None]:
    price = collective(row.kind, row.bytes_total, row.group, row.cluster, algorithm=row.algorithm)
    if use_tables:
        return price.seconds / row.seconds - 1, price.p5 <= row.seconds <= price.p95
    return formula(row.kind, row.bytes_total, row.group, row.cluster, row.algorithm) / row.seconds - 1, None


def _line(head: str, part: Sequence[tuple[Row, float, bool | None]]) -> None:
    errors = np.array([error for _, error, _ in part])
    inside = "-" if part[0][2] is None else f"{np.mean([covered for *_, covered in part]):.0%}"
    sizes = sorted({row.group.size for row, *_ in part})
    ranks = f"{sizes[0]}-{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    worst = errors[np.abs(errors).argmax()]
    mean = np.abs(errors).mean()
    print(f"{head} {ranks:>7} {len(part):5} {mean:8.1%} {errors.mean():+7.1%} {worst:+7.0%} {inside:>8}")


def _grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items())


# ------------------------------------------------------------------------------------------------------- fitting

Constants = dict[str, Any]


def fit(rows: Sequence[Row]) -> Constants:
    """New constants from rows of at most 16 ranks; what no such row tells keeps its value."""
    constants = copy.deepcopy(nccl.calibration())
    near = [row for row in rows if row.group.size <= FIT_RANKS and row.bytes_total >= 4096]
    inside = [row for row in near if row.group.domains == 1 and not row.source.startswith(("Ultra", "DeepEP"))]
    for generation in ("ampere", "hopper", "blackwell"):
        of = [row for row in inside if row.cluster.gpu.generation == generation]
        up = constants["scale_up"][generation]
        ring = [(up, "extra_steps"), *_entries(up["protocols"])]
        if up["nvls"]:
            ring += [(up["nvls"], "fill_us"), (up["nvls"], "efficiency")]
        _solve(constants, ring, [row for row in of if row.kind != "all_to_all"])
        direct = [(up["direct"], "extra_steps"), *_entries({k: up["direct"][k] for k in ("ll", "simple")})]
        _solve(constants, direct, [row for row in of if row.kind == "all_to_all"])
    efa = constants["networks"]["efa"]
    p4de = [row for row in near if "2x p4de" in row.source]
    old = efa["ampere"]
    spots = [(old["tree_step_us"], name) for name in ("ll", "ll128")]
    _solve(constants, [*spots, (old, "bulk_us"), (old, "efficiency")], p4de)
    p5 = [row for row in near if "2x p5" in row.source]
    new = efa["default"]
    _solve(constants, [*((new["tree_step_us"], name) for name in ("ll", "ll128", "nvls")), (new, "bulk_nvls_us")], p5)
    for spec in (old, new):  # no ring of small messages was timed: a step costs what a tree's does
        spec["ring_step_us"] = {name: spec["tree_step_us"][name] for name in ("ll", "ll128", "simple")}
    _fit_ring_bulk(constants, new, [row for row in near if row.source.startswith("Ultra") and row.kind != "all_reduce"])
    _carry_over(constants["networks"])
    deep_ep = [row for row in near if row.kind.startswith("ep_")]
    ep, ib = constants["expert_parallel"], constants["networks"]["infiniband"]["default"]
    _solve(constants, [(ep, "base_us"), (ep, "efficiency"), (ib, "expert_parallel_efficiency")], deep_ep)
    constants["networks"]["roce"]["default"]["expert_parallel_efficiency"] = ib["expert_parallel_efficiency"]
    constants["bands"] = _bands(constants, rows)
    return constants


def _entries(protocols: dict[str, dict[str, float]]) -> list[tuple[dict[str, float], str]]:
    return [(spec, name) for spec in protocols.values() for name in ("base_us", "hop_us", "efficiency")]


def _solve(constants: Constants, spots: list[tuple[dict[str, float], str]], rows: Sequence[Row]) -> None:
    """Least squares on log time over the named constants, in place; large messages weigh most."""
    from scipy.optimize import least_squares

    measured = np.log([row.seconds for row in rows])
    weight = np.array([1.0 if row.large else 0.35 for row in rows])
    # a hop of the Simple protocol stays near NCCL's 3.4 us: fitted on 8 ranks it has to hold for hundreds
    bounds = {"efficiency": (0.05, 1.0), "expert_parallel_efficiency": (0.3, 1.0), "extra_steps": (0.01, 1.5)}
    bounds |= {"hop_us": (0.01, 4.0), "base_us": (1.0, 50.0)}
    least, most = np.log([bounds.get(name, (0.1, 500.0)) for _, name in spots]).T

    def residual(logs: np.ndarray) -> np.ndarray:
        for (spec, name), value in zip(spots, np.exp(logs), strict=True):
            spec[name] = float(value)
        return weight * np.clip(np.log(evaluate(constants, rows)) - measured, -1, 1)

    start = np.clip(np.log([spec[name] for spec, name in spots]), least + 1e-6, most - 1e-6)
    found = least_squares(residual, start, bounds=(least, most), loss="soft_l1", f_scale=0.1)
    residual(found.x)
    for spec, name in spots:
        spec[name] = float(f"{spec[name]:.3g}")


def _fit_ring_bulk(constants: Constants, spec: dict[str, float], rows: Sequence[Row]) -> None:
    """What a second node adds to a ring of the same source: the difference cancels what both rows include besides."""
    by_kind = _grouped(rows, lambda row: row.kind)
    added = [[r.seconds for r in sorted(part, key=lambda r: r.group.size)] for _, part in by_kind]
    measured = np.mean([two - one for one, two in added])
    pairs = [sorted(part, key=lambda r: r.group.size) for _, part in by_kind]

    def excess(bulk_us: float) -> float:
        spec["bulk_us"] = bulk_us
        return float(np.mean([np.diff(evaluate(constants, pair)) for pair in pairs]) - measured)

    low, high = 1.0, 2000.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    spec["bulk_us"] = float(f"{low:.3g}")


def _carry_over(networks: Constants) -> None:
    """InfiniBand and RoCE have no row of 16 ranks or fewer in the table that constants are fitted on.

    The software of an NVLS tree's step is taken to be what it is on EFA (the link's latency is separate); rings and
    trees get NCCL's own constants for a network hop, stretched as that step is against NCCL's 20.9 us. A ring's step
    takes what a tree's does with LL, and what it does on EFA with LL128 (`collectives_unseen_2026.csv`).
    """
    step = networks["efa"]["default"]["tree_step_us"]["nvls"]
    for name, latency_us in (("infiniband", 2.7), ("roce", 3.0)):
        stretch = (step + latency_us) / 20.9
        spec = networks[name]["default"]
        for shape, nccl_us in (("ring_step_us", (2.7, 4.0, 14.0)), ("tree_step_us", (5.0, 8.5, 14.0))):
            software = [max(0.0, value * stretch - latency_us) for value in nccl_us]
            rounded = [float(f"{value:.3g}") for value in software]
            spec[shape] = dict(zip(("ll", "ll128", "simple"), rounded, strict=True))
        spec["tree_step_us"]["nvls"] = step
        spec["ring_step_us"] |= {
            "ll": spec["tree_step_us"]["ll"],
            "ll128": networks["efa"]["default"]["ring_step_us"]["ll128"],
        }


def evaluate(constants: Constants, rows: Sequence[Row]) -> np.ndarray:
    """The formula's seconds under these constants."""
    fabrics: dict[str, nccl.Fabric] = {}
    seconds = []
    for row in rows:
        name = row.cluster.name
        fabric = fabrics.get(name) or fabrics.setdefault(name, nccl.fabric_of(constants, links_of(row.cluster)))
        group = row.group
        shape = nccl.Shape(group.size, group.size / group.domains, group.domains, 1)
        if row.algorithm is None:
            seconds.append(nccl.chosen(row.kind, row.bytes_total, shape, fabric).seconds)
        else:
            found = nccl.candidates(row.kind, row.bytes_total, shape, fabric)
            seconds.append(min(cost.seconds for cost in found if cost.algorithm == row.algorithm))
    return np.array(seconds)


def _bands(constants: Constants, rows: Sequence[Row]) -> Constants:
    """p5 and p95 of measured / predicted, by where the prediction comes from and by message size."""
    bands: Constants = copy.deepcopy(constants["bands"])
    measured = np.array([row.seconds for row in rows])
    by_formula = measured / evaluate(constants, rows)
    by_table = measured / np.array([collective(r.kind, r.bytes_total, r.group, r.cluster).seconds for r in rows])
    inside = np.array([row.group.domains == 1 and row.bytes_total >= 4096 for row in rows])
    # a table's own rows say nothing of it; other machines' do
    elsewhere = np.array([not row.source.startswith(("aiconf", "DeepEP")) and row.algorithm is None for row in rows])
    large = np.array([row.large for row in rows])
    crossing = np.array([row.group.domains > 1 for row in rows])
    for name, ratio, here in (
        ("table", by_table, inside & elsewhere),
        ("scale_up", by_formula, inside),
        ("scale_out", by_formula, crossing),
    ):
        for size, which in (("large", large), ("small", ~large)):
            low, high = np.quantile(ratio[here & which], [0.05, 0.95])
            # two runs of one benchmark on one machine differ by this much
            bands[name][size] = [float(f"{min(low, 0.95):.2f}"), float(f"{max(high, 1.05):.2f}")]
    return bands


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("table")
    parser.add_argument("--formula", action="store_true", help="measured tables off")
    parser.add_argument("--sizes", action="store_true", help="per source and size")
    parser.add_argument("--fit", action="store_true", help="print fitted constants as YAML")
    arguments = parser.parse_args()
    rows, skipped = read(arguments.table)
    if arguments.fit:
        yaml.safe_dump(fit(rows), sys.stdout, sort_keys=False, default_flow_style=None, width=110)
        return 0
    (judge_sizes if arguments.sizes else judge)(rows, use_tables=not arguments.formula)
    for reason, count in sorted(skipped.items()):
        print(f"skipped {count}: {reason}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
