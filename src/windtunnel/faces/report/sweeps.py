"""What a sweep did, and the best rows of its table, as views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.studies.sweeps.sweep import SweepOutcome
from windtunnel.units import format_many
from windtunnel.views import Column, Document, Headline, Notes, Table, View


def sweep_document(outcome: SweepOutcome) -> Document:
    """How many points ran, why the first of each kind did not, and the best."""
    counts = ", ".join(f"{count:,} {status}" for status, count in outcome.by_status.items())
    from_file = "" if outcome.ran else f" ({outcome.path} answers; remove it to run again)"
    verdict = f"{format_many(outcome.points, 'point')}: {counts}; {outcome.ran:,} ran now{from_file}"
    views: list[View] = [Headline(verdict)]
    reasons = [f"the first {status}: {reason}" for status, reason in outcome.reasons.items()]
    views += [Notes("Not answered", reasons, tone="warn")] if reasons else []
    if outcome.best is not None:
        words = " ".join(f"{name}={value}" for name, value in outcome.best.items())
        views.append(Notes("Best of those tried", [words]))
    return Document("sweep", f"Sweep into {outcome.path}", views)


def table_document(rows: Sequence[Mapping[str, object]], source: str) -> Document:
    """One line a row; the columns are those of the first."""
    if not rows:
        return Document("sweep table", source, [Headline("no row is ok", tone="warn")])
    columns = [Column(name, "number") for name in rows[0]]
    cells = [[_words(value) for value in row.values()] for row in rows]
    return Document("sweep table", source, [Table("", columns, cells, most=len(rows))])


def _words(value: object) -> str:
    """Five digits of a number; large ones whole, with commas, so that a column can be compared."""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.5g}"
    return str(value)
