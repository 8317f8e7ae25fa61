"""MIG's profiles by GPU, what is held of one GPU, and where slices lie on GPUs that are cut beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.files.document import read_mapping
from windtunnel.physics.hardware.catalogue import parse_cluster

UNITS = 1000  # of a GPU


@dataclass(frozen=True, slots=True)
class Part:
    """So many thousandths of one GPU; of MIG so many of its `slices` of memory, from one of `starts` on."""

    units: int
    slices: int = 0  # of the GPU; 0: a share
    size: int = 0
    starts: tuple[int, ...] = ()

    @property
    def most(self) -> int:
        """How many of them one GPU holds."""
        free, count = 0, 0
        for start in self.starts:
            if start >= free:
                free, count = start + self.size, count + 1
        return count if self.slices else UNITS // self.units


@cache
def _profiles() -> dict[str, dict[str, Part]]:
    """Profiles by name, by GPU."""
    data = read_mapping(Path(__file__).parent / "mig.yaml", "")
    profiles = {}
    for gpu, names in data["gpus"].items():
        slices = 8 if len(names) > 3 else 4
        places = data["places"][str(slices)]
        profiles[gpu] = {
            name: Part(UNITS * size // slices, slices, size, tuple(starts))
            for name, (size, starts) in zip(names, places, strict=True)
        }
    return profiles


@cache
def profiles_of(gpu: str) -> dict[str, Part]:
    """The profiles of a GPU, by name; of one that nobody names (`gpu`) those of all, the first of a name."""
    if gpu == "gpu":
        return {name: part for each in reversed(_profiles().values()) for name, part in each.items()}
    try:
        name = parse_cluster(f"{gpu}:8").gpu.name
    except UserError:
        name = gpu
    return _profiles().get(name, {})


@dataclass(frozen=True, slots=True)
class Device:
    """What is held of one divided GPU: thousandths, and the slices of MIG as bits."""

    slices: int  # 0: its parts are shares
    used: int = 0
    mask: int = 0

    def start(self, part: Part) -> int | None:
        """Where a part begins; None where it has no room."""
        return next((at for at in reversed(part.starts or (0,)) if self.holds(part, at)), None)

    def holds(self, part: Part, start: int) -> bool:
        """Whether a part has room where it is to begin."""
        fits = part.slices == self.slices and self.used + part.units <= UNITS
        return fits and not self.mask & _bits(part, start)

    def change(self, part: Part, start: int, sign: int) -> Device:
        """With a part more, or less."""
        return replace(self, used=self.used + sign * part.units, mask=self.mask ^ _bits(part, start))


def _bits(part: Part, start: int) -> int:
    return ((1 << part.size) - 1) << start


Cuts = dict[Part, list[tuple[int, int]]]  # where slices of a node lie: its GPU, and where they begin


def cuts_of(divided: Mapping[str, int], gpu: str) -> tuple[Cuts, int]:
    """Where the slices of a node lie, large ones first, and on how many GPUs. Raises UserError."""
    known = profiles_of(gpu)
    devices: list[Device] = []
    cuts: Cuts = {}
    for name in sorted(divided, key=lambda name: -known[name].size if name in known else 0):
        if name not in known:
            has = ", ".join(known) or "no MIG"
            raise UserError(
                f"Gres has slices of {name}, and {gpu} has {has}: say which GPU it is in site.yaml, gpu: a100"
            )
        part = known[name]
        for _ in range(divided[name]):
            free = Device(part.slices)
            at = next((at for at, each in enumerate(devices) if each.start(part) is not None), len(devices))
            devices += [free] if at == len(devices) else []
            start = devices[at].start(part)
            assert start is not None
            devices[at] = devices[at].change(part, start, 1)
            cuts.setdefault(part, []).append((at, start))
    return cuts, len(devices)
