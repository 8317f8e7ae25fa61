"""How many ranks are drawn to test a fold, after one was met that contradicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.launch import DRAWN, MORE_DRAWN, Options, from_few
from windtunnel.real.capture.processes.rank_server import ScriptError
from windtunnel.real.capture.processes.scheduler import Workers
from windtunnel.studies.programs.rank_classes.draws import draw, parts_of_ranks
from windtunnel.studies.programs.rank_classes.flat_buffers import FlatBuffer
from windtunnel.studies.programs.rank_classes.grid import Grid
from windtunnel.studies.programs.rank_classes.representatives import find_axes


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
    table, sample, notes, unmet = from_few(launch, Options(), ranks, {})
    assert unmet[0].endswith(
        f"may be missed ({len(sample)} ranks were drawn; --verify draws more)"
    )  # how likely is not known
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


def test_what_differs_is_to_be_made_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of every rank's own: no few stand for all."""
    monkeypatch.setattr(Ranks, "folder", tmp_path, raising=False)
    monkeypatch.setattr("windtunnel.real.capture.launch.read_program", lambda path: path)
    monkeypatch.setattr("windtunnel.real.capture.launch.first_difference", lambda one, other: None)
    with pytest.raises(ScriptError, match="If what differs is data, make it equal; or run every rank with"):
        drawn(str, tmp_path / "train.py")


def test_a_rank_that_the_source_names_says_nothing_of_others(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("rank = 0\nif rank == 310:\n    write()\n")
    sample, notes = drawn(lambda rank: str(rank == 310), script)
    assert len(sample) == DRAWN
    assert not notes


def test_a_test_of_the_source_that_no_rank_met_is_met_and_its_ranks_are_one_class(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("rank = dist.get_rank()\nif rank % 8 == 3 and 40 <= rank // 8 < 60:\n    more()\n")
    sample, notes = drawn(lambda rank: str(rank % 8 == 3 and 320 <= rank < 480), script)
    assert len(sample) == DRAWN
    assert not notes


def test_ranks_that_are_drawn_hold_pairs_that_no_other_has() -> None:
    layout = find_axes(Grid((64, 16), ("dp", "tp")), [])
    world = np.arange(1024)
    tests = [world % 16 == 3, world // 16 < 2]  # together on two ranks
    parts = parts_of_ranks(layout, (), tests)
    sample = draw(layout, 1, 0, [0, 3 + 16 * 40, 1023], parts)
    assert {3, 19} & {*sample}


def test_parts_are_kinds_of_tensors_too() -> None:
    layout = find_axes(Grid((8,), ("dp",)), [])
    buffer = FlatBuffer(tuple(range(8)), 10, ((0, 30, 2), (30, 35, 1), (35, 80, 2)))
    assert buffer.kinds()[3] == {(5, 1), (45, 2)}
    assert parts_of_ranks(layout, [buffer]).tolist() == [[place, [0, 0, 0, 1, 2, 2, 2, 2][place]] for place in range(8)]
