"""The rows of a table answered in its order, by this process or by several."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

CHUNK = 16  # rows handed to a worker at a time

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def in_order(
    answer: Callable[[Asked], Answer],
    rows: Sequence[Asked],
    progress: Callable[[int, int], None] | None,
    workers: int = 1,
) -> Iterator[Answer]:
    """Answers as they come; `progress` is called with (done, to do). Many go to `workers` processes."""
    if workers > 1 and len(rows) > 4 * CHUNK:
        with ProcessPoolExecutor(workers, initializer=_leave_interrupts_to_the_parent) as pool:
            yield from _counted(pool.map(answer, rows, chunksize=CHUNK), len(rows), progress)
    else:
        yield from _counted(map(answer, rows), len(rows), progress)


def _counted(answers: Iterable[Answer], total: int, progress: Callable[[int, int], None] | None) -> Iterator[Answer]:
    for done, answer in enumerate(answers, start=1):
        if progress is not None:
            progress(done, total)
        yield answer


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
