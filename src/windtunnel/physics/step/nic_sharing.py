"""Who shares a NIC: what runs at the same time on one GPU's NIC gets max-min fair parts of it.

Each rank class has one NIC, full duplex, of which a collective takes its share both ways: what of its time is bandwidth
and not latency. A pass takes what its transfers take on average. Two collectives that fill a NIC therefore take twice
as long while both run; a pass that needs a third of it keeps that. Sends between pipeline stages are left out: how long
they take (`p2p` in the calibration) was fitted on runs in which they met gradients on the NIC, so that is in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.sharing import Sharing
from windtunnel.physics.graph import Graph

PARTS = 1_000_000_000  # of a NIC: shares that differ by less are the same


def pass_sharing(graph: Graph, shares: Mapping[int, float]) -> Sharing | None:
    """The NIC inside one pass; `shares`: op -> share. None where its transfers run on one stream, so never together."""
    used = {op: share for op, share in shares.items() if share > 0.0}
    if len({int(graph.stream[op]) for op in used}) < 2:
        return None
    kinds = {share: number for number, share in enumerate(dict.fromkeys(used.values()))}
    demand = np.full(graph.n_ops, -1, np.int32)
    for op, share in used.items():
        demand[op] = kinds[share]
    use = np.array(list(kinds), np.float64)
    return Sharing(
        demand_of=demand,
        link_ptr=np.arange(len(use) + 1, dtype=np.int64),
        link_idx=np.zeros(len(use), np.int32),
        use=use,
        weight=1.0 / use,
        capacity=np.ones(1),
    )


def step_sharing(graph: Graph, share: NDArray[np.float64]) -> Sharing | None:
    """The NICs of all programs of a step, one link each. None where nothing uses a NIC.

    `share`: float64[n] of each op. A rendezvous is one flow over the NICs of all its members, of each its own share.
    There may be 100,000 of them and more, of few kinds: those of equal programs with equal shares are one demand.
    """
    parts = np.rint(share * PARTS).astype(np.int64)
    ops = np.flatnonzero(parts > 0)
    if not len(ops):
        return None
    group = graph.rendezvous[ops].astype(np.int64)
    program = graph.program[ops].astype(np.int64)
    alone = group < 0
    # What meets nobody is a group of its own, named beyond all others.
    group = np.where(alone, graph.n_ops + ops, group)
    if not alone.all():
        order = np.lexsort((program, group))
        ops, group, program = ops[order], group[order], program[order]
    # One row for each program of a group, with the largest share among its members.
    first = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(program, prepend=-1) != 0))
    rows = np.stack([program[first], np.maximum.reduceat(parts[ops], first)], axis=1)
    begins = np.flatnonzero(np.diff(group[first], prepend=-1))
    lengths = np.diff(np.append(begins, len(first)))
    # Equal groups have equal codes: one row's is its two numbers, several rows' is below all of those.
    code = rows[begins, 0] * (int(rows[:, 1].max()) + 1) + rows[begins, 1]
    several: dict[bytes, int] = {}
    for place in np.flatnonzero(lengths > 1).tolist():
        own = rows[begins[place] : begins[place] + lengths[place]].tobytes()
        code[place] = -1 - several.setdefault(own, len(several))
    _, appears, which = np.unique(code, return_index=True, return_inverse=True)
    in_order = np.argsort(appears)
    kind_of_group = np.argsort(in_order)[which]
    members = np.diff(np.append(np.flatnonzero(np.diff(group, prepend=-1)), len(ops)))
    demand = np.full(graph.n_ops, -1, np.int32)
    demand[ops] = np.repeat(kind_of_group, members)
    kinds = [rows[begins[place] : begins[place] + lengths[place]] for place in appears[in_order].tolist()]
    links = np.concatenate(kinds)
    pointer = np.concatenate([[0], np.cumsum([len(kind) for kind in kinds])]).astype(np.int64)
    use = links[:, 1] / PARTS
    return Sharing(
        demand_of=demand,
        link_ptr=pointer,
        link_idx=links[:, 0].astype(np.int32),
        use=use,
        weight=1.0 / np.maximum.reduceat(use, pointer[:-1]),
        capacity=np.ones(graph.n_programs),
    )
