"""Names of single links, by which tests say what lies between two GPUs."""

from __future__ import annotations

import numpy as np

from windtunnel.physics.hardware.topology import DOWN, PAIR, UP, Topology

LINK_KINDS = ("nvlink-out", "nvlink-in", "nic-out", "nic-in", "pair", "up", "down")  # by number


def link_name(topology: Topology, link: int) -> str:
    """What a link is called: "nic-out 37", "pair 3-5", "up 12.0" (leaf.uplink)."""
    kind = int(np.searchsorted(topology.first, link, side="right")) - 1
    assert 0 <= kind < len(LINK_KINDS), "no such link"
    i = link - topology.first[kind]
    if kind == PAIR:
        domain = topology.cluster.scale_up_domain
        return f"pair {i // domain}-{i // domain // domain * domain + i % domain}"
    if kind in (UP, DOWN):
        return f"{LINK_KINDS[kind]} {i // topology.uplinks}.{i % topology.uplinks}"
    return f"{LINK_KINDS[kind]} {i}"


def link_of(topology: Topology, name: str) -> int:
    """The link of that name."""
    return next(link for link in range(topology.n_links) if link_name(topology, link) == name)
