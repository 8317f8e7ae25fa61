"""`fleet share`: which jobs share which link, by how their traffic fits, beside a placement by mean load alone.

All placements are tried where there are few, else the jobs one after the other by falling load; the best has the
highest mean score of the links that are used, then the highest worst one. docs/fleet-sharing.md has a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.document import read_mapping
from windtunnel.questions.asked.fleet.further import FleetShare
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.sharing.score import Fit, Pattern, fit_of, slowdowns
from windtunnel.units import parse_bandwidth, parse_time

REMEDY = "give `link` and `jobs`, each with job, period and busy (docs/fleet-sharing.md)"
TRIED = 4096  # placements
JOBS_MOST = 200


@dataclass(frozen=True, slots=True)
class OnLink:
    """Jobs of one link: the score of their traffic, when each begins, and how much longer steps get."""

    jobs: tuple[str, ...]
    score: float
    shifts_s: tuple[float, ...] | None
    unshifted: tuple[float, ...]
    shifted: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Shared(Answer):
    """Placements by name: by how traffic fits, and by load."""

    source: str
    placements: Mapping[str, tuple[OnLink, ...]]
    warnings: tuple[str, ...] = ()

    @property
    def provenance(self) -> dict[str, str]:
        """Whose traffic it is."""
        return {"traffic": self.source}

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        placements = {
            name: {"score": mean(link.score for link in links), "slower": mean(slower_of(links)),
                   "links": [link_document(link) for link in links]}
            for name, links in self.placements.items()
        }  # fmt: skip
        return {"placements": placements}


def link_document(link: OnLink) -> dict[str, object]:
    """A link as JSON-able data."""
    shifts = None if link.shifts_s is None else list(link.shifts_s)
    return {
        "jobs": list(link.jobs), "score": link.score, "shifts_s": shifts, "unshifted": list(link.unshifted),
        "shifted": list(link.shifted),
    }  # fmt: skip


def slower_of(links: Sequence[OnLink]) -> list[float]:
    """Step over step alone of every job, shifted."""
    return [value for link in links for value in link.shifted]


def answer(question: FleetShare) -> Shared:
    """Place the jobs. Raises UserError."""
    path = Path(question.jobs)
    capacity, patterns = read_jobs_of(path)
    fits: dict[tuple[int, ...], Fit] = {}

    def fit(those: tuple[int, ...]) -> Fit:
        if those not in fits:
            fits[those] = fit_of([patterns[at] for at in those], capacity)
        return fits[those]

    def loads(those: tuple[int, ...]) -> float:
        return sum(patterns[at].rate * patterns[at].busy_s / patterns[at].period_s for at in those)

    links = question.links
    order = sorted(range(len(patterns)), key=lambda at: (-loads((at,)), at))
    by_load = _greedy(order, links, lambda parts: (-max(map(loads, parts)),))
    by_fit = _greedy(order, links, lambda parts: _quality(parts, fit))
    if links ** len(order) <= TRIED:
        every = (_parts(where, links) for where in product(range(links), repeat=len(order)))
        by_fit = max((by_fit, *every), key=lambda parts: _quality(parts, fit))
    placements = {
        name: tuple(_on_link(those, patterns, capacity, fit(those)) for those in parts if those)
        for name, parts in (("by fit", by_fit), ("by load", by_load))
    }
    drift = any(link.shifts_s is None for links_ in placements.values() for link in links_)
    notes = (
        ("some periods do not meet again within 20,000 cells: those jobs drift, and have no shift",) if drift else ()
    )
    return Shared(str(path), placements, notes)


def _parts(where: Sequence[int], links: int) -> list[tuple[int, ...]]:
    return [tuple(at for at, to in enumerate(where) if to == link) for link in range(links)]


def _quality(parts: Sequence[tuple[int, ...]], fit: Callable[[tuple[int, ...]], Fit]) -> tuple[float, float]:
    scores = [fit(those).score for those in parts if those]
    return round(mean(scores), 9), round(min(scores), 9)


def _greedy(
    order: Sequence[int], links: int, worth: Callable[[list[tuple[int, ...]]], tuple[float, ...]]
) -> list[tuple[int, ...]]:
    parts: list[tuple[int, ...]] = [() for _ in range(links)]
    for at in order:
        choices = [
            [tuple(sorted((*those, at))) if link == chosen else those for link, those in enumerate(parts)]
            for chosen in range(links)
        ]
        parts = max(choices, key=worth)
    return parts


def _on_link(those: tuple[int, ...], patterns: Sequence[Pattern], capacity: float, fit: Fit) -> OnLink:
    here = [patterns[at] for at in those]
    together = tuple(slowdowns(here, capacity, [0.0] * len(here)))
    apart = together if fit.shifts_s is None else tuple(slowdowns(here, capacity, fit.shifts_s))
    return OnLink(tuple(pattern.name for pattern in here), fit.score, fit.shifts_s, together, apart)


def read_jobs_of(path: Path) -> tuple[float, list[Pattern]]:
    """(bytes per second of a link, patterns) of a file. Raises InputFileError, SpecError."""
    data = read_mapping(path, REMEDY)
    rows = data.get("jobs")
    if "link" not in data or not isinstance(rows, list) or not 0 < len(rows) <= JOBS_MOST:
        raise InputFileError(path, f"has no `link`, or no list of 1 to {JOBS_MOST} `jobs`", REMEDY)
    where = str(path)
    capacity = _above(parse_bandwidth(data["link"], "link", where), "link", where)
    patterns = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not {"period", "busy"} <= set(row) <= {"job", "period", "busy", "rate"}:
            raise InputFileError(path, f"has a job that is not job, period, busy and rate: number {number + 1}", REMEDY)
        name = str(row.get("job", number + 1))
        period = _above(parse_time(row["period"], "period", where), f"period of {name}", where)
        busy = _above(parse_time(row["busy"], "busy", where), f"busy of {name}", where)
        rate = capacity if "rate" not in row else parse_bandwidth(row["rate"], "rate", where)
        if busy > period or _above(rate, f"rate of {name}", where) > capacity:
            raise SpecError(f"{where}: {name}", row, "give a busy time within the period, and a rate within the link's")
        patterns.append(Pattern(name, period, busy, rate))
    return capacity, patterns


def _above(value: float, field: str, where: str) -> float:
    if not value > 0:
        raise SpecError(f"{where}: {field}", value, "give more than 0")
    return value
