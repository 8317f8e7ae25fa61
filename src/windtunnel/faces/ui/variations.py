"""One field of a question over its values, all else as asked: step time with its band, memory and cost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.report.comparison.compare import compare
from windtunnel.faces.ui.form import asked_of, plan_fields
from windtunnel.physics.step.result import Result

POWERS = ("1", "2", "4", "8", "16", "32", "64")
VALUES = {
    "gpus": (),  # of the number asked for, see below
    "nic": ("100 Gb/s", "200 Gb/s", "400 Gb/s", "800 Gb/s", "1600 Gb/s"),
    "slow": ("", "gpu=0:1.05", "gpu=0:1.1", "gpu=0:1.2", "gpu=0:1.5"),
    "tp": POWERS,
    "pp": POWERS,
    "cp": POWERS,
    "ep": POWERS,
    "micro_batch": POWERS[:5],
    "virtual_stages": ("1", "2", "3", "4", "5", "6", "8"),
    "zero_stage": ("0", "1", "2", "3"),
    "recompute": ("none", "selective:core_attention", "selective:attention", "full"),
    "schedule": ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v"),
    "precision": ("bf16", "fp8", "mxfp8", "nvfp4"),
    "seq_len": ("2048", "4096", "8192", "16384", "32768", "131072"),
    "global_batch": (),
}
# What each is called where one is chosen, what the newcomer asks first in front.
VARIED = {
    "gpus": "number of GPUs",
    "slow": "one slow GPU",
    "tp": "tensor parallel (tp)",
    "pp": "pipeline stages (pp)",
    "cp": "context parallel (cp)",
    "ep": "expert parallel (ep)",
    "micro_batch": "micro batch",
    "global_batch": "global batch",
    "seq_len": "sequence length",
    "virtual_stages": "virtual stages",
    "schedule": "pipeline schedule",
    "recompute": "recomputed activations",
    "zero_stage": "ZeRO stage",
    "precision": "precision",
    "nic": "bandwidth of a NIC",
}
HOURS = 3600.0


@dataclass(frozen=True)
class Point:
    """The answer at one value."""

    value: str
    now: bool  # what the question says itself
    result: Result | None = None
    problem: str = ""  # why there is no answer

    @property
    def step_time_s(self) -> float:
        """Of what is answered."""
        return self.result.step_time_s if self.result else 0.0

    @property
    def memory_share(self) -> float:
        """How full the fullest GPU is."""
        result = self.result
        return result.peak_memory.device_bytes / max(result.memory_capacity_bytes, 1) if result else 0.0

    def dollars_per_million_tokens(self, price_per_gpu_hour: float) -> float:
        """What a million tokens cost at a price of a GPU-hour."""
        rate = self.result.tokens_per_s if self.result else 0.0
        return price_per_gpu_hour * self.result.n_gpus / HOURS / rate * 1e6 if self.result and rate else 0.0


def values_of(field: str, values: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Values that a field is tried at, and the one asked for, which is among them. SpecError where it is not varied."""
    if field not in VALUES:
        raise SpecError("vary", field, f"use one of {', '.join(VALUES)}")
    choices = VALUES[field]
    now = values.get(field, "").strip()
    if field in ("gpus", "global_batch"):
        now = now.replace(",", "")
        if not now.isdigit() or int(now) < 1:
            raise SpecError(field, now or None, "give a whole number")
        choices = tuple(str(int(now) * 2**power // 8) for power in range(1, 7) if int(now) * 2**power % 8 == 0)
    if not now:
        entry = plan_fields().get(field)
        now = entry.default if entry else ""
    return (choices if now in choices or not now else (*choices, now)), now


def _answered(field: str, value: str, values: Mapping[str, str], uploads: Path, *, now: bool) -> tuple[str, Result]:
    """The answer at a value. A slow GPU costs most on the fullest stage: the first or, with the head, the last.

    What was asked, `now`, is answered as it was asked.
    """
    result = asked_of({**values, field: value}, uploads).answer()
    if field == "slow" and value in VALUES["slow"] and value and not now:
        last = value.replace("gpu=0", f"gpu={result.n_gpus - 1}")
        other = asked_of({**values, field: last}, uploads).answer()
        if other.step_time_ns > result.step_time_ns:
            return last, other
    return value, result


def points(field: str, values: Mapping[str, str], uploads: Path) -> list[Point]:
    """An answer for each value; what cannot be says why."""
    answers = []
    choices, here = values_of(field, values)
    base = None  # with what a framework or a cluster fills in where the question says nothing
    with suppress(UserError):
        base = asked_of(values, uploads).answer()
    for value in choices:
        now = value == here
        try:
            value, result = _answered(field, value, values, uploads, now=now)
        except UserError as error:
            answers.append(Point(value or "none", now, problem=str(error)))
            continue
        answers.append(Point(value or "none", now or (base is not None and not compare(base, result).spec), result))
    return answers
