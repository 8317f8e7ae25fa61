"""Training on spot machines: what each policy makes of one recorded trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.questions.header import Answer
from windtunnel.questions.typed import Plain, check_figures, check_sum, plain
from windtunnel.studies.resilience.spot.moves import DRAWS, Moves
from windtunnel.studies.resilience.spot.policies import IDLE, Decision, Forecast, on_demand, parcae, varuna
from windtunnel.studies.resilience.spot.tables import CONSTANTS, THROUGHPUT, SpotModel, models_in, read_model
from windtunnel.studies.resilience.spot.trace import SpotTrace, read_trace

POLICIES = ("parcae", "varuna", "on-demand")


@dataclass(frozen=True, slots=True)
class SpotEntry:
    """One policy on the trace."""

    policy: str
    decisions: Sequence[Decision]
    samples: float
    node_hours: float
    waterfall: Mapping[str, float]  # seconds; sums to the wall time
    cost_usd: float | None = None  # None without a price

    def __post_init__(self) -> None:
        check_figures(self)

    @property
    def usd_per_million_samples(self) -> float | None:
        """What a million samples cost; None without a price or without samples."""
        return None if self.cost_usd is None or not self.samples else self.cost_usd / self.samples * 1e6

    @property
    def ettr(self) -> float:
        """Share of the wall time in which samples were made."""
        return self.waterfall["productive"] / sum(self.waterfall.values())


@dataclass(frozen=True, slots=True)
class SpotAnswer(Answer):
    """The answer for one model and trace."""

    model: str
    models: Sequence[str]  # of the tables
    trace: SpotTrace
    interval_s: float
    look_ahead: int
    forecast: str
    entries: Sequence[SpotEntry]
    machines: str  # the file of the trace

    def __post_init__(self) -> None:
        for entry in self.entries:
            check_sum(entry.waterfall, self.wall_s)

    @property
    def provenance(self) -> Mapping[str, object]:
        """Which machines."""
        return {"machines": self.machines}

    @property
    def wall_s(self) -> float:
        """Length of the trace."""
        return len(self.trace.minutes) * self.interval_s

    def to_dict(self) -> dict[str, Plain]:
        """Plain data for JSON: the first policy's figures on top, and one entry per policy."""
        removals = sum(minute.removed for minute in self.trace.minutes)
        entries = [self._entry(entry, removals) for entry in self.entries]
        head = {name: value for name, value in entries[0].items() if name != "decisions"}
        whole: dict[str, Plain] = {
            "model": self.model,
            "wall_s": self.wall_s,
            "look_ahead": self.look_ahead,
            "forecast": self.forecast,
            "additions": sum(minute.added for minute in self.trace.minutes),
        }
        return {**head, **whole, "policies": plain(entries)}

    def _entry(self, entry: SpotEntry, removals: int) -> dict[str, Plain]:
        return {
            "policy": entry.policy,
            "ettr": entry.ettr,
            "ettr_p5": entry.ettr,  # one recorded trace: nothing is drawn but the nodes that a forecast loses
            "ettr_p95": entry.ettr,
            "interruptions": 0 if entry.policy == "on-demand" else removals,
            "waterfall": dict(entry.waterfall),
            "checkpoint_interval_s": None,
            "standbys": 0,
            "samples": entry.samples,
            "samples_per_s": entry.samples / self.wall_s,
            "node_hours": entry.node_hours,
            "cost_usd": entry.cost_usd,
            "usd_per_million_samples": entry.usd_per_million_samples,
            "decisions": [
                {
                    "minute": self.trace.first + at,
                    "d": decision.layout[0],
                    "p": decision.layout[1],
                    "move_ms": decision.move_ms,
                    "samples": decision.samples,
                }
                for at, decision in enumerate(entry.decisions)
            ],
        }

    def decisions_csv(self) -> str:
        """`minute,d,p` of the first policy."""
        rows = [
            f"{self.trace.first + at},{decision.layout[0]},{decision.layout[1]}"
            for at, decision in enumerate(self.entries[0].decisions)
        ]
        return "\n".join(["minute,d,p", *rows]) + "\n"


def survive_spot(
    trace: Path,
    policies: Sequence[str] = POLICIES,
    *,
    model: str | None = None,
    tables: Path | None = None,
    forecast: Forecast = "known",
    look_ahead: int | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    usd_per_gpu_hour: float | None = None,
    usd_per_spot_gpu_hour: float | None = None,
) -> SpotAnswer:
    """Every policy on one trace.

    `tables`: the folder with the two tables; left open, the trace's own folder, or the tables of BERT and GPT-1.5B that
    come with the package. `model`: left open, the one that the trace's name ends with, or the first of the tables.
    A node has one GPU; policies on spot machines pay the spot price, on-demand the other.
    Raises UserError on the first mistake.
    """
    for name in policies:
        if name not in POLICIES:
            raise UnknownNameError("policy for spot machines", name, POLICIES)
    if look_ahead is not None and not 1 <= look_ahead <= 120:
        raise SpecError("look-ahead", look_ahead, "give 1 to 120 minutes")
    for flag, price in (("price", usd_per_gpu_hour), ("spot-price", usd_per_spot_gpu_hour)):
        if price is not None and not 0.0 <= price < float("inf"):
            raise SpecError(flag, price, "give dollars for an hour of one GPU, 0 or more")
    if seed < 0:
        raise SpecError("seed", seed, "give 0 or more")
    with ExitStack() as stack:
        folder = tables
        if folder is None:
            beside = trace.parent
            shipped = files("windtunnel.studies.resilience.spot") / "catalogue"
            has_tables = all((beside / name).is_file() for name in (THROUGHPUT, CONSTANTS))
            folder = beside if has_tables else stack.enter_context(as_file(shipped))
        names = models_in(folder)
        chosen = model or next((name for name in names if trace.stem.endswith(f"_{name}")), names[0] if names else "")
        measured = read_model(folder, chosen)
    recorded = read_trace(trace, measured.interval_s)
    ahead = look_ahead or measured.look_ahead
    moves = Moves(measured, draws, seed)
    prices = {name: usd_per_gpu_hour if name == "on-demand" else usd_per_spot_gpu_hour for name in POLICIES}
    entries = [_entry(name, moves, recorded, ahead, forecast, prices[name]) for name in policies or POLICIES]
    return SpotAnswer(chosen, names, recorded, measured.interval_s, ahead, forecast, entries, str(trace))


def _entry(
    name: str, moves: Moves, trace: SpotTrace, look_ahead: int, forecast: Forecast, usd_per_hour: float | None
) -> SpotEntry:
    model: SpotModel = moves.model
    if name == "parcae":
        decisions = parcae(moves, trace, look_ahead, forecast)
    elif name == "varuna":
        decisions = varuna(model, trace)
    else:
        decisions = on_demand(model, trace)
    nodes = [minute.nodes for minute in trace.minutes]
    hired = [max(nodes, default=0)] * len(nodes) if name == "on-demand" else nodes
    idle = sum(decision.idle_s for decision in decisions if decision.layout != IDLE)
    waiting = sum(decision.idle_s for decision in decisions if decision.layout == IDLE)
    wall = len(nodes) * model.interval_s
    node_hours = sum(hired) * model.interval_s / 3600.0
    return SpotEntry(
        policy=name,
        decisions=decisions,
        samples=sum(decision.samples for decision in decisions),
        node_hours=node_hours,
        waterfall={"productive": wall - idle - waiting, "moving": idle, "too few machines": waiting},
        cost_usd=None if usd_per_hour is None else node_hours * usd_per_hour,
    )
