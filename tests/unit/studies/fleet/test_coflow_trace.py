"""Traces of coflows: read as written, and one message with the line for each that cannot be."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from switch_traffic import all_to_all, paired

from windtunnel.errors import InputFileError, SpecError, UnknownNameError, UserError
from windtunnel.studies.fleet.flows import on_switch, read_trace, run_flows
from windtunnel.studies.fleet.flows.study import static_key
from windtunnel.studies.fleet.flows.trace import of_trace

HERE = Path(__file__).parent


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("3\n", "line 1: has 1 words"),
        ("3 1\n", "line 1: says 1 coflows, and 0 lines follow"),
        ("3 1\n1 0 1 0\n", "line 2: the number of reducers|line 2: ends|line 2: has 4 words"),
        ("3 1\n1 0 1 7 1 1:5\n", "line 2: a mapper's port is '7'; give a whole number from 0 to 2"),
        ("3 1\n1 -4 1 0 1 1:5\n", "line 2: the arrival is '-4'"),
        ("3 1\n1 0 1 0 1 1:x\n", "line 2: has an amount of 'x' MB"),
        ("3 1\n1 0 1 0 1 1:nan\n", "line 2: has an amount of 'nan' MB"),
        ("3 1\n1 0 1 0 1 1:-5\n", "line 2: has an amount of '-5' MB"),
        ("3 1\n1 0 1 0 2 1:5\n", "line 2: says 2 reducers, and 1 words follow"),
        ("3 1\n1 0 1 0 1 15\n", "line 2: has a reducer '15' without an amount"),
        ("3 2\n1 0 1 0 1 1:5\n1 5 1 0 1 1:5\n", "line 3: coflow 1 was given in line 2"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputFileError, match=message):
        read_trace(written(tmp_path, text))


def test_damaged_traces_are_read_or_refused(tmp_path: Path) -> None:
    """A hundred traces with a few characters changed: an answer or one message, never anything else."""
    text = (HERE / "coflows.txt").read_text()[:1500].rsplit("\n", 1)[0]
    text = text.replace("50 21", f"50 {text.count(chr(10))}")
    rng = random.Random(5)
    refused = 0
    for _ in range(100):
        damaged = list(text)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.choice("0123456789 .:-\nx")
        try:
            run_flows(read_trace(written(tmp_path, "".join(damaged))), "sebf")
        except UserError:
            refused += 1
    assert 0 < refused < 100


def test_unknown_names_are_refused() -> None:
    trace = read_trace(HERE / "coflows.txt")
    with pytest.raises(UnknownNameError, match="did you mean sebf"):
        run_flows(trace, "sebv")


def test_amounts_of_a_trace_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path, "4 2\n7 1000 2 0 1 2 1:3.0 2:5.0\n8 0 1 3 1 3:1.5\n")
    coflows = of_trace(read_trace(path), 1e9)
    assert coflows.bytes_total.tolist() == [1.5 * 2**20] * 2 + [2.5 * 2**20] * 2 + [1.5 * 2**20]
    assert coflows.arrival_ns.tolist() == [1_000_000_000, 0]
    assert static_key(coflows, "scf").tolist() == [2.5 * 2**20, 1.5 * 2**20]
    assert static_key(coflows, "ncf").tolist() == [2.0, 1.0]
    assert static_key(coflows, "lcf").tolist() == [8 * 2**20, 1.5 * 2**20]


def test_a_mark_of_byte_order_is_no_part_of_a_trace(tmp_path: Path) -> None:
    text = "4 1\n7 1000 1 0 1 2:3.0\n"
    plain, marked = (of_trace(read_trace(written(tmp_path, mark + text)), 1e9) for mark in ("", "\ufeff"))
    assert plain.bytes_total.tolist() == marked.bytes_total.tolist()


def test_traffic_that_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="ports are numbered"):
        on_switch([paired(0, [0], [9], 1.0)], 4, 1.0)
    with pytest.raises(SpecError, match="targets"):
        paired(0, [0, 1], [2], 1.0)
    with pytest.raises(SpecError, match="matrix"):
        all_to_all(0, [0, 1], [[1.0]])
