"""Every op of a step as a row: which layer, which pass, how often, how long alone, how much work, how sure.

A row is one kernel or transfer of one layer in one pass of one rank class, all its launches together:

    seconds = sum over launches of the price alone        count = how often the pass runs on one GPU in a step

so that sum(count x seconds) over the rows of passes and optimizer is the busy time that provenance and band rest on.
What happens once a step (gradient reduction, pipeline sends, optimizer) has pass "step" and no layer. Prices are those
of an undisturbed, evenly loaded step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import InputFileError, SpecError
from windtunnel.physics.cost.price import Price
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.model.operations import CAST_BYTES, Operation
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.lowering.pass_lowering import build_segment
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.plan import Plan, read_plan
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind

COLUMNS = {
    "rank_class": "int",
    "ranks": "int",
    "pass": "str",  # forward, backward, backward-input, backward-weight, step
    "layer": "int",  # of the model, from 0; none for embedding, head and what belongs to no layer
    "block": "str",  # layer, embedding, head; "" where it belongs to none
    "op": "str",
    "kind": "str",  # gemm, attention, memory-bound, tp (scale-up), ...
    "count": "int",  # passes a step on one GPU
    "launches": "int",  # kernels or transfers of this name in one pass
    "seconds": "float",  # of all launches of one pass, each alone on its GPU
    "p5_s": "float",
    "p95_s": "float",
    "source": "str",  # measured, interpolated, fitted, roofline; none for what is not priced as a kernel
    "flops": "float",  # of one pass
    "bytes": "float",  # of one pass: sent, or read and written; none where it is not stated (attention)
}


def op_table(
    model: Model | str | Path | Mapping[str, object],
    cluster: Cluster | str | Path | Mapping[str, object],
    plan: Plan | str | Path | Mapping[str, object],
) -> object:
    """Every op of the undisturbed step that `predict` replays, as a `pyarrow.Table` with the columns `COLUMNS`.

    Arguments are those of `predict`. Raises UserError on a spec that cannot be.
    """
    return _table(op_rows(model, cluster, plan))


def write_ops(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write rows of `op_rows` as Parquet. Raises SpecError for another suffix, InputFileError where it cannot be."""
    import pyarrow.parquet as pq

    if path.suffix != ".parquet":
        raise SpecError("--rows", str(path), "name a .parquet file, or say json together with --json")
    try:
        pq.write_table(_table(rows), path, compression="zstd")
    except OSError as error:
        raise InputFileError(path, error.strerror or "cannot be written", "give a path that can be written") from None


def _table(rows: Sequence[Mapping[str, object]]) -> object:
    import pyarrow as pa

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    return pa.Table.from_pylist(list(rows), schema)


def op_rows(
    model: Model | str | Path | Mapping[str, object],
    cluster: Cluster | str | Path | Mapping[str, object],
    plan: Plan | str | Path | Mapping[str, object],
) -> list[dict[str, object]]:
    """`op_table` as rows."""
    model = model if isinstance(model, Model) else load_model(model)
    cluster = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    layout = resolve(model, cluster, read_plan(plan))
    pricer, pieces = Pricer(layout), pieces_of(layout)
    chosen = layout.schedule_table()
    step = lower(layout, pieces, chosen, pricer)
    return [*_pass_rows(layout, pricer, pieces, step), *_step_rows(layout, step)]


def _pass_rows(
    layout: Layout, pricer: Pricer, pieces: tuple[Piece, ...], step: LoweredStep
) -> Iterator[dict[str, object]]:
    plan = step.schedule
    ranks = layout.cluster.n_gpus // plan.stages
    rows: dict[int, list[tuple[int, dict[str, object]]]] = {}
    actions = np.stack([plan.rank, plan.stage_of, plan.kind]).astype(np.int64)
    distinct, counts = np.unique(actions, axis=1, return_counts=True)
    for (rank, stage, kind), count in zip(distinct.T.tolist(), counts.tolist(), strict=True):
        blocks, number = pieces[stage].blocks, int(step.segment_of[stage, kind])
        if number not in rows:
            rows[number] = _of_pass(layout, pricer, blocks, Kind(kind))
        layers = iter(layout.virtual_layers[stage])
        of_block = [None if block.is_end or block.tower else next(layers) for block in blocks]
        for place, row in rows[number]:
            block = blocks[place]
            end = "embedding" if block.operations[-1].name == "embedding" else "head"
            name = "tower" if block.tower else end if block.is_end else "layer"
            where = {"rank_class": rank, "ranks": ranks, "layer": of_block[place], "block": name}
            yield where | {"pass": Kind(kind).words, "count": count} | row


def _of_pass(
    layout: Layout, pricer: Pricer, blocks: Sequence[Block], kind: Kind
) -> list[tuple[int, dict[str, object]]]:
    """(block, row) of one pass; launches of one name and source together."""
    noted: list[tuple[int, int, Price]] = []
    graph = build_segment(pricer, blocks, kind, noted).graph
    rows: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    stated = [_bytes_of(layout, block.operations) for block in blocks]
    for op, block, price in noted:
        label = graph.labels[graph.label[op]]
        category = graph.categories[graph.category[op]].removeprefix("exposed ")
        key = (block, label, category, price.source.name.lower())
        row = rows.setdefault(key, {"op": label, "kind": category, "source": key[3], "launches": 0, "bytes": None})
        for name, value in (
            ("launches", 1),
            ("seconds", price.seconds),
            ("p5_s", price.p5),
            ("p95_s", price.p95),
            ("flops", float(graph.flops[op])),
        ):
            row[name] = row.get(name, 0) + value
        if graph.bytes[op]:
            row["bytes"] = (row["bytes"] or 0.0) + float(graph.bytes[op])
        elif row["bytes"] is None:
            row["bytes"] = stated[block].get(label.removeprefix("recompute "))
    return [(key[0], row) for key, row in rows.items()]


def _bytes_of(layout: Layout, operations: Sequence[Operation]) -> dict[str, float]:
    """Label of a kernel -> bytes that it reads and writes: stated ones of memory ops, operands and result of GEMMs."""
    wide = 4.0 if layout.plan.precision == "fp32" else 2.0
    totals: dict[str, float] = {}
    for op in operations:
        if op.kind == "memory":
            sizes = {op.name: op.forward_bytes, f"{op.name} backward": op.backward_bytes}
        elif op.kind in ("gemm", "grouped_gemm", "gemm_batch"):
            batch, (m, n, k) = (op.shape[0] if len(op.shape) == 4 else 1.0), op.shape[-3:]
            read = (1.0 if layout.plan.precision in CAST_BYTES else wide) if op.low_precision else wide
            names = (op.name, f"{op.name} backward input", f"{op.name} backward weight")
            inner = ((m * k + k * n, m * n), (m * n + k * n, m * k), (m * k + m * n, n * k))
            sizes = {
                name: batch * (read * operands + wide * results)
                for name, (operands, results) in zip(names, inner, strict=True)
            }
        else:
            continue
        for name, size in sizes.items():
            totals[name] = totals.get(name, 0.0) + size
    return totals


def _step_rows(layout: Layout, step: LoweredStep) -> Iterator[dict[str, object]]:
    graph = step.graph
    inside = np.array([name.startswith("segment ") for name in graph.categories])
    program = graph.program
    rows: dict[tuple[int, str, str], dict[str, float]] = {}
    for op in np.flatnonzero(~inside[graph.category] & (step.duration_ns > 0)).tolist():
        rank, label = int(program[op]), graph.labels[graph.label[op]]
        category = graph.categories[graph.category[op]].removeprefix("exposed ")
        row = rows.setdefault((rank, label, category), {"launches": 0, "seconds": 0.0, "flops": 0.0, "bytes": 0.0})
        row["launches"] += 1
        row["seconds"] += float(step.duration_ns[op]) / 1e9
        row["flops"] += float(graph.flops[op])
        row["bytes"] += float(graph.bytes[op])
    ranks = layout.cluster.n_gpus // step.schedule.stages
    for (rank, label, category), row in rows.items():
        where = {"rank_class": rank, "ranks": ranks, "pass": "step", "layer": None, "block": "", "count": 1}
        price = step.optimizer[rank] if label == "optimizer" else None
        band = (None, None, None) if price is None else (price.p5, price.p95, price.source.name.lower())
        sure = dict(zip(("p5_s", "p95_s", "source"), band, strict=True))
        yield where | {"op": label, "kind": category} | sure | row | {"bytes": row["bytes"] or None}
