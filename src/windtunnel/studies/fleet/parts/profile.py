"""MIG's profiles by GPU, what is held of one GPU, and where slices lie on GPUs that are cut beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.files.document import read_mapping
from windtunnel.physics.hardware.catalogue import parse_cluster

UNITS = 1_008_000  # of a GPU: as many shares as it is cut into, up to 1,000, fit in it, and no more
SHARES_MOST = 1000  # of a GPU
DEVICES_MOST = 64  # GPUs of a node that may be in slices


@dataclass(frozen=True, slots=True)
class Part:
    """So many units of one GPU (`UNITS`); of MIG so many of its `slices` of memory, from one of `starts` on."""

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
    """What is held of one divided GPU: units, and the slices of MIG as bits."""

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


def cuts_of(divided: Mapping[str, int], gpu: str, where: str | None = None) -> tuple[Cuts, int]:
    """Where the slices of a node lie, large ones first, and on how many GPUs. Raises SpecError."""
    known = profiles_of(gpu)
    devices: list[Device] = []
    cuts: Cuts = {}
    for name in sorted(divided, key=lambda name: -known[name].size if name in known else 0):
        if name not in known or gpu == "gpu":  # profiles of one name are not alike on all
            able = [each for each, names in _profiles().items() if name in names]
            remedy = f"say so in site.yaml: gpu: {able[0]}" if able else "mend its name"
            words = f"Gres has slices of {name}, which {', '.join(able) or 'no known GPU'} has: {remedy}"
            raise SpecError("gpu", None if gpu == "gpu" else gpu, words, where)
        part = known[name]
        if divided[name] > DEVICES_MOST * part.most:
            raise SpecError("Gres", f"{name}:{divided[name]}", f"a GPU holds {part.most} of them: mend it", where)
        for _ in range(divided[name]):
            free = Device(part.slices)
            at = next((at for at, each in enumerate(devices) if each.start(part) is not None), len(devices))
            devices += [free] if at == len(devices) else []
            start = devices[at].start(part)
            assert start is not None
            devices[at] = devices[at].change(part, start, 1)
            cuts.setdefault(part, []).append((at, start))
    return cuts, len(devices)
