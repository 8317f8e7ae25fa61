"""Plans over GPUs of several types: searched on the slower one, judged on all.

The step of a plan is that of the type on which it takes longest (`training/mixed.py`), so its step on any one type is a
bound, and a search on the slower type with the longest of all as its objective proves what it finds.
"""

from __future__ import annotations

from windtunnel.errors import UserError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.hardware.mixed import MixedCluster
from windtunnel.physics.model import Model
from windtunnel.studies.planning.oracle import Layout, laid_out, replayed
from windtunnel.studies.planning.search.best_first import Objective


def slower(mixed: MixedCluster) -> Cluster:
    """All GPUs as if they were of the type with the least dense bf16 rate."""
    return min(mixed.clusters_on_slowest_network(), key=lambda cluster: cluster.gpu.peak_flops("bf16"))


def slowest_of(model: Model, mixed: MixedCluster) -> Objective:
    """The step on the type where it takes longest; infinite where the plan cannot be, or does not fit, on one."""
    searched = slower(mixed)
    others = [cluster for cluster in mixed.clusters_on_slowest_network() if cluster != searched]

    def score(layout: Layout, step_ns: int) -> float:
        longest = float(step_ns)
        for other in others:
            try:
                replay = replayed(laid_out(model, other, layout.user_plan))
            except UserError:
                return float("inf")
            if not replay.fits:
                return float("inf")
            longest = max(longest, float(replay.step_ns))
        return longest

    return score
