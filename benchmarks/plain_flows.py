"""Flows that share links, from scratch and in plain Python: what `engine.flows` is held against, and timed against."""

from __future__ import annotations

import math
from collections.abc import Sequence

from windtunnel.physics.engine.compiled.flow_kernels import ROUNDING_NS, ROUNDING_SHARE


def plainly_shared(
    capacity: Sequence[float],
    paths: Sequence[dict[int, float]],
    weight: Sequence[float],
) -> list[float]:
    """`share` by progressive filling, from scratch. `paths`: per flow, link -> use."""
    left = dict(enumerate(capacity))
    rate = [math.inf if not path else 0.0 for path in paths]
    unfilled = {flow for flow, path in enumerate(paths) if path}
    while unfilled:
        growth: dict[int, float] = {}
        for flow in sorted(unfilled):
            for link, use in paths[flow].items():
                growth[link] = growth.get(link, 0.0) + use * weight[flow]
        level, full = min((max(0.0, left[link]) / grows, link) for link, grows in growth.items())
        for flow in sorted(unfilled):
            if full in paths[flow]:
                rate[flow] = level * weight[flow]
                unfilled.discard(flow)
                for link, use in paths[flow].items():
                    left[link] -= use * rate[flow]
    return rate


def plainly_replayed(
    arrival_ns: Sequence[int],
    bytes_total: Sequence[float],
    capacity_bytes_per_s: Sequence[float],
    paths: Sequence[dict[int, float]],
    weight: Sequence[float],
) -> list[int]:
    """`replay_flows` with every rate computed anew at every instant."""
    finish = list(arrival_ns)
    coming = sorted((at, f) for f, at in enumerate(arrival_ns) if bytes_total[f] > 0 and paths[f])
    left: dict[int, float] = {}  # of the flows that are there
    rate: dict[int, float] = {}
    now = 0
    while coming or left:
        until = min([coming[0][0]] if coming else [], default=math.inf)
        until = min([until, *(finish[f] for f in left)])
        for f in left:
            left[f] -= rate[f] * (until - now) / 1e9
        now = int(until)
        for f in [f for f in left if finish[f] <= now]:
            del left[f]
        while coming and coming[0][0] <= now:
            f = coming.pop(0)[1]
            left[f] = float(bytes_total[f])
        here = sorted(left)
        rates = plainly_shared(capacity_bytes_per_s, [paths[f] for f in here], [weight[f] for f in here])
        rate = dict(zip(here, rates, strict=True))
        for f in here:
            wait = max(0.0, left[f]) * 1e9 / rate[f]
            finish[f] = now + math.ceil(max(0.0, wait - ROUNDING_NS - ROUNDING_SHARE * wait))
    return finish
