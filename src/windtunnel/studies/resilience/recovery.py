"""The seconds of each part of a recovery: `recovery.yaml`, each with its source, and what the user says instead.

Ranks meet over one store, each with so many operations, so building the groups of a job grows by a constant for each
GPU (MegaScale, NSDI 2024: O(n) once no group needs a barrier). The rest, connections and kernels, is each GPU's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.resources import files

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.files.document import form_of
from windtunnel.units import parse_time

# Seconds of the store for each GPU of the job: TrainMover's 50 s on 64 GPUs and 65.4 on 8,192 say 1.9 ms, ByteRobust's
# hot updates (46 s on 2,048, 65 on 16,384) 1.3, MegaScale's bound (< 5 s on 2,048 GPUs) at most 2.4.
PER_GPU_S = 0.0016


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """Seconds; field names are the keys of `recovery.yaml` and of `--recovery KEY=TIME`."""

    detect_explicit: float
    detect_hang: float
    detect_silent: float
    localise_hang: float
    localise_silent: float
    schedule: float
    groups: float
    warm_up: float
    load: float
    delta_groups: float
    peer_state: float
    replenish: float
    hot_update: float
    standby_wake: float
    leave: float
    join: float
    drop_replica: float
    slow_found: float
    save_stall: float


@lru_cache
def published(gpus: int | None = None) -> RecoveryTimes:
    """The times of `recovery.yaml` for a job of so many GPUs; None: as they were measured."""
    text = (files("windtunnel.studies.resilience") / "recovery.yaml").read_text(encoding="utf-8")
    document = form_of(text, "recovery.yaml", own=True)

    def seconds(name: str) -> float:
        entry = document[name]
        more = 0.0 if gpus is None or "at" not in entry else PER_GPU_S * (gpus - float(entry["at"]))
        return float(entry["seconds"]) + more

    return RecoveryTimes(**{field.name: seconds(field.name) for field in fields(RecoveryTimes)})


def with_times(times: RecoveryTimes, changes: Mapping[str, object]) -> RecoveryTimes:
    """`times` with some of them replaced. Raises UnknownNameError for a key, SpecError for a time that is none."""
    names = [field.name for field in fields(RecoveryTimes)]
    for name in changes:
        if name not in names:
            raise UnknownNameError("recovery time", name, names)
    changed = {name: parse_time(value, f"recovery {name}") for name, value in changes.items()}
    for name, seconds in changed.items():
        if not math.isfinite(seconds):
            raise SpecError(f"recovery {name}", seconds, "give a finite time")
    return replace(times, **changed)
