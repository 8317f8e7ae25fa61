"""Where output goes: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.questions import Question
from windtunnel.questions.document import as_text, document, document_of
from windtunnel.questions.header import Answer

if TYPE_CHECKING:
    from rich.console import Console

    from windtunnel.faces.cli.flags import Outputs
    from windtunnel.views import Document

PIPED_WIDTH = 120  # columns where no terminal says how wide it is
PATIENCE_S = 1.0  # what is done sooner needs no progress


def stdout(piped_width: int = PIPED_WIDTH) -> Console:
    """The console for results; `piped_width` columns where neither a terminal nor COLUMNS says how wide it is."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    width = None if console.is_terminal else _columns() or piped_width
    return Console(file=sys.stdout, highlight=False, width=width)


def _columns() -> int | None:
    import os

    columns = os.environ.get("COLUMNS", "")
    return max(40, int(columns)) if columns.isascii() and columns.isdigit() and len(columns) < 5 else None


def show(document: Document, *, full: bool = False, piped_width: int = PIPED_WIDTH) -> None:
    """Print what an answer shows; `full`: all of it, not its first screen alone."""
    from windtunnel.faces.report.draw.console import print_document

    print_document(document, stdout(piped_width), full=full)


def print_question(
    question: Question,
    own: Mapping[str, object],
    *,
    band: Mapping[str, object] | None = None,
    provenance: Mapping[str, object] | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """The answer to a question as one JSON document."""
    print_json(document_of(question, own, band=band, provenance=provenance, warnings=warnings))


def texts(value: object) -> list[str]:
    """A list of texts in an answer that is plain data."""
    return [str(text) for text in value] if isinstance(value, list | tuple) else []


def give(
    question: Question,
    answer: Answer | Mapping[str, object],
    outputs: Outputs,
    document: Document,
    *,
    noting: bool = True,
    band: Mapping[str, object] | None = None,
    provenance: Mapping[str, object] | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """An answer as it is asked for: a report, and JSON or what there is to see.

    `noting`: an answer's warnings are notes as well, unless the document shows them. The rest is of `print_question`.
    """
    if outputs.report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(document, outputs.report)
        wrote(outputs.report)
    if not outputs.json:
        if noting and isinstance(answer, Answer):
            noted(answer)
        show(document, full=outputs.full)
    elif isinstance(answer, Answer):
        print_answered(question, answer)
    else:
        print_question(question, answer, band=band, provenance=provenance, warnings=warnings)


def print_answered(question: Question, answer: Answer) -> None:
    """The answer to a question as one JSON document."""
    print_json(document(question, answer))


def noted(answer: Answer) -> None:
    """Its warnings, as notes."""
    for text in answer.warnings:
        note(text)


def wrote(path: Path) -> None:
    """A note that a file is there."""
    note(f"wrote {path}")


def print_json(document: Mapping[str, object]) -> None:
    """One JSON document."""
    print(as_text(document))


def note(text: str) -> None:
    """A line for the person at the terminal, out of the way of the output."""
    print(text, file=sys.stderr)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on stderr that something is going on, if it takes longer than a second and a person is looking."""
    if not sys.stderr.isatty():
        yield
        return
    from threading import Timer

    from rich.console import Console

    status = Console(stderr=True).status(f"{what}; the engine is compiled first, once per machine" if cold() else what)
    timer = Timer(PATIENCE_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def cold() -> bool:
    """Whether compiled kernels are kept in none of the places where numba looks for them."""
    import os
    import tempfile
    from pathlib import Path

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    beside = Path(__file__).parents[2] / "physics" / "engine" / "compiled" / "__pycache__"
    # Each where those before are read-only; the last as in `engine/compiled/__init__.py`.
    temporary = Path(tempfile.gettempdir()) / f"windtunnel-numba-{getattr(os, 'getuid', lambda: 'user')()}"
    places = [Path(chosen)] if chosen else [beside, Path(caches) / "numba", temporary]
    return not any(place.is_dir() and next(place.rglob("kernels.*.nbi"), None) for place in places)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A callback for (done, total) that draws a bar on stderr once a second has passed, if a person is looking."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    start_s = monotonic()

    def report(done: int, total: int) -> None:
        if not bar.live.is_started and monotonic() - start_s > PATIENCE_S:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()
