"""The study: every row of a table of RL steps predicted, and how far off that is by source, in all and by phase."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from windtunnel.errors import InputFileError, UserError
from windtunnel.evidence.accuracy.in_order import in_order
from windtunnel.evidence.accuracy.rl.rows import NEEDED, PHASES, RlRow, missing, question_of
from windtunnel.files.table import read_table
from windtunnel.files.write import write_csv
from windtunnel.notebook import Shown
from windtunnel.studies.rl.job import settled
from windtunnel.studies.rl.study import answered


@dataclass(frozen=True, slots=True)
class Predicted:
    """One row. Empty fields: not predicted. status: ok, skipped or refused."""

    id: str
    total_step_s: float | None = None
    p5_s: float | None = None
    p95_s: float | None = None
    generation_s: float | None = None
    training_s: float | None = None
    weight_sync_s: float | None = None
    status: str = "ok"
    reason: str = ""
    logprob_s: float | None = None
    ref_logprob_s: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a group of rows: predicted / measured - 1."""

    name: str
    rows: int
    answered: int
    mean: float | None  # of the absolute
    bias: float | None
    worst: float | None
    in_band: float | None


@dataclass(frozen=True, slots=True)
class RlReport(Shown):
    """Predictions beside measurements."""

    source: str
    rows: tuple[RlRow, ...]
    predictions: tuple[Predicted, ...]

    def scores(self) -> list[Score]:
        """By source, by mode, and all."""
        pairs = list(zip(self.rows, self.predictions, strict=True))
        found = []
        for column in ("source", "mode"):
            for name in sorted({row.text(column) for row in self.rows}):
                found.append(_score(name or "not said", [pair for pair in pairs if pair[0].text(column) == name]))
        return [*[one for one in found if one.answered], _score("all", pairs)]

    def phases(self) -> list[Score]:
        """By phase, of the rows that publish it."""
        pairs = list(zip(self.rows, self.predictions, strict=True))
        return [one for name in PHASES if (one := _score(name, pairs, name)).answered]

    def write_rows(self, path: Path) -> None:
        """A line for each row of the table."""
        names = [item.name for item in fields(Predicted)]
        values = ([getattr(one, name) for name in names] for one in self.predictions)
        write_csv(path, names, ([_short(value) for value in row] for row in values))

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "table": self.source,
            "rows": len(self.rows),
            "scores": [asdict(score) for score in self.scores()],
            "phases": [asdict(score) for score in self.phases()],
            "not_predicted": [asdict(one) for one in self.predictions if one.status != "ok"],
        }


def is_rl_table(path: Path) -> bool:
    """Whether a CSV has the columns of measured RL steps."""
    try:
        return read_table(path).has(*NEEDED)
    except InputFileError:
        return False  # whoever reads it says what is wrong with it


def run_rl_validation(
    tables: Sequence[Path], *, progress: Callable[[int, int], None] | None = None, workers: int = 1
) -> RlReport:
    """Predict every row of `tables`; the answers do not depend on `workers`. Raises InputFileError."""
    rows = [RlRow(line) for path in tables for _, line in read_table(path, "give a CSV", needs=NEEDED).rows()]
    return RlReport(", ".join(map(str, tables)), tuple(rows), tuple(in_order(predicted, rows, progress, workers)))


def predicted(row: RlRow) -> Predicted:
    """One row."""
    lacking = missing(row)
    if lacking:
        return Predicted(row.id, status="skipped", reason=lacking)
    try:
        found = answered(settled(question_of(row)), it_ran=True)
    except UserError as error:
        return Predicted(row.id, status="refused", reason=" ".join(str(error).split()))
    phases = found.phases
    return Predicted(
        row.id, found.step_time_s, found.p5_s, found.p95_s,
        phases.generation_s, phases.training_s, phases.weight_sync_s,
        logprob_s=phases.logprob_s, ref_logprob_s=phases.ref_logprob_s,
    )  # fmt: skip


def _score(name: str, pairs: Sequence[tuple[RlRow, Predicted]], measure: str = "total_step_s") -> Score:
    both = [
        (one, measured, value)
        for row, one in pairs
        if (measured := row.number(measure)) and (value := getattr(one, measure)) is not None
    ]
    errors = [value / measured - 1.0 for _, measured, value in both]
    inside = [one.p5_s <= measured <= one.p95_s for one, measured, _ in both if one.p5_s and one.p95_s]
    return Score(
        name,
        sum(1 for row, _ in pairs if row.number(measure)),
        len(errors),
        _mean(abs(error) for error in errors),
        _mean(errors),
        max(errors, key=abs) if errors else None,
        _mean(map(float, inside)) if measure == "total_step_s" else None,
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def _short(value: object) -> object:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
