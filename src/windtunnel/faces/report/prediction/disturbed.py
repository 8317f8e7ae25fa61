"""What disturbances did to a step, as views: who is to blame, every rank, the critical path, and waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from windtunnel.faces.report.prediction.categories import Category, label_of, pass_of, time_categories
from windtunnel.faces.report.prediction.ranks import Ranks, foremost, makespan_ns, path_words, told_apart, where_words
from windtunnel.physics.step.result import Disturbed, PathPart, Result, Samples, Waiting
from windtunnel.views import Cell, Column, Figure, Figures, Grid, Heat, Lane, Lanes, Notes, Number, Span, Table, View
from windtunnel.views.text import plain, text_of

BLAMED_MOST = 30
WAITING_EACH = 3  # communicators of a kind that stand in front
LEAST_SPAN = 0.01  # of the step that the scale covers, so that a calm job does not look like a troubled one


def disturbed_views(result: Result) -> tuple[list[View], list[View]]:
    """What is said at once, and what only where all is asked for."""
    disturbed = result.disturbed
    assert disturbed is not None
    ranks = Ranks(disturbed)
    base = disturbed.undisturbed_step_time_ns
    figures = [
        Figure("lost", Number(disturbed.gpus_lost, "GPUs"), "worth of the step"),
        Figure("undisturbed", Number(base / 1e9, "s"), told_apart(disturbed, result.n_gpus)),
    ]
    figures += [_samples(disturbed.samples)] if disturbed.samples else []
    first: list[View] = [Figures(figures, "What the disturbances cost")]
    if disturbed.blame:
        first.append(_blame(disturbed, ranks, result.step_time_ns))
    path = path_words(disturbed, ranks)
    if path:
        first.append(Notes("Critical path", [path]))
    details: list[View] = [*_heats(result, disturbed, ranks)]
    if disturbed.critical_path and makespan_ns(disturbed):
        details.append(_path(disturbed, ranks))
    waiting = _waiting(disturbed, ranks)
    return first, [*details, *([waiting] if waiting.rows else [])]


def _samples(samples: Samples) -> Figure:
    jitter = f"jitter {text_of(samples.jitter, 'share')}, " if samples.jitter else ""
    note = f"{jitter}{samples.count:,} steps sampled, seed {samples.seed}; by chance alone"
    return Figure(
        "median of samples", Number(samples.p50_ns / 1e9, "s", samples.p5_ns / 1e9, samples.p95_ns / 1e9), note
    )


def _blame(disturbed: Disturbed, ranks: Ranks, step_ns: int) -> Table:
    spread = any(blame.without_p5_p50_p95_ns for blame in disturbed.blame)
    base = disturbed.undisturbed_step_time_ns or 1
    rows: list[Sequence[Cell]] = []
    for blame in disturbed.blame[:BLAMED_MOST]:
        low, _, high = blame.without_p5_p50_p95_ns or (0, 0, 0)
        band: list[Cell] = [f"{_percent(-low, step_ns)} – {_percent(-high, step_ns)}" if high else ""] if spread else []
        alone, mended = Number(blame.alone_ns / base, "change"), Number(-blame.without_ns / (step_ns or 1), "change")
        rows.append((plain(blame.what), alone, mended, *band, where_words(blame, ranks)))
    columns = [Column("disturbance"), Column("alone", "change"), Column("mended", "change")]
    columns += [Column("p5–p95", "")] if spread else []
    unlisted = len(disturbed.blame) - BLAMED_MOST
    note = "what each adds alone, and what mending it alone gives back" + (
        f"; and {unlisted:,} more, none for more" if unlisted > 0 else ""
    )
    return Table("Who is to blame", [*columns, Column("where")], rows, note, most=10)


def _percent(part_ns: int, whole_ns: int) -> str:
    return text_of(part_ns / (whole_ns or 1), "change")


def _waiting(disturbed: Disturbed, ranks: Ranks) -> Table:
    front = foremost(disturbed.waiting, WAITING_EACH)
    rest = [wait for wait in disturbed.waiting if wait.worst_ns > 0 and wait not in front]
    columns = (Column("waiting in"), Column("mean", "s"), Column("longest", "s"), Column("for"))
    note = "beyond an undisturbed step: mean over the members, the one that waits longest, and whom they wait for"
    rows = [_waits(wait, ranks) for wait in (*front, *rest)]
    return Table("Waiting for each other", columns, rows, note, most=len(front))


def _waits(wait: Waiting, ranks: Ranks) -> tuple[Cell, ...]:
    last = ranks.words(wait.last_rank) if wait.last_rank >= 0 else ""
    return plain(wait.communicator), wait.mean_ns / 1e9, wait.worst_ns / 1e9, last


def _path(disturbed: Disturbed, ranks: Ranks) -> Lanes:
    """Time across, a lane for each stage."""
    parts = disturbed.critical_path
    colours = _colours({part.what for part in parts})

    def span(part: PathPart) -> Span:
        category = colours[part.what]
        label = f"{ranks.words(part.rank)}, replica {part.replica}: mostly {category.label}"
        hit = bool(ranks.disturbances(part.rank))
        return Span(part.start_ns / 1e9, part.end_ns / 1e9, label, category.label, category.slot, hit)

    stages = sorted({part.stage for part in parts} | {rank_class.stage for rank_class in disturbed.rank_classes})
    lanes = [Lane(f"stage {stage}", [span(part) for part in parts if part.stage == stage]) for stage in stages]
    note = "The chain of work that the step cannot be shorter than."
    return Lanes("Critical path over the stages", lanes, note, "on a disturbed GPU")


def _colours(words: set[str]) -> dict[str, Category]:
    """What a part of the path mostly is, in the colours of the timeline."""
    passes = {word: of_pass for word in words if (of_pass := pass_of(word))}
    return time_categories(words - passes.keys()) | {
        word: replace(of_pass, label=label_of(word)) for word, of_pass in passes.items()
    }


def _heats(result: Result, disturbed: Disturbed, ranks: Ranks) -> list[View]:
    """The share of the step for which each rank is busy: by host and GPU, and by replica and stage."""
    total = makespan_ns(disturbed)
    if not disturbed.class_runs or total <= 0:
        return []
    busy_of = [rank_class.busy_ns / total for rank_class in disturbed.rank_classes]
    low, high = min(busy_of), max(busy_of)
    if high - low < LEAST_SPAN:
        low = max(0.0, min((low + high) / 2, 1.0 - LEAST_SPAN / 2) - LEAST_SPAN / 2)
        high = low + LEAST_SPAN
    busy: list[float | None] = [busy_of[at] for at, count in disturbed.class_runs for _ in range(count)]
    n_ranks, host = len(busy), _positive(result.spec, "cluster", "gpus_per_node", 8)
    hit = [(rank, ", ".join(ranks.disturbances(rank))) for rank in _disturbed_ranks(disturbed)]
    hosts = -(-n_ranks // host)
    note = "the share of the step for which a GPU computes or moves bytes; the rest it waits for others"
    views: list[View] = [
        Heat(
            "Every rank by host", Grid("host", hosts), Grid("GPU", host), [*busy, *[None] * (hosts * host - n_ranks)],
            "busy", "share", low, high, hit, note,
        )
    ]  # fmt: skip
    pp, dp = _positive(result.spec, "plan", "pp", 0), _positive(result.spec, "plan", "dp", 0)
    cell = _positive(result.spec, "plan", "tp", 0) * _positive(result.spec, "plan", "cp", 0)
    if pp * dp * cell == result.n_gpus == n_ranks:
        firsts = [(stage * dp + replica) * cell for replica in range(dp) for stage in range(pp)]
        means: list[float | None] = [
            sum(value or 0.0 for value in busy[first : first + cell]) / cell for first in firsts
        ]
        where = {rank // cell: text for rank, text in reversed(hit)}
        texts = [
            (replica * pp + stage, where[stage * dp + replica])
            for replica in range(dp)
            for stage in range(pp)
            if stage * dp + replica in where
        ]
        of = f"each the mean of {cell} GPUs" if cell > 1 else ""
        views.append(
            Heat(
                "Every rank by replica and stage", Grid("replica", dp), Grid("stage", pp), means, "busy", "share",
                low, high, texts, of,
            )
        )  # fmt: skip
    return views


def _disturbed_ranks(disturbed: Disturbed) -> list[int]:
    ranks: list[int] = []
    at = 0
    for number, count in disturbed.class_runs:
        if disturbed.rank_classes[number].disturbed_by:
            ranks += range(at, at + count)
        at += count
    return ranks


def _positive(spec: Mapping[str, object], part: str, name: str, otherwise: int) -> int:
    inner = spec.get(part)
    value = inner.get(name) if isinstance(inner, Mapping) else None
    return value if isinstance(value, int) and value > 0 else otherwise
