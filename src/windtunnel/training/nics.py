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

from windtunnel.engine.sharing import Sharing
from windtunnel.graph import Graph

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
    """
    parts = np.rint(share * PARTS).astype(np.int64)
    ops = np.flatnonzero(parts > 0)
    if not len(ops):
        return None
    program = graph.program.astype(np.int64)
    group = graph.rendezvous[ops].astype(np.int64)
    alone = group < 0
    demand = np.full(graph.n_ops, -1, np.int32)
    rows = np.stack([program[ops], parts[ops]], axis=1)
    kinds, of = np.unique(rows[alone], axis=0, return_inverse=True)
    demand[ops[alone]] = of.ravel()
    links, uses, lengths = [kinds[:, 0]], [kinds[:, 1]], [np.ones(len(kinds), np.int64)]
    order = np.argsort(group, kind="stable")
    order = order[~alone[order]]
    cuts = np.flatnonzero(np.diff(group[order], prepend=-1))
    known: dict[bytes, int] = {}
    for members in np.split(order, cuts[1:]) if len(order) else ():
        own, place = np.unique(program[ops[members]], return_inverse=True)
        used = np.zeros(len(own), np.int64)
        np.maximum.at(used, place.ravel(), parts[ops[members]])
        key = own.tobytes() + used.tobytes()
        if key not in known:
            known[key] = len(kinds) + len(known)
            links.append(own)
            uses.append(used)
            lengths.append(np.array([len(own)]))
        demand[ops[members]] = known[key]
    use = np.concatenate(uses) / PARTS
    pointer = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    return Sharing(
        demand_of=demand,
        link_ptr=pointer,
        link_idx=np.concatenate(links).astype(np.int32),
        use=use,
        weight=1.0 / np.maximum.reduceat(use, pointer[:-1]),
        capacity=np.ones(graph.n_programs),
    )
