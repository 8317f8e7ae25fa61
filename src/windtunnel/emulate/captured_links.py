"""NICs of a captured step: collectives of one rank that cross nodes at the same time share its NIC.

As `training.nics`: each rank has one NIC, of which a collective takes the share of its time that is bandwidth. Here a
step has 100,000 rendezvous and more, of few kinds: those of equal members with equal shares are one demand.
"""

from __future__ import annotations

import numpy as np

from windtunnel.engine.sharing import Sharing
from windtunnel.programs.lowering.lower import CapturedGraph

PARTS = 1_000_000_000  # of a NIC: shares that differ by less are the same


def captured_sharing(captured: CapturedGraph) -> Sharing | None:
    """The NICs of all programs, one link each; None where nothing uses a NIC."""
    graph = captured.graph
    parts = np.rint(captured.nic_share * PARTS).astype(np.int64)
    ops = np.flatnonzero(parts > 0)
    if not len(ops):
        return None
    group = graph.rendezvous[ops].astype(np.int64)
    # What meets nobody is a group of its own, named beyond all others.
    group = np.where(group < 0, graph.n_ops + ops, group)
    order = np.lexsort((graph.program[ops], group))
    ops, group = ops[order], group[order]
    rows = np.stack([graph.program[ops].astype(np.int64), parts[ops]], axis=1)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    lengths = np.diff(np.append(begins, len(ops)))
    known: dict[bytes, int] = {}
    data, width = np.ascontiguousarray(rows).tobytes(), 16
    demand_of_group = [
        known.setdefault(data[begin * width : (begin + length) * width], len(known))
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
    ]
    demand = np.full(graph.n_ops, -1, np.int32)
    demand[ops] = np.repeat(demand_of_group, lengths)
    kinds = [np.frombuffer(key, np.int64).reshape(-1, 2) for key in known]
    members = np.concatenate(kinds)
    sizes = np.array([len(kind) for kind in kinds], np.int64)
    pointer = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    use = members[:, 1] / PARTS
    return Sharing(
        demand_of=demand,
        link_ptr=pointer,
        link_idx=members[:, 0].astype(np.int32),
        use=use,
        weight=1.0 / np.maximum.reduceat(use, pointer[:-1]),
        capacity=np.ones(graph.n_programs),
    )
