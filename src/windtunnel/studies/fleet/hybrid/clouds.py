"""The pools of a site's YAML file: own GPUs first, then clouds. docs/fleet-beyond.md has one.

`egress_per_gb` is for data that leaves a pool, `bandwidth` in and out. A pool without `gpus` has as many as anyone asks
for. Own GPUs without a price are taken as paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.files.document import read_mapping
from windtunnel.studies.fleet.fields import known_keys, number
from windtunnel.studies.fleet.hybrid.catalogue import CATALOGUE_TERMS, pools_of
from windtunnel.studies.fleet.policies.beyond.hybrid import LABELS, PER, Per
from windtunnel.units import parse_bandwidth, parse_time

OWN = {"gpu", "gpus", "gpus_per_node", "pools", "starburst"}
TERMS = {"price_per_gpu_hour", "privacy", "egress_per_gb", "bandwidth", "startup", "owner", "spot"}


@dataclass(frozen=True)
class Cloud:
    """One pool and its terms. `gpus` None: without limit. `spot_s`: mean times up and down."""

    name: str
    owner: str
    price_per_gpu_s: float
    privacy: int  # the most secret label that may run here, 0 = public
    gpus: int | None
    egress_per_gb: float
    bandwidth: float  # bytes per second
    startup_s: float
    spot_s: tuple[float, float] | None = None

    def move_s(self, gb: float, source: Cloud) -> float:
        """Time for data that lies in another pool."""
        return gb * 1e9 / min(self.bandwidth, source.bandwidth)


@dataclass(frozen=True)
class Clouds:
    """Own GPUs first. Starburst's waiting time: `factor` x `per`."""

    pools: tuple[Cloud, ...]
    per: Per = "runtime"
    factor: float = 1.0

    def position_of(self, name: str) -> int | None:
        """Position of a pool; the own one is `own` too."""
        return next((at for at, cloud in enumerate(self.pools) if name in (cloud.name, "own" * (at == 0))), None)


def read_clouds(path: Path, own_gpus: int) -> Clouds:
    """Raises InputFileError or SpecError."""
    data, where = read_mapping(path, "give gpu, gpus and pools"), str(path)
    listed = data.get("pools")
    if not isinstance(listed, list) or not listed or not all(isinstance(each, Mapping) for each in listed):
        raise SpecError("pools", listed, "list the clouds beside the own GPUs, each with name and price", where)
    own = {key: value for key, value in data.items() if key not in OWN}
    clouds = [_cloud({"privacy": "private", "startup": 0.0, **own}, "own", own_gpus, where)]
    pools = [
        pool
        for each in listed
        for pool in (pools_of(each, path.parent, where) if CATALOGUE_TERMS & set(each) else (each,))
    ]
    for place, each in enumerate(pools, 1):
        name = each.get("name", f"pool-{place}")
        if not isinstance(name, str) or name == "own" or name in [cloud.name for cloud in clouds]:
            raise SpecError("name", name, "give each pool a name of its own", where)
        gpus = each.get("gpus")
        if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1):
            raise SpecError(f"gpus of {name}", gpus, "give a whole number, or leave it out for no limit", where)
        known_keys(each, {"name", "gpus", *TERMS}, where)
        if "price_per_gpu_hour" not in each:  # one that is free takes all jobs
            raise SpecError(f"price_per_gpu_hour of {name}", None, "say what a GPU costs there, such as 3.4", where)
        terms = {key: value for key, value in each.items() if key not in ("name", "gpus")}
        clouds.append(_cloud(terms, name, gpus, where))
    wait = data.get("starburst", {})
    if not isinstance(wait, Mapping) or set(wait) - {"wait", "per"} or wait.get("per", "runtime") not in PER:
        raise SpecError("starburst", wait, f"give wait, and per: one of {', '.join(PER)}", where)
    return Clouds(tuple(clouds), wait.get("per", "runtime"), number(wait, "wait", where, 1.0))


def label_of(text: str, field: str, where: str | None) -> int:
    """0 public, 1 internal, 2 private; nothing said is public. Raises SpecError."""
    word = text.strip().lower() or LABELS[0]
    if word not in LABELS:
        raise SpecError(field, text, f"give one of {', '.join(LABELS)}", where)
    return LABELS.index(word)


def _cloud(terms: Mapping[str, object], name: str, gpus: int | None, where: str) -> Cloud:
    known_keys(terms, TERMS, where)
    spot = terms.get("spot")
    if spot is not None and not (isinstance(spot, Mapping) and set(spot) == {"up", "down"}):
        raise SpecError(f"spot of {name}", spot, "give mean times, such as {up: 5 h, down: 30 min}", where)
    up_down = None
    if spot is not None:
        up_down = (parse_time(spot["up"], "up", where), parse_time(spot["down"], "down", where))
        if min(up_down) <= 0:
            raise SpecError(f"spot of {name}", spot, "give mean times above zero", where)
    owner = str(terms.get("owner", name))
    price = number(terms, "price_per_gpu_hour", where, 0.0) / 3600.0
    label = label_of(str(terms.get("privacy", "public")), f"privacy of {name}", where)
    bandwidth = parse_bandwidth(terms.get("bandwidth", "10 Gb/s"), f"bandwidth of {name}", where)
    if bandwidth <= 0:
        raise SpecError(f"bandwidth of {name}", terms.get("bandwidth"), "give a rate above zero", where)
    startup_s = parse_time(terms.get("startup", 120.0), f"startup of {name}", where)
    egress = number(terms, "egress_per_gb", where, 0.0)
    return Cloud(name, owner, price, label, gpus, egress, bandwidth, startup_s, up_down)
