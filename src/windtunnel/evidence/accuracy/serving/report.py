"""What came of a table: errors by source and over all, coverage, and one CSV line per row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from windtunnel.evidence.accuracy.serving.naive import naive_times
from windtunnel.evidence.accuracy.serving.predict import WHOLE_RUN, Predicted
from windtunnel.evidence.accuracy.serving.rows import ServingRow
from windtunnel.files.write import write_csv
from windtunnel.questions.header import Answer

MEASURES = (
    ("tpot_s", ("tpot_ms",), 1e-3),
    ("output_tokens_per_s", ("d_output_tokens_per_s", WHOLE_RUN), 1.0),
    ("ttft_s", ("ttft_ms",), 1e-3),
)


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one group of rows: |predicted / measured - 1|."""

    name: str
    rows: int
    answered: int
    tpot_mean: float | None
    tpot_median: float | None
    tpot_bias: float | None  # median of predicted / measured
    tokens_mean: float | None
    tokens_median: float | None
    ttft_median: float | None
    in_band: float | None
    naive_tpot_mean: float | None  # of a formula without scheduling, `naive.py`, on the rows that it can answer
    naive_tokens_mean: float | None
    naive_rows: int


@dataclass(frozen=True, slots=True)
class ServingReport(Answer):
    """Predictions beside measurements."""

    source: str
    rows: tuple[ServingRow, ...]
    predictions: tuple[Predicted, ...]

    @property
    def provenance(self) -> Mapping[str, object]:
        """Which table."""
        return {"measured": self.source}

    def overall(self) -> Score:
        """All rows but repeats."""
        return self._score("all", lambda row: True)

    def scores(self) -> list[Score]:
        """By model family, GPU, engine and mode; repeats of a measurement are left out."""
        keys = list(dict.fromkeys(_key(row) for row in self.rows))
        return [self._score(" ".join(key), lambda row, key=key: _key(row) == key) for key in sorted(keys)]  # type: ignore[misc]

    def by_level(self) -> list[Score]:
        """By how well rows are specified, where the table says so; repeats are left out."""
        levels = sorted({row.text("spec_level") for row in self.rows} - {""})
        return [
            self._score(f"level {level}", lambda row, wanted=level: row.text("spec_level") == wanted)  # type: ignore[misc]
            for level in levels
        ]

    def write_rows(self, path: Path) -> None:
        """`id,ttft_s,tpot_s,output_tokens_per_s,tpot_p5_s,tpot_p95_s,regime,status,reason`, every row of the table."""
        names = [item.name for item in fields(Predicted)]
        values = ([getattr(prediction, name) for name in names] for prediction in self.predictions)
        rows = (["" if isinstance(v, float) and math.isnan(v) else _short(v) for v in row] for row in values)
        write_csv(path, names, rows)

    def to_dict(self) -> dict[str, object]:
        """The report as JSON-able data."""
        return {
            "table": self.source,
            "rows": len(self.rows),
            "repeats_left_out": sum(1 for row in self.rows if row.text("duplicate_of")),
            "overall": asdict(self.overall()),
            "levels": [asdict(score) for score in self.by_level()],
            "groups": [asdict(score) for score in self.scores()],
            "refused": [
                {"id": prediction.id, "reason": prediction.reason}
                for prediction in self.predictions
                if prediction.status == "refused"
            ],
        }

    def _score(self, name: str, wanted: Callable[[ServingRow], bool]) -> Score:
        pairs = [
            (row, prediction)
            for row, prediction in zip(self.rows, self.predictions, strict=True)
            if wanted(row) and not row.text("duplicate_of")
        ]
        ratios = {key: _ratios(pairs, key, columns, scale) for key, columns, scale in MEASURES}
        tpot = ratios["tpot_s"]
        inside = [
            prediction.tpot_p5_s <= measured * 1e-3 <= prediction.tpot_p95_s
            for row, prediction in pairs
            if (measured := row.number("tpot_ms")) is not None and not math.isnan(prediction.tpot_s)
        ]
        errors = {key: [abs(value - 1.0) for value in values] for key, values in ratios.items()}
        return Score(
            name,
            len(pairs),
            sum(1 for _, prediction in pairs if prediction.status != "refused"),
            _mean(errors["tpot_s"]),
            _median(errors["tpot_s"]),
            _median(tpot),
            _mean(errors["output_tokens_per_s"]),
            _median(errors["output_tokens_per_s"]),
            _median(errors["ttft_s"]),
            sum(inside) / len(inside) if inside else None,
            *_naive([row for row, _ in pairs]),
        )


def _ratios(
    pairs: Iterable[tuple[ServingRow, Predicted]], key: str, columns: Sequence[str], scale: float
) -> list[float]:
    """Predicted over measured, by the first column that a row fills."""
    ratios = []
    for row, prediction in pairs:
        measured = next((number for column in columns if (number := row.number(column))), None)
        value = getattr(prediction, key)
        # Fewer tokens than answers are no rate: five rows of MLPerf's are in millions.
        least = (row.number("samples_per_s") or 0.0) if key == "output_tokens_per_s" else 0.0
        if measured is not None and measured > least and not math.isnan(value):
            ratios.append(value / (measured * scale))
    return ratios


def _naive(rows: Sequence[ServingRow]) -> tuple[float | None, float | None, int]:
    """(mean error of TPOT, of tokens/s, rows) of the formula without scheduling."""
    tpots, tokens = [], []
    for row in rows:
        times, measured = naive_times(row), row.number("tpot_ms")
        if times is None or not measured:
            continue
        ttft, tpot = times
        tpots.append(abs(tpot / (measured * 1e-3) - 1.0))
        rate, osl = row.number("d_output_tokens_per_s"), row.whole_number("osl", 1)
        if rate:
            tokens.append(abs(row.whole_number("concurrency", 1) * osl / (ttft + (osl - 1) * tpot) / rate - 1.0))
    return _mean(tpots), _mean(tokens), len(tpots)


def _key(row: ServingRow) -> tuple[str, ...]:
    family = row.text("model_family") or row.text("model").rpartition("/")[2]
    return (family, row.text("gpu"), row.text("engine"), row.text("mode") or "agg")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _short(value: object) -> object:
    return f"{value:.9g}" if isinstance(value, float) else value
