"""Disturbances: what makes some GPUs, links or moments unlike the others.

    gpu=1037:1.15          GPU 1037 computes 1.15 times as long
    link=node12.nic3:0.5   NIC 3 of node 12 has half its bandwidth
    random=1%:1.2          1 % of the GPUs, drawn with the seed, compute 1.2 times as long

A tensor-parallel group waits for its slowest member at every collective, so one slow GPU slows its whole *cell*: the
ranks that share a pipeline stage and a replica. Experts spread over replicas, and sharded parameters, tie more cells
together: those wait for each other layer by layer.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.hardware import Cluster
from windtunnel.training.layout import Layout

FORMS = "use gpu=NUMBER:FACTOR, link=nodeN.nicM:SHARE or random=SHARE%:FACTOR"


@dataclass(frozen=True, slots=True)
class Slow:
    """One disturbance. `factor` >= 1 multiplies time: of compute, or of what passes the links of these GPUs."""

    text: str  # as it was given
    gpus: tuple[int, ...]
    factor: float
    link: bool


@dataclass(frozen=True, slots=True)
class Disturbances:
    """All disturbances of one prediction."""

    slow: tuple[Slow, ...] = ()
    jitter: float = 0.0  # relative standard deviation of one pass
    samples: int = 0
    seed: int = 0

    def words(self) -> str:
        """The flags that ask for these disturbances, with a blank ahead; empty where there are none."""
        flags = [f" --slow {shlex.quote(one.text)}" for one in self.slow]
        if self.jitter:
            flags.append(f" --jitter {self.jitter:g} --samples {self.samples}")
        if self.seed and flags:
            flags.append(f" --seed {self.seed}")
        return "".join(flags)

    def without(self, number: int) -> Disturbances:
        """The same less one."""
        return Disturbances(self.slow[:number] + self.slow[number + 1 :], 0.0, 0, self.seed)

    def only(self, number: int) -> Disturbances:
        """That one alone."""
        return Disturbances((self.slow[number],), 0.0, 0, self.seed)


def parse_disturbances(
    slow: Sequence[str], cluster: Cluster, *, jitter: str | float = 0.0, samples: int = 0, seed: int = 0
) -> Disturbances:
    """Disturbances from the words of the command line. Raises SpecError on what names no GPU or no sensible factor."""
    parsed = tuple(_slow(text, cluster, seed) for text in slow)
    noise = _share("jitter", jitter)
    if not 0 <= samples <= 1_000_000:
        raise SpecError("samples", samples, "give a number from 0 to 1,000,000")
    if not 0 <= seed < 2**63:
        raise SpecError("seed", seed, "give a number from 0 to 2^63 - 1")
    if noise > 1.0:
        raise SpecError("jitter", jitter, "give a relative standard deviation of at most 100 %")
    return Disturbances(parsed, noise, samples or (200 if noise else 0), seed)


def _slow(text: str, cluster: Cluster, seed: int) -> Slow:
    found = re.fullmatch(r"(gpu|link|random)=([^:]+):([0-9.]+)", text.strip())
    if not found:
        raise SpecError("slow", text, FORMS)
    kind, where, amount = found.groups()
    try:
        value = float(amount)
    except ValueError:
        raise SpecError("slow", text, FORMS) from None
    if kind == "link":
        if not 0.001 <= value <= 1.0:
            raise SpecError("slow", text, "a link keeps a share of its bandwidth from 0.001 to 1")
        return Slow(text, (_nic(text, where, cluster),), 1.0 / value, link=True)
    if not 1.0 <= value <= 1000.0:
        raise SpecError("slow", text, "a slow GPU's time is multiplied by a factor from 1 to 1000")
    if kind == "random":
        share = _share("slow", where)
        if not 0.0 < share <= 1.0:
            raise SpecError("slow", text, "give a share of the GPUs above 0 and up to 100 %")
        count = max(1, round(share * cluster.n_gpus))
        drawn = np.random.default_rng((seed, 0x510)).choice(cluster.n_gpus, count, replace=False)
        return Slow(text, tuple(int(gpu) for gpu in np.sort(drawn)), value, link=False)
    if not (where.isascii() and where.isdigit() and len(where) < 12) or int(where) >= cluster.n_gpus:
        raise SpecError("slow", text, f"GPUs are numbered 0 to {cluster.n_gpus - 1}")
    return Slow(text, (int(where),), value, link=False)


def _nic(text: str, where: str, cluster: Cluster) -> int:
    found = re.fullmatch(r"node(\d{1,9})\.nic(\d{1,9})", where)
    nodes, nics = cluster.n_nodes, min(cluster.gpus_per_node, cluster.n_gpus)
    if not found or int(found[1]) >= nodes or int(found[2]) >= nics:
        raise SpecError("slow", text, f"nodes are numbered 0 to {nodes - 1} and each one's NICs 0 to {nics - 1}")
    return int(found[1]) * cluster.gpus_per_node + int(found[2])


def _share(field: str, value: str | float) -> float:
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise SpecError(field, value, "give a number such as 0.02 or 2%") from None
    if not 0.0 <= number < 1e6:
        raise SpecError(field, value, "give a number such as 0.02 or 2%")
    return number


def cell_factors(layout: Layout, slow: Sequence[Slow]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Factors on compute and on links of each cell, float64[replicas, stages]; 1 where nothing is slow."""
    stages, replicas = layout.plan.pp, layout.dp
    cell = layout.plan.tp * layout.plan.cp
    compute, links = np.ones((replicas, stages)), np.ones((replicas, stages))
    for one in slow:
        gpus = np.array(one.gpus, np.int64)
        stage, within = np.divmod(gpus, cell * replicas)
        # Two slow GPUs of one cell do not add up: the cell waits for the slower.
        np.maximum.at(links if one.link else compute, (within // cell, stage), one.factor)
    block = tied_replicas(layout)
    if block > 1:
        for factors in (compute, links):
            grouped = factors.reshape(replicas // block, block, stages)
            grouped[:] = grouped.max(axis=1, keepdims=True)
    return compute, links


def tied_replicas(layout: Layout) -> int:
    """How many neighbouring replicas wait for each other inside a pass: through experts or sharded parameters."""
    plan = layout.plan
    tied = 1
    if plan.ep > 1:
        tied = max(tied, plan.ep * layout.etp // (plan.tp * plan.cp))
    if (plan.zero_stage or 0) >= 2:
        tied = max(tied, layout.shard_group // plan.cp)
    return tied if tied > 0 and layout.dp % tied == 0 else layout.dp
