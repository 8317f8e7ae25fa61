"""What tests of a source give on every rank, and which ranks are run for it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from windtunnel.real.capture.source.rank_tests import (
    MOST_EVALUATIONS,
    MOST_TEXT,
    World,
    not_met,
    numbers_held,
    rank_tests,
)

RANKS = np.arange(64)
DP, TP = RANKS // 8, RANKS % 8
WORLD = World(64, 8, [(("dp", "tp"), (8, 8))], {".tp": 8, "layers": 3})


@pytest.mark.parametrize(
    ("source", "holds"),
    [
        ('rank = int(os.environ["RANK"])\nif rank % 8 == 3 and rank // 8 == 5: pass', RANKS == 43),
        ('r = int(os.environ.get("LOCAL_RANK", 0))\nx = 1 if r in (2, 3) else 0', np.isin(TP, (2, 3))),
        ("dp, tp = divmod(dist.get_rank(), args.tp)\nif not (tp or dp < 2): pass", (TP == 0) & (DP >= 2)),
        ('if 2 <= mesh["dp"].get_local_rank() < 5: pass', (DP >= 2) & (DP < 5)),
        ('if mesh.get_local_rank("tp") != layers: pass', TP != 3),
        ("a, b = mesh.get_coordinate()\nwhile (a + b) % 3 == 1: pass", (DP + TP) % 3 == 1),
        ("def is_odd(n):\n    return n == 7\nis_odd(dist.get_rank() % 9)", RANKS % 9 == 7),
        ("def tp_rank():\n    return dist.get_rank() % 8\nassert tp_rank() > 5", TP > 5),
        ("class Job:\n    rank: int\njob = Job(dist.get_rank())\nif job.rank == 9 or args.all: pass", RANKS == 9),
        (
            "class Job:\n    def __init__(self, rank):\n        self.rank = rank\nJob(get_rank())\nx.rank < 9",
            RANKS < 9,
        ),
        ('rank, size = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE"))\nif rank == size - 2: pass', RANKS == 62),
        (
            "rank = 0\nif spread:\n    rank = dist.get_rank()\nif rank in range(4, 9, 2): pass",
            np.isin(RANKS, (4, 6, 8)),
        ),
        (
            "grid = [[i for i in range(4)] for i in range(4)]\ni = dist.get_rank()\nif i == grid[0][1]: pass",
            RANKS == 1,
        ),
        ("rank = get_rank()\nx = [-'x' for rank in (1, 2)]\nif x == 1: pass\nif rank < 9: pass", RANKS < 9),
    ],
)
def test_a_test_is_followed_back_to_what_a_rank_is_read_from(source: str, holds: object, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    tests, missed = rank_tests({str(path): "train.py"}, WORLD)
    assert [test.holds.tolist() for test in tests] == [np.asarray(holds).tolist()]
    assert not missed


def test_what_is_not_understood_is_told_and_what_is_alike_on_all_ranks_is_no_test(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    source = "if my_rank == 3: pass\nif step == 4: pass\nif dist.get_rank() >= 0: pass\n"
    path.write_text(source + 'my_rank = my_rank // 2\n1 // 0 == "a"')
    tests, missed = rank_tests({str(path): "train.py", str(tmp_path / "none.py"): "none.py"}, WORLD)
    assert not tests
    assert missed == ["`my_rank == 3` (train.py:1)"]


def test_pairs_of_tests_that_no_rank_met_are_told(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("rank = dist.get_rank()\nif rank % 8 == 0: pass\nif rank < 8: pass\n")
    tests, _ = rank_tests({str(path): "train.py"}, WORLD)
    assert not_met(tests, [0, 1, 8, 9]) == []
    assert not_met(tests, [0, 1, 9]) == [
        "no rank that ran has `rank % 8 == 0` (train.py:2) and not `rank < 8` (train.py:3): 7 ranks do"
    ]


def test_numbers_of_names_that_have_one(tmp_path: Path) -> None:
    class Arguments:
        def __init__(self) -> None:
            self.tp, self.name, self.fast = 8, "x", True

    args = Arguments()
    width, beyond = 5, 2**63
    held = numbers_held(sys._getframe(), lambda path: path == __file__)
    assert held[".tp"] == args.tp
    assert held["width"] == width
    assert ".fast" not in held
    assert "beyond" not in held, beyond


def test_what_no_rank_could_be_is_left_out_and_takes_no_time(tmp_path: Path) -> None:
    """Numbers beyond 64 bits, endless ranges, chains of functions and tuples that double, loops in loops."""
    chain = "".join(f"def f{n}(): return f{n - 1}() + f{n - 1}()\n" for n in range(1, 60))
    within = "rank"
    for n in range(12):
        within = f"[{within} for i{n} in range(20)]"
    wrong = (
        *("rank == 10000000000000000000000", "rank in range(1, 100000000000000000000000)", "rank in range(0, 9, 0)"),
        *("rank * 2**62 + rank == 3", "rank * 4294967296 * 4294967296 == 0", "x59 == rank", "rank == y"),
        *("rank in [r for r in range(8) if r % 2]", "rank in [r + s for r in (1, 2) for s in (1, 2)]"),
        *("rank % 0 == 1", "'x' * rank == 2", "rank[0][rank] == 3", "-'x' == rank", f"{within} == rank"),
    )
    path = tmp_path / "train.py"
    pairs = "x0 = 1\n" + "".join(f"x{n} = (x{n - 1}, x{n - 1})\n" for n in range(1, 60)) + "y = (x59, x59)\n" * 2
    source = f"rank = dist.get_rank()\ndef f0(): return rank\n{chain}{pairs}"
    path.write_text(source + "\n".join((*wrong, "f59() < 0")))
    tests, missed = rank_tests({str(path): "train.py"}, WORLD)
    assert not tests or {test.text for test in tests} == {"f59() < 0"}
    assert len(missed) == len(wrong)


def test_evaluations_are_counted_and_tests_beyond_are_not_understood(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("rank = dist.get_rank()\nrank == 1\n" + f"0 in ({'0,' * MOST_EVALUATIONS})\n" + "rank == 2\n")
    tests, missed = rank_tests({str(path): "train.py"}, WORLD)
    assert [test.text for test in tests] == ["rank == 1"]
    assert missed == ["`rank == 2` (train.py:4)"]


@pytest.mark.parametrize("terms", [100, 900])
def test_long_tests_are_told_short(terms: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"rank == {' + '.join(['x'] * terms)}\n")
    _, (missed,) = rank_tests({str(path): "train.py"}, WORLD)
    assert len(missed) < MOST_TEXT + 30


def test_a_loop_counts_with_a_name_of_its_own(tmp_path: Path) -> None:
    """In another file the same name holds the rank."""
    first, second = tmp_path / "train.py", tmp_path / "mesh.py"
    first.write_text("for i in batches:\n    if i > 5: pass\n")
    second.write_text("i = dist.get_rank()\n")
    tests, _ = rank_tests({str(first): "train.py", str(second): "mesh.py"}, WORLD)
    assert tests == []
