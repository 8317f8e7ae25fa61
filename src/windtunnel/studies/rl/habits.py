"""What differs between RL frameworks and their releases: passes, engine, assignment, weight transfer.

A file `frameworks/<name>.yaml` holds `defaults`, then `releases` from the oldest to the newest with what is different.
A release that is not listed is read as the nearest older one. Each number stands beside where it was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from windtunnel.errors import UnknownNameError
from windtunnel.files.document import own_document

FOLDER = Path(__file__).parent / "frameworks"
ALIASES = {"nemo": "nemo-rl", "nemorl": "nemo-rl", "prime": "prime-rl", "primerl": "prime-rl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """One release of one framework."""

    name: str
    release: str
    engine: str  # profile of serving
    trainer: str  # framework of a training plan
    assignment: Literal["chunks", "least-loaded"]  # of a batch to generators: in order, or to the least busy
    gpu_memory_utilization: float
    gpu_memory_utilization_apart: float | None = None  # where generators have GPUs of their own
    old_logprob: Literal["always", "unless-on-policy", "never"]
    reference: bool  # log-probs of a reference model
    partial: bool  # answers under way survive a weight update
    keep_cache: bool  # ... and their cache does
    in_order: bool  # batches are trained in the order in which their prompts began
    refit_colocated_bytes_per_s: float
    refit_apart_bytes_per_s: float
    refit_s: float  # of a weight update, beside its bytes
    wake_s: float  # engine and trainer change places, beside what PCIe takes
    between_s: float  # data, rewards, advantages
    offload_bytes_per_s: float | None = None  # optimizer states to the host and back; else all of a trainer, over PCIe
    aligns_nodes: bool = True  # ranks that talk most are in one NVLink domain, where a job has several
    in_flight: Literal["free", "batch", "ahead", "generators"] = "free"  # prompts under way: all that may begin, those
    # of a batch, of `async_steps` batches, or 16 for each generator
    sends_fp8: bool = False  # weights that are generated with in 8 bits are cast before they are sent
    # By model: tokens that the recipe of this release drafts, and the chance that one is kept.
    drafted: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    node_sum_s: float | None = None  # of a generator's sum over nodes, per node beyond the first; the engine's
    loss: str | None = None  # of a training plan, where it is not the trainer's
    # RL engines are not benchmark engines: log-probs returned, executors in step, detokenising, fixed assignment; RL
    # trainers pack unlike rows, keep no graph, balance no experts. Fitted on NeMo RL 0.4 to 0.7 (validation/rl/fit.py);
    # other frameworks have published nothing to fit.
    generation_factor: float = 1.42  # on steps of generators
    learner_factor: float = 1.32  # on log-probs and training
    experts_factor: float = 1.8  # the same where a model has experts


def load_habits(spec: str) -> Habits:
    """The habits of `verl`, `nemo-rl-0.6`. Raises UnknownNameError."""
    text = re.sub(r"[\s_]+", "-", spec.strip().lower())
    match = re.fullmatch(r"([a-z-]*[a-z])(?:[-=@:]?v?(\d[\w.]*))?", text)
    name, wanted = (match[1], match[2] or "") if match else (text, "")
    return _habits(ALIASES.get(name, name), wanted, spec)


def framework_names() -> tuple[str, ...]:
    """All that are known."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@lru_cache(maxsize=64)
def _habits(name: str, wanted: str, spec: str) -> Habits:
    if name not in framework_names():
        raise UnknownNameError("RL framework", spec, framework_names())
    document = own_document((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    releases = list(document["releases"])
    older = [release for release in releases if _order(release) <= _order(wanted)]
    release = (older[-1] if older else releases[0]) if wanted else releases[-1]
    values = {**document["defaults"], **(document["releases"][release] or {})}
    fields_by_name = {entry.name: entry for entry in fields(Habits)}
    arguments: dict[str, Any] = {
        key: float(value) if fields_by_name[key].type in ("float", "float | None") else value
        for key, value in values.items()
    }
    return Habits(name=name, release=wanted or release, **arguments)


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:4])
