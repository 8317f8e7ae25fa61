"""How many ranks are drawn to test a fold, after one was met that contradicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.launch import DRAWN, MORE_DRAWN, Options, from_few
from windtunnel.real.capture.processes.scheduler import Workers


class Ranks:
    """Stand in for the processes: a rank's program is what a function says."""

    def __init__(self, program: Callable[[int], str], script: Path) -> None:
        self.outcomes: dict[int, dict[str, Any]] = {}
        self._program, self._script = program, str(script)

    def run(self, ranks: Iterable[int], task: object, *, helpers_end: bool = False) -> None:
        facts = {"groups": [[[0, 1, 1024]]], "meshes": [], "peers": [], "kind": 0, "tails": [], "buffers": []}
        for rank in ranks:
            self.outcomes[rank] = {**facts, "digest": self._program(rank), "files": {self._script: ""}}


def drawn(program: Callable[[int], str], script: Path) -> tuple[list[int], list[str]]:
    """The ranks that were drawn last, once a fold held against them, and what is noted."""
    launch = Launch(str(script), (), is_module=False, world_size=1024, local_world_size=8)
    ranks = cast("Workers", Ranks(program, script))
    table, sample, notes = from_few(launch, Options(), ranks, {})
    assert all(program(table.representative_of(rank)) == program(rank) for rank in range(1024))
    return sample, notes


def test_a_drawn_rank_that_differs_is_hardly_ever_alone_so_more_are_drawn(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("rank = 0\n")
    first, notes = drawn(lambda rank: "same", script)
    assert len(first) == DRAWN
    assert not notes
    second, notes = drawn(lambda rank: str(rank == first[0]), script)
    assert len(second) == DRAWN * MORE_DRAWN
    assert f"rank {first[0]:,}, met by chance" in notes[0]


def test_a_rank_that_the_source_names_says_nothing_of_others(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("rank = 0\nif rank == 310:\n    write()\n")
    sample, notes = drawn(lambda rank: str(rank == 310), script)
    assert len(sample) == DRAWN
    assert not notes
