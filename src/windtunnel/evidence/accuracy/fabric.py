"""The cluster of a row: its GPU, nodes, and what the row says of the links between nodes."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from windtunnel.evidence.accuracy.table import Row
from windtunnel.evidence.accuracy.wording import UnreadableError

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster, Link


def cluster_of(row: Row) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster, and what had to be assumed about it."""
    from windtunnel.physics.hardware import cluster_with, parse_cluster

    if not row.gpu:
        raise UnreadableError("GPU not stated")
    if row.n_gpus is None:
        raise UnreadableError("number of GPUs not stated")
    name = "aws-p5" if row.gpu == "H100-SXM" and "efa" in row.inter_link.lower() else row.gpu
    per_node = row.gpus_per_node
    cluster: Cluster = parse_cluster(f"{name}:{per_node or 1}")  # whole nodes of whatever size the row has
    changes: dict[str, object] = {"n_gpus": row.n_gpus}
    if per_node is not None and per_node < row.n_gpus and (row.n_gpus % per_node or cluster.scale_up_domain % per_node):
        cluster = parse_cluster(f"{name}:{row.n_gpus}")
        per_node = None  # a rack that the run had part of, or several nodes in one: nodes as usual
    if per_node is not None and per_node != cluster.gpus_per_node:
        changes["gpus_per_node"] = per_node
    link, notes = _scale_out(row, cluster.scale_out, per_node or cluster.gpus_per_node)
    changes["scale_out"] = link
    return cluster_with(cluster, **changes), notes


def _scale_out(row: Row, habit: Link, per_node: int) -> tuple[Link, tuple[str, ...]]:
    """Links between nodes: bandwidth per GPU and protocol as stated; the catalogue's where nothing is."""
    text = row.inter_link
    gbits = _gbits_per_gpu(text, per_node)
    protocol = _protocol(text)
    notes = []
    if gbits is None:
        inside = row.n_gpus is not None and row.n_gpus <= per_node
        if not inside:
            notes.append(f"NIC bandwidth not stated, taken as {habit.bandwidth_bytes_per_s * 8 / 1e9:.0f} Gb/s per GPU")
        bandwidth = habit.bandwidth_bytes_per_s
    else:
        bandwidth = gbits * 1e9 / 8
    link = dataclasses.replace(habit, bandwidth_bytes_per_s=bandwidth, protocol=protocol or habit.protocol)
    return (dataclasses.replace(link, name=text) if link != habit else habit), tuple(notes)


def _gbits_per_gpu(text: str, per_node: int) -> float | None:
    """`400 Gb/s per GPU`, `1600 Gb/s per node`, `8x ConnectX-7 IB NDR 400Gb/s`; None where the text does not say."""
    if "aws efa" in text.lower():
        return 400.0  # p5.48xlarge: 3,200 Gb/s of EFA for 8 GPUs (aws.amazon.com/ec2/instance-types/p5)
    # Several networks in one cell: the one for compute counts.
    compute = [part for part in text.split(";") if "compute:" in part.lower() or "storage&compute:" in part.lower()]
    if compute:
        text = compute[0]
    elif ";" in text or text.lower().startswith("management"):
        return None
    rate = r"(\d+(?:\.\d+)?)\s*gb(?:/s(?:ec)?|ps)"
    if match := re.search(rate + r"\s*per gpu", text, re.IGNORECASE):
        return float(match[1])
    if match := re.search(r"(\d+)x .*?" + rate, text, re.IGNORECASE):
        return int(match[1]) * float(match[2]) / per_node
    if match := re.search(rate + r"\s*per node", text, re.IGNORECASE):
        return float(match[1]) / per_node
    return None


def _protocol(text: str) -> str | None:
    low = text.lower()
    if "efa" in low:
        return "efa"
    if "roce" in low or "rdma" in low:
        return "roce"
    if re.search(r"\bib\b|infiniband", low):
        return "infiniband"
    return "ethernet" if "ethernet" in low and ";" not in low else None
