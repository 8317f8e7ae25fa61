"""Plans: what a search answers, as plain data. Renderers work from it alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from windtunnel.errors import UserError
from windtunnel.questions.header import Answer, band_entry
from windtunnel.questions.typed import plain_fields
from windtunnel.studies.planning.answers.choices import Choice

FIGURES = (
    *("step_time_s", "p5_s", "p95_s", "mfu", "tokens_per_s", "n_gpus", "peak_memory_bytes", "memory_capacity_bytes"),
    *("gpu_hours_per_million_tokens", "reproduce"),
)  # of a row of `to_dataframe`


@dataclass(frozen=True, slots=True)
class Planned:
    """One plan and what it is predicted to do. `plan` is what `predict` takes."""

    plan: Mapping[str, object]
    n_gpus: int
    step_time_s: float
    p5_s: float
    p95_s: float
    peak_memory_bytes: int
    memory_capacity_bytes: int
    tokens_per_s: float
    mfu: float
    gpu_hours_per_million_tokens: float
    reproduce: str
    breakdown_s: Mapping[str, float]
    cost_per_million_tokens: float | None = None  # where a price per GPU-hour is given
    effective_step_time_s: float | None = None  # under what was asked to go wrong; what plans are ranked by then
    tokens_per_joule: float | None = None  # of the GPUs, by what they do
    techniques: tuple[str, ...] = ()  # as `predict --technique` takes them

    def to_dict(self) -> dict[str, object]:
        """The plan as JSON-able data."""
        return dict(plain_fields(self))


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with which something fits, as it was predicted."""

    change: str
    planned: Planned


@dataclass(frozen=True, slots=True)
class Miss:
    """A plan that does not fit, and how much it needs."""

    plan: Mapping[str, object]
    needed_bytes: int
    capacity_bytes: int
    at_least: bool  # `needed_bytes` is a lower bound


@dataclass(frozen=True, slots=True)
class Plans(Answer):
    """Ranked plans, best first, with the certificate.

    `space`: how many plans are legal, how many of these were replayed event by event, and how many were excluded by a
    bound (`bounded`: those by memory and those by time together). `gap`: by what part of its time the first plan could
    be slower than the best of the space; 0 where none is faster. Of the objectives memory and energy: by what part of
    its memory or energy another plan could need less.
    """

    plans: tuple[Planned, ...]
    space: Mapping[str, int]
    gap: float
    objective: str
    seconds: float
    decides: str = ""
    told_apart: bool = True  # whether the first two differ by more than the band
    rule_of_thumb: Planned | None = None
    rule_of_thumb_loses: str = ""
    front: tuple[Planned, ...] = ()  # no plan is better in everything
    nearest: tuple[Miss, ...] = ()  # where nothing fits
    remedies: tuple[Remedy, ...] = ()
    choices: tuple[Choice, ...] = ()  # other values of each field, with all else chosen again
    sensitivity: tuple[tuple[str, str], ...] = ()  # price that is 10 % off, and what then wins
    launch: Mapping[str, str] = field(default_factory=dict)  # file or command -> text, of the first plan
    warnings: tuple[str, ...] = ()  # what the model leaves out
    techniques: Mapping[str, Any] | None = None  # where they were asked for: how many were tried, and why some not

    def __getitem__(self, index: int) -> Planned:
        return self.plans[index]

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def status(self) -> str:
        """Whether anything fits: ok or infeasible."""
        return "ok" if self.plans else "infeasible"

    @property
    def band(self) -> Mapping[str, object] | None:
        """Of the best plan's step."""
        best = next(iter(self.plans), None)
        return None if best is None else band_entry("plans[0].step_time_s", best.p5_s, best.p95_s)

    def to_dataframe(self) -> object:
        """A pandas DataFrame, a row a plan, best first: its figures, and each field that plans differ in.

        Raises UserError where pandas is not installed.
        """
        fields = {name: [row.plan.get(name) for row in self.plans] for plan in self.plans for name in plan.plan}
        columns = {name: [getattr(plan, name) for plan in self.plans] for name in FIGURES}
        columns |= {name: list(map(str, values)) for name, values in fields.items() if len(set(map(str, values))) > 1}
        try:
            import pyarrow as pa

            return pa.table(columns).to_pandas()
        except ImportError:
            raise UserError("to_dataframe needs pyarrow and pandas: pip install pyarrow pandas") from None

    def to_dict(self) -> dict[str, object]:
        """The answer as JSON-able data."""
        choices = [
            {"field": choice.field, "value": choice.value, "regret_at_least": choice.regret, "exact": choice.exact}
            for choice in self.choices
        ]
        return {
            **plain_fields(self),
            "status": self.status,
            "remedies": [{"change": remedy.change, **remedy.planned.to_dict()} for remedy in self.remedies],
            "choices": choices,
            "sensitivity": [{"price": name, "winner": winner} for name, winner in self.sensitivity],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plans:
        """The inverse of `to_dict`, of which a header may stand around it. KeyError or TypeError on a foreign dict."""
        read_apart = ("plans", "front", "nearest", "remedies")
        plain = {field.name: data[field.name] for field in fields(cls) if field.name not in read_apart}
        thumb = data["rule_of_thumb"]
        changes = [
            (remedy["change"], {name: remedy[name] for name in remedy if name != "change"})
            for remedy in data["remedies"]
        ]
        again = {
            "plans": tuple(_planned(plan) for plan in data["plans"]),
            "warnings": tuple(data["warnings"]),
            "rule_of_thumb": None if thumb is None else _planned(thumb),
            "front": tuple(_planned(plan) for plan in data["front"]),
            "nearest": tuple(Miss(**miss) for miss in data["nearest"]),
            "remedies": tuple(Remedy(change, _planned(entry)) for change, entry in changes),
            "choices": tuple(
                Choice(choice["field"], choice["value"], choice["regret_at_least"], choice["exact"])
                for choice in data["choices"]
            ),
            "sensitivity": tuple((case["price"], case["winner"]) for case in data["sensitivity"]),
        }
        return cls(**{**plain, **again})


def _planned(data: Mapping[str, Any]) -> Planned:
    return Planned(**{**data, "techniques": tuple(data["techniques"])})
