"""Plans whose pipeline stages lie on several types of GPU: bounds, memory and steps of a search over them.

A layout of such a search is that of the first type, as if all GPUs were of it; what a rank of another type takes or
needs is asked of the same layout on that type.

    passes      of each stage at least what they are on its type
    sends       at least what they are on the fastest network; nothing is said of what is outside of passes
    memory      of each rank on its type: more than the first type's capacity by as much as the worst rank lacks
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.hardware.mixed import MixedCluster
from windtunnel.studies.planning.least.beside_passes import Ends, kept_in_flight, least_memory, ranks_of
from windtunnel.studies.planning.oracle import Layout, ranks_bytes, staged_step_ns, stages_of, straggling
from windtunnel.studies.planning.search.bounds import Bounds, Floats, Options, Recomputation, spans
from windtunnel.studies.training.schedules import TRAITS


class ByStage(Bounds):
    """Bounds of such plans, and what a search measures of them."""

    def __init__(self, mixed: MixedCluster) -> None:
        self.mixed, self.clusters = mixed, mixed.clusters_on_own_network()
        super().__init__(straggling(self.clusters[0]))
        self.of_type = tuple(Bounds(0.0) for _ in self.clusters)

    def layouts(self, layout: Layout) -> tuple[Layout, ...]:
        """The same on each type."""
        return (layout, *(replace(layout, cluster=cluster) for cluster in self.clusters[1:]))

    def memory(self, layout: Layout) -> int:
        """Bytes to hold against the first type's capacity, as its allocator would have them."""
        needed = [ranks_bytes(own_layout) for own_layout in self.layouts(layout)]
        types = stages_of(layout, self.mixed)
        return self._as_of_first([(needed[number][rank], number) for rank, number in enumerate(types)])

    def step(self, layout: Layout) -> int:
        """The replayed step, in ns."""
        return staged_step_ns(self.layouts(layout), stages_of(layout, self.mixed))

    def _as_of_first(self, needed: list[tuple[int, int]]) -> int:
        capacity = [cluster.gpu.usable_memory_bytes for cluster in self.clusters]
        return capacity[0] + max(most - capacity[number] for most, number in needed)

    def _types(self, layout: Layout) -> NDArray[np.int64]:
        """Of each virtual stage."""
        types, count = np.array(stages_of(layout, self.mixed)), len(layout.virtual_layers)
        rank = np.arange(count) % layout.plan.pp
        if TRAITS[layout.schedule].turns:
            rank = np.minimum(np.arange(count), count - 1 - np.arange(count))
        return np.asarray(types[rank], np.int64)

    def _mixed(self, layout: Layout, parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        types = self._types(layout)
        forward, backward = (np.choose(types, [part[which] for part in parts]) for which in (0, 1))
        return forward, backward

    def work_ns(self, layout: Layout) -> float:
        """Time of the kernels alone."""
        pairs = zip(self.of_type, self.layouts(layout), strict=True)
        parts = [own.works(own_layout).passes(*spans(layout.virtual_layers)) for own, own_layout in pairs]
        return self._busy(layout, *self._mixed(layout, parts))

    def even_ns(self, layout: Layout) -> float:
        """Nothing: types take unlike shares."""
        return 0.0

    def passes(self, layout: Layout, recomputed: Recomputation | None = None) -> tuple[Floats, Floats]:
        """Shortest passes of every virtual stage, each on its type."""
        pairs = zip(self.of_type, self.layouts(layout), strict=True)
        return self._mixed(layout, [own.passes(own_layout, recomputed) for own, own_layout in pairs])

    def recomputed_ns(self, layout: Layout, options: Options) -> float:
        """Of any plan of a structure with a saving: nothing recomputed."""
        return self.structure_ns(layout, options)

    def ends(self, layout: Layout) -> Ends:
        """Sends on the fastest network; what is outside of passes may be anything."""
        pairs = zip(self.of_type, self.layouts(layout), strict=True)
        return Ends(min(own.ends(own_layout).hop for own, own_layout in pairs), 0.0)

    def memory_bytes(self, layout: Layout) -> int:
        """At least, to hold against the first type's capacity."""
        return self._least(layout, 1.0)

    def state_bytes(self, layout: Layout) -> int:
        """The same without what is kept for backward passes."""
        return self._least(layout, 0.0)

    def even_state_bytes(self, layout: Layout) -> int:
        """Nothing: types take unlike shares."""
        return 0

    def _least(self, layout: Layout, kept_share: float) -> int:
        types = self._types(layout)
        needed = []
        for number, (own, own_layout) in enumerate(zip(self.of_type, self.layouts(layout), strict=True)):
            here = (types == number).astype(np.float64)
            dense, expert, per_micro_batch = (part * here for part in own.kept_per_stage(own_layout))
            activations = kept_in_flight(own_layout, per_micro_batch * kept_share).tolist()
            needed.append((least_memory(own_layout, ranks_of(own_layout, dense, expert), activations), number))
        return self._as_of_first(needed)
