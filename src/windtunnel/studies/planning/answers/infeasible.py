"""Where nothing fits: the plans nearest to fitting, and the least changes with which one does, each predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windtunnel.errors import UserError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.model import Model
from windtunnel.studies.planning.answers.plans import Miss, Planned, Remedy
from windtunnel.studies.planning.oracle import Layout, host_holds, laid_out, memory_bytes, straggling
from windtunnel.studies.planning.search.best_first import Search
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.search.misfits import Missed
from windtunnel.studies.planning.space.plan_space import Space

NEAREST_TOLD = 3
NEAREST_TRIED = 12
WITHIN_S = 5.0
DOUBLINGS = 6


def nearest(search: Search, missed: Sequence[Missed]) -> tuple[Miss, ...]:
    """The plans that miss by least, measured exactly: of those that were only bounded the nearest are measured now."""
    exact = []
    for miss in missed:
        needed = miss.needed_bytes if miss.exact else search.memory(miss.layout)
        exact.append((needed, miss.layout))
    exact.sort(key=lambda pair: pair[0])
    return tuple(
        Miss(
            layout.user_plan.stated(),
            needed,
            layout.cluster.gpu.usable_memory_bytes,
            at_least=False,
        )
        for needed, layout in exact[:NEAREST_TOLD]
    )


def remedies(
    model: Model,
    cluster: Cluster,
    constraints: Mapping[str, object],
    search: Search,
    missed: Sequence[Missed],
    planned: Callable[[Cluster, Layout], Planned],
) -> tuple[Remedy, ...]:
    """The optimizer on the host, activations on the host, shorter sequences, more GPUs: the least of each that fits."""
    changes = []
    away = _offloaded(model, cluster, search, missed)
    if away is not None:
        changes.append(Remedy(away[0], planned(cluster, away[1])))
    shorter = None if search.state_alone else _shorter(model, cluster, constraints)
    if shorter is not None:
        changes.append(Remedy(shorter[0], planned(cluster, shorter[1])))
    for doubling in range(1, DOUBLINGS + 1):
        more = cluster_with(cluster, n_gpus=cluster.n_gpus * 2**doubling)
        layout = _any_that_fits(model, more, constraints)
        if layout is not None:
            changes.append(Remedy(f"{more.n_gpus:,} GPUs instead of {cluster.n_gpus:,}", planned(more, layout)))
            break
    return tuple(changes)


def _offloaded(model: Model, cluster: Cluster, search: Search, missed: Sequence[Missed]) -> tuple[str, Layout] | None:
    """Of the nearest plans that fit so, that with the least bound of its step."""
    usable = cluster.gpu.usable_memory_bytes
    for update in ({"offload_optimizer": 0.5}, {"offload_optimizer": 1.0}):
        fitting = []
        for miss in missed:
            try:
                layout = laid_out(model, cluster, miss.layout.user_plan.with_fields(update))
            except UserError:
                continue
            if memory_bytes(layout, usable) <= usable and host_holds(layout):
                fitting.append(layout)
        if fitting:
            return f"offload_optimizer {update['offload_optimizer']:g}", min(fitting, key=search.bounds.step_ns)
    return None


def _shorter(model: Model, cluster: Cluster, entry: Mapping[str, Any]) -> tuple[str, Layout] | None:
    length = int(entry["seq_len"])
    while length > 512:
        length //= 2
        layout = _any_that_fits(model, cluster, {**entry, "seq_len": length})
        if layout is not None:
            return f"seq_len {length} instead of {entry['seq_len']}", layout
    return None


def _any_that_fits(model: Model, cluster: Cluster, constraints: Mapping[str, object]) -> Layout | None:
    """The best plan that a short search finds, whose length is counted in nodes."""
    try:
        search = Search(Space(model, cluster, constraints), Bounds(straggling(cluster)), counts_nodes=True)
        answer = search.run(1, WITHIN_S)
    except UserError:
        return None
    return answer.plans[0].layout if answer.plans else None
