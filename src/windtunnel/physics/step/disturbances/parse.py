"""The words that ask for disturbances: `gpu=1037:1.15`, `link=node12.nic3:0.5`, ... docs/disturb.md has them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.document import read_document
from windtunnel.physics.hardware import Cluster
from windtunnel.units import parse_share, parse_time

FORMS = {
    "gpu": "gpu=NUMBER:FACTOR",
    "random": "random=SHARE%:FACTOR",
    "stage": "stage=NUMBER:FACTOR",
    "thermal": "thermal=GPU:FACTOR:SECONDS",
    "link": "link=nodeN.nicM:SHARE",
    "lost": "lost=nodeN.nicM",
    "uplink": "uplink=leafL:SHARE or uplink=leafL.U:SHARE",
    "ecmp": "ecmp=SEED",
    "pause": "pause=PROBABILITY%:TIME",
    "noise": "noise=SIGMA%",
}
ENTRIES_MOST = 10_000  # of one file
LONGEST_S = 1e6  # a time constant or a pause: eleven days


@dataclass(frozen=True, slots=True)
class Slow:
    """One disturbance. `factor` >= 1 multiplies time: of compute, or of what passes the links of `gpus`."""

    text: str  # as it was given
    gpus: tuple[int, ...]  # whom it befalls; empty: nobody in particular, or known only with the layout
    factor: float
    link: bool
    kind: str = "gpu"  # one of FORMS, "jitter", or "source": of another module
    stage: int = -1  # of an uneven stage
    seconds: float = 0.0  # time constant of heating up, length of a pause
    share: float = 0.0  # probability of a pause; relative standard deviation of noise; what an uplink keeps
    leaf: int = -1  # of an uplink
    uplink: int = -1  # which one of the leaf; -1: all
    seed: int = 0  # by which flows are hashed to uplinks

    @property
    def random(self) -> bool:
        """Whether it has no effect but in samples."""
        return self.kind in ("pause", "noise", "jitter", "source")


def read_slow(texts: Sequence[str], cluster: Cluster, seed: int) -> tuple[Slow, ...]:
    """Disturbances from their words; a text that ends in .yaml or .yml names a file with a list of such words.

    Raises:
        SpecError: a word that is none, or what it names is not there.
        InputFileError: a file that cannot be read or holds something else.
    """
    slows: list[Slow] = []
    for text in texts:
        path = str(text).strip()
        if not path.lower().endswith((".yaml", ".yml")):
            slows.append(_slow(str(text), cluster, seed, slows))
            continue
        for number, entry in enumerate(_entries(Path(path)), start=1):
            try:
                slows.append(_slow(entry, cluster, seed, slows))
            except SpecError as error:
                raise SpecError(error.field, error.value, error.remedy, f"{path}, entry {number}") from None
    hashed = [slow for slow in slows if slow.kind == "ecmp"]
    if len(hashed) > 1:
        raise SpecError("slow", hashed[1].text, "flows are hashed once: give one seed")
    lost = [slow for slow in slows if slow.kind == "lost"]
    for last in lost:
        node, nics = last.gpus[0] // cluster.gpus_per_node, min(cluster.gpus_per_node, cluster.n_gpus)
        lost_nics = {slow.gpus[0] for slow in lost if slow.gpus[0] // cluster.gpus_per_node == node}
        if len(lost_nics) >= nics:
            raise SpecError("slow", last.text, f"node {node} would be cut off: leave it one of its {nics} NICs")
    return tuple(slows)


def _entries(path: Path) -> list[str]:
    content = read_document(path, "give a YAML list of disturbances such as '- gpu=1037:1.15'")
    if isinstance(content, dict):
        key = next(iter(content), "")
        raise InputFileError(path, f"has the key {str(key)[:40]!r}", "give a plain list such as '- gpu=1037:1.15'")
    if not isinstance(content, list) or not content:
        raise InputFileError(path, "holds no list", "give a list such as '- gpu=1037:1.15'")
    if len(content) > ENTRIES_MOST:
        raise InputFileError(path, f"holds {len(content)} entries", f"give at most {ENTRIES_MOST}")
    for number, entry in enumerate(content, start=1):
        if not isinstance(entry, str):
            shown = str(entry)[:60]
            raise InputFileError(path, f"entry {number} ({shown}) is no text", "write each as in '- gpu=1037:1.15'")
    return content


def _slow(text: str, cluster: Cluster, seed: int, before: Sequence[Slow]) -> Slow:
    kind, equals, rest = text.strip().partition("=")
    if not equals or kind not in FORMS:
        raise SpecError("slow", text, f"use one of {', '.join(FORMS.values())}")
    read = _READERS[kind]
    parts = rest.split(":")
    if len(parts) != _PARTS[kind] or not all(part.strip() for part in parts):
        raise SpecError("slow", text, f"use {FORMS[kind]}")
    number = sum(slow.kind == kind for slow in before) if kind == "random" else 0  # nothing else draws
    return replace(read(text, parts, cluster, (seed, number)), kind=kind)


Reader = Callable[[str, list[str], Cluster, tuple[int, int]], Slow]


def _gpu(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    return Slow(text, (_number(text, parts[0], cluster.n_gpus, "GPUs"),), _factor(text, parts[1]), link=False)


def _random(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    factor, share = _factor(text, parts[1]), _share(text, parts[0])
    if not 0.0 < share <= 1.0:
        raise SpecError("slow", text, "give a share of the GPUs above 0 and up to 100 %")
    count = max(1, round(share * cluster.n_gpus))
    seed, number = key
    # The first is drawn as if it were the only one, whatever comes after.
    generator = np.random.default_rng((seed, 0x510, number) if number else (seed, 0x510))
    gpus = generator.choice(cluster.n_gpus, count, replace=False)
    return Slow(text, tuple(int(gpu) for gpu in np.sort(gpus)), factor, link=False)


def _stage(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    # Which GPUs these are, and whether there is such a stage, only the layout knows: see `disturbances.placed`.
    return Slow(text, (), _factor(text, parts[1]), link=False, stage=_number(text, parts[0], 10**9, "stages"))


def _thermal(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    return replace(_gpu(text, parts[:2], cluster, key), seconds=_seconds(text, parts[2]))


def _link(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    return Slow(text, (_nic(text, parts[0], cluster),), 1.0 / _share_left(text, parts[1]), link=True)


def _lost(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    nic = _nic(text, parts[0], cluster)
    nics = min(cluster.gpus_per_node, cluster.n_gpus)
    if nics < 2:
        raise SpecError("slow", text, "the node has no other NIC and would be cut off; use link=...:SHARE instead")
    first = nic // cluster.gpus_per_node * cluster.gpus_per_node
    taker = next(first + other for other in takers(nic - first, nics))
    return Slow(text, (nic, taker), 2.0, link=True)


def _uplink(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    from windtunnel.physics.hardware.topology import topology_of

    share = _share_left(text, parts[1])
    match = re.fullmatch(r"leaf(\d{1,9})(?:\.(\d{1,9}))?", parts[0].strip(), re.ASCII)
    # With a seed a leaf has single uplinks, as many as give each the rate of a NIC.
    topology = topology_of(cluster, ecmp_seed=0)
    leaves = topology.n_leaves
    if not match or int(match[1]) >= leaves or int(match[2] or 0) >= topology.uplinks:
        remedy = f"leaves are numbered 0 to {leaves - 1} and each one's uplinks 0 to {topology.uplinks - 1}"
        raise SpecError("slow", text, f"{remedy}; use {FORMS['uplink']}")
    uplink = int(match[2]) if match[2] else -1
    return Slow(text, (), 1.0 / share, link=True, share=share, leaf=int(match[1]), uplink=uplink)


def _ecmp(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    word = parts[0].strip()
    if not (word.isascii() and word.isdigit() and len(word) < 19):
        raise SpecError("slow", text, f"a seed is a whole number; use {FORMS['ecmp']}")
    return Slow(text, (), 1.0, link=True, seed=int(word))


def _pause(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    share = _share(text, parts[0])
    if share > 1.0:
        raise SpecError("slow", text, "give a probability per rank and step of at most 100 %, as in pause=0.5%:200ms")
    return Slow(text, (), 1.0, link=False, share=share, seconds=_seconds(text, parts[1]))


def _noise(text: str, parts: list[str], cluster: Cluster, key: tuple[int, int]) -> Slow:
    share = _share(text, parts[0])
    if share > 1.0:
        raise SpecError("slow", text, "give a relative standard deviation of at most 100 %")
    return Slow(text, (), 1.0, link=False, share=share)


_READERS: dict[str, Reader] = {
    "gpu": _gpu, "random": _random, "stage": _stage, "thermal": _thermal, "link": _link,
    "lost": _lost, "uplink": _uplink, "ecmp": _ecmp, "pause": _pause, "noise": _noise,
}  # fmt: skip
_PARTS = {kind: 1 if kind in ("lost", "noise", "ecmp") else 3 if kind == "thermal" else 2 for kind in FORMS}


def takers(nic: int, nics: int) -> list[int]:
    """NICs of a node of `nics` in the order in which they take over for `nic`: its neighbour, then the next ones."""
    near = nic ^ 1
    ring = [(nic + step) % nics for step in range(1, nics)]
    return sorted(ring, key=lambda other: other != near)


def _plain(text: str, amount: str) -> float:
    if not re.fullmatch(r"\d{1,18}(\.\d{0,18})?|\.\d{1,18}", amount.strip(), re.ASCII):
        kind = text.strip().partition("=")[0]
        raise SpecError("slow", text, f"{amount.strip()!r} is no plain number; use {FORMS[kind]}")
    return float(amount)


def _factor(text: str, amount: str) -> float:
    value = _plain(text, amount)
    if not 1.0 <= value <= 1000.0:
        raise SpecError("slow", text, "a slow GPU's time is multiplied by a factor from 1 to 1000")
    return value


def _share_left(text: str, amount: str) -> float:
    value = _plain(text, amount)
    if not 0.001 <= value <= 1.0:
        raise SpecError("slow", text, "a link keeps a share of its bandwidth from 0.001 to 1")
    return value


def _share(text: str, amount: str) -> float:
    try:
        return parse_share(amount, "slow")
    except SpecError as error:
        raise SpecError("slow", text, error.remedy) from None


def _seconds(text: str, amount: str) -> float:
    try:
        value = parse_time(amount.strip(), "slow")
    except SpecError as error:
        raise SpecError("slow", text, error.remedy) from None
    if not 0.0 < value <= LONGEST_S:
        raise SpecError("slow", text, "give a time above 0 and up to a million seconds, such as 200ms or 300s")
    return value


def _number(text: str, where: str, count: int, what: str) -> int:
    where = where.strip()
    if not (where.isascii() and where.isdigit() and len(where) < 12) or int(where) >= count:
        raise SpecError("slow", text, f"{what} are numbered 0 to {count - 1}")
    return int(where)


def _nic(text: str, where: str, cluster: Cluster) -> int:
    match = re.fullmatch(r"node(\d{1,9})\.nic(\d{1,9})", where.strip(), re.ASCII)
    nodes, nics = cluster.n_nodes, min(cluster.gpus_per_node, cluster.n_gpus)
    if not match or int(match[1]) >= nodes or int(match[2]) >= nics:
        raise SpecError("slow", text, f"nodes are numbered 0 to {nodes - 1} and each one's NICs 0 to {nics - 1}")
    return int(match[1]) * cluster.gpus_per_node + int(match[2])
