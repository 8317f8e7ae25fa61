from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError
from windtunnel.studies.programs.communication import COLLECTIVES, Communication
from windtunnel.studies.programs.program import Answer, MemoryEvent, Op, RankProgram, TensorSpec
from windtunnel.studies.programs.program_file import numbers_of, read_program, runs_of, write_program

numbers = st.integers(0, 1 << 50)
words = st.text(max_size=8)
specs = st.builds(
    TensorSpec,
    st.tuples(numbers, numbers) | st.just(()),
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from(["device", "host"]),
)
scalars = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=4,
)
groups = st.lists(st.integers(0, 8191), min_size=1, max_size=6, unique=True).map(tuple)


@st.composite
def calls(draw: st.DrawFn) -> Communication:
    members = draw(groups)
    kind = draw(st.sampled_from(COLLECTIVES))
    return Communication(
        kind, draw(words), members, 0, draw(numbers), "bfloat16", -1, draw(st.integers(0, 3)), "sum",
        draw(st.sampled_from([(), (1, 2)])), (), draw(st.booleans()), draw(numbers), draw(st.booleans()),
    )  # fmt: skip


ops = st.builds(
    Op,
    words,
    st.sampled_from(["compute", "communication", "wait", "sync", "copy"]),
    st.lists(specs, max_size=2).map(tuple),
    st.lists(specs, max_size=2).map(tuple),
    st.floats(0, 1e18) | st.just(math.inf),
    st.floats(0, 1e18),
    st.floats(0, 1e18),
    st.lists(st.integers(0, 99), max_size=3).map(tuple),
    st.integers(0, 3),
    words,
    st.sampled_from(["forward", "backward", "optimizer", "other"]),
    st.integers(0, 9),
    st.booleans(),
    st.none() | calls(),
    st.lists(scalars, max_size=2).map(tuple),
)
events = st.builds(MemoryEvent, st.integers(-1, 99), numbers, st.integers(-(1 << 40), 1 << 40), st.just("activation"))
programs = st.builds(
    RankProgram,
    st.integers(0, 8191),
    st.just(8192),
    st.lists(ops, max_size=5).map(tuple),
    st.lists(events, max_size=5).map(tuple),
    st.lists(events, max_size=2).map(tuple),
    st.lists(st.builds(Answer, numbers, words, words, words), max_size=2).map(tuple),
    st.just(((("pp", "tp"), (2, 4)),)),
    st.just(((0, 3),)),
    st.lists(words, max_size=2).map(tuple),
    st.dictionaries(
        words, st.integers() | words | st.floats(allow_nan=False) | st.lists(numbers, max_size=2), max_size=2
    ),
)


@settings(deadline=None)
@given(program=programs)
def test_what_is_written_is_read_again_exactly(program: RankProgram, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("program") / "rank.jsonl.gz"
    data = write_program(program)
    path.write_bytes(data)
    again = read_program(path)
    assert again == program
    assert repr(again) == repr(program)  # 1 and 1.0, True and 1 are equal, and not the same
    assert write_program(again) == data


@given(groups)
def test_members_are_shortened_without_loss(members: tuple[int, ...]) -> None:
    assert numbers_of(runs_of(members)) == members


def test_a_group_of_the_whole_world_takes_one_short_line() -> None:
    world = tuple(range(8192))
    assert runs_of(world) == [[0, 1, 8192]]
    call = Communication("all_reduce", "world", world, 0, 4)
    op = Op("c10d.allreduce_", "communication", communication=call)
    assert len(gzip.decompress(write_program(RankProgram(0, 8192, (op,) * 100)))) < 20_000


def test_calls_in_one_group_share_its_members_when_read(tmp_path: Path) -> None:
    call = Communication("all_reduce", "g", (0, 1), 0, 4)
    ops = tuple(Op("x", "communication", communication=call) for _ in range(3))
    (tmp_path / "p").write_bytes(write_program(RankProgram(0, 2, ops)))
    read = [op.communication for op in read_program(tmp_path / "p").ops]
    assert read[0] is not None
    assert all(one is not None and one.members is read[0].members for one in read)


def damage(lines: list[str], how: str) -> str:
    if how == "cut":
        lines = lines[:-1]
    elif how == "op lost":
        lines = [line for line in lines if '"op":1' not in line]
    elif how == "version":
        lines[0] = lines[0].replace('"version":1', '"version":99')
    elif how == "field":
        lines[1] = lines[1].replace('"kind"', '"sort":1,"kind"')
    elif how == "no json":
        lines[2] = "{"
    return "\n".join(lines)


@pytest.mark.parametrize("how", ["cut", "op lost", "version", "field", "no json"])
def test_what_is_damaged_is_refused_with_its_line(how: str, tmp_path: Path) -> None:
    program = RankProgram(0, 1, (Op("a", "compute"), Op("b", "compute"), Op("c", "compute")))
    lines = gzip.decompress(write_program(program)).decode().splitlines()
    path = tmp_path / "rank.jsonl.gz"
    path.write_bytes(gzip.compress(damage(lines, how).encode()))
    with pytest.raises(InputFileError, match=r"line \d"):
        read_program(path)


@pytest.mark.parametrize(
    "data", [b"", b"no gzip", gzip.compress(b"x" * 99, mtime=0)[:-12], gzip.compress(b"", mtime=0)]
)
def test_what_is_no_program_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputFileError, match=r"is no gzip|is damaged|is cut off|is empty"):
        read_program(tmp_path / "x")
    with pytest.raises(InputFileError, match="No such file"):
        read_program(tmp_path / "y")
