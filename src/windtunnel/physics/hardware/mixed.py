"""Clusters of several types of GPU: so many nodes of each, joined by the network between nodes.

    h100-sxm:32+a100-80gb:32            or in YAML      groups: [h100-sxm:32, {gpu: a100-80gb, gpus: 32, nic: 200Gb/s}]

A job over all of them meets in collectives between nodes, which are no faster than the slowest NIC among them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.files.document import read_form
from windtunnel.physics.hardware.catalogue import SPEC_FILE, parse_cluster
from windtunnel.physics.hardware.cluster import Cluster, cluster_with

JOINED = "+"


@dataclass(frozen=True, slots=True)
class MixedCluster:
    """`parts`: the GPUs of each type, as a cluster of their own."""

    parts: tuple[Cluster, ...]

    @property
    def n_gpus(self) -> int:
        """GPUs of all types."""
        return sum(part.n_gpus for part in self.parts)

    @property
    def name(self) -> str:
        """The parts' names and sizes: `h100-sxm:32+a100-80gb:32`."""
        return JOINED.join(f"{part.gpu.name}:{part.n_gpus}" for part in self.parts)

    def clusters_on_own_network(self) -> tuple[Cluster, ...]:
        """For each type, all GPUs as if they were of it, on its own network: for jobs whose groups lie on one type."""
        return tuple(cluster_with(part, n_gpus=self.n_gpus) for part in self.parts)

    def clusters_on_slowest_network(self) -> tuple[Cluster, ...]:
        """For each type, all GPUs as if they were of it, on the slowest network of all: what its ranks live through."""
        slowest = min((part.scale_out for part in self.parts), key=lambda link: link.bandwidth_bytes_per_s)
        oversubscription = max(part.oversubscription for part in self.parts)
        return tuple(
            cluster_with(part, n_gpus=self.n_gpus, scale_out=slowest, oversubscription=oversubscription)
            for part in self.parts
        )


def parse_mixed(spec: object) -> MixedCluster | None:
    """The cluster of several types that `spec` names or describes; None for one of a single type.

    `spec`: text with `+`, a YAML file with `groups`, or such a mapping. Raises UserError as `parse_cluster` does.
    """
    if isinstance(spec, Mapping):
        return _of_mapping(spec)
    if not isinstance(spec, (str, os.PathLike)):
        return None
    text = os.fspath(spec)
    if Path(text).suffix.lower() in (".yaml", ".yml"):
        return _of_mapping(read_form(text, SPEC_FILE))
    return _of(text.split(JOINED)) if JOINED in text and os.sep not in text else None


def _of_mapping(entry: Mapping[str, object]) -> MixedCluster | None:
    if "groups" not in entry:
        return None
    for name in entry:
        if name != "groups":
            raise UnknownNameError("field of a cluster of several types", str(name), ("groups",))
    return _of(entry["groups"])


def _of(groups: object) -> MixedCluster:
    if not isinstance(groups, list | tuple) or len(groups) < 2:
        raise SpecError("groups", groups, "give two types or more, each as name:count or as a cluster of its own")
    return MixedCluster(tuple(parse_cluster(group.strip() if isinstance(group, str) else group) for group in groups))
