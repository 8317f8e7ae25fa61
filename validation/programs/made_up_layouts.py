"""Made-up jobs of 1,024 ranks whose programs hang on more than one part of a rank: how many are folded wrong?

Nothing is captured. A rank's program is what a function says, and `capture`'s own search (`launch.from_few`) asks for
those of the ranks that it would run. Two tables:

- 45 layouts without a source: flat buffers, coordinates, and a rule that no buffer tells of. Twelve have odd ranks
  without any order;
- 45 scripts that branch on what they read of their rank, in the ways in which scripts write it.

    python validation/programs/made_up_layouts.py [--seed 0] [--each]
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from windtunnel.errors import UserError
from windtunnel.real.capture import launch
from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.processes.scheduler import Workers
from windtunnel.studies.programs.program_file import runs_of
from windtunnel.studies.programs.rank_classes.flat_buffers import FlatBuffer

RANKS = 1024
LOCAL = 8
Program = Callable[[int], str]


class RefusedError(UserError):
    """The search found no end."""


@dataclass(frozen=True)
class Job:
    """A grid, what its ranks hold, and what each runs."""

    family: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    buffers: tuple[FlatBuffer, ...]
    program: Program
    source: str = "rank = 0\n"

    def groups(self) -> list[tuple[int, ...]]:
        """Rank 0's along each dimension, and the world."""
        strides = _strides(self.sizes)
        along = [tuple(range(0, size * stride, stride)) for size, stride in zip(self.sizes, strides, strict=True)]
        return [tuple(range(RANKS)), *along]


@dataclass(frozen=True)
class Verdict:
    """What became of a job: how many ranks were given another's program, how many ran."""

    wrong: int
    runs: int
    refused: bool = False


class Ranks:
    """Stand in for the processes."""

    def __init__(self, job: Job, script: Path) -> None:
        self.outcomes: dict[int, dict[str, Any]] = {}
        self._job, self._script = job, str(script)

    def run(self, ranks: Iterable[int], task: object, *, helpers_end: bool = False) -> None:
        """Ask the job's function."""
        facts = {
            "groups": [runs_of(members) for members in self._job.groups()],
            "meshes": [[list(self._job.names), list(self._job.sizes)]],
            "buffers": [[runs_of(held.members), held.part, held.tensors] for held in self._job.buffers],
            **{"peers": [], "kind": 0, "tails": [], "files": {self._script: self._script}},
        }
        for rank in ranks:
            self.outcomes[rank] = {**facts, "digest": self._job.program(rank)}


def fold(job: Job, folder: Path) -> Verdict:
    """Whether the search gives every rank its own program."""
    script = folder / "train.py"
    script.write_text(job.source)
    ranks = Ranks(job, script)
    asked = Launch(str(script), (), is_module=False, world_size=RANKS, local_world_size=LOCAL)
    try:
        with patch.object(launch, "_not_folded", lambda *given: RefusedError("not folded")):
            table = launch.from_few(asked, launch.Options(), cast("Workers", ranks), {})[0]
    except RefusedError:
        return Verdict(0, len(ranks.outcomes), refused=True)
    wrong = sum(job.program(table.representative_of(rank)) != job.program(rank) for rank in range(RANKS))
    return Verdict(wrong, len(ranks.outcomes))


def _strides(sizes: Sequence[int]) -> list[int]:
    strides, stride = [], 1
    for size in reversed(sizes):
        strides.append(stride)
        stride *= size
    return strides[::-1]


def _laid_out(members: Sequence[int], lengths: Sequence[tuple[int, int]]) -> FlatBuffer:
    tensors, at = [], 0
    for length, dimensions in lengths:
        tensors.append((at, at + length, dimensions))
        at += length
    return FlatBuffer(tuple(members), -(-at // len(members)), tuple(tensors))


def _layers(draw: random.Random) -> list[tuple[int, int]]:
    """An embedding and alike layers: matrices, biases and norms."""
    wide = draw.choice((16_384, 40_000, 65_536))
    layer = [(wide, 2), (draw.choice((64, 256)), 1), (4 * wide, 2), (draw.choice((64, 1024)), 1)]
    return [(draw.choice((100_000, 300_000)), 2), *layer * draw.randrange(4, 25)]


def _numbers(buffer: FlatBuffer, place: int) -> list[int]:
    """Tensors that lie in a part, by number."""
    low, high = place * buffer.part, (place + 1) * buffer.part
    return [n for n, (begin, end, _) in enumerate(buffer.tensors) if begin < high and end > low]


FAMILIES = (
    *("scattered", "kind of tensor", "tensors", "pieces at a coordinate", "pair of coordinates"),
    *("scattered", "parity", "stretch at a coordinate", "kind of tensor", "tensors"),
    *("scattered", "pieces at a coordinate", "scattered", "pair of coordinates", "stretch"),
)


def layout(number: int, seed: int) -> Job:
    """One of those without a source."""
    draw = random.Random(f"layout {seed} {number}")
    family = FAMILIES[number % len(FAMILIES)]
    experts = draw.choice((2, 4, 8))
    sizes = (RANKS // experts, experts)
    dense = _laid_out(range(RANKS), _layers(draw))
    own = _laid_out(range(0, RANKS, experts), _layers(draw))
    k, low = draw.randrange(experts), draw.randrange(1, sizes[0] - 20)
    length, modulus = draw.randrange(2, 60), draw.randrange(2, 6)
    odd = set(draw.sample(range(RANKS), draw.choice((1, 2, 10, 30, 100))))
    which = draw.choice([end - begin for begin, end, _ in own.tensors])
    numbers = set(draw.sample(range(len(own.tensors)), draw.randrange(1, 6)))
    other = draw.randrange(sizes[0])
    rules: dict[str, Callable[[int, int, int], object]] = {
        "scattered": lambda rank, dp, ep: rank in odd,
        "kind of tensor": lambda rank, dp, ep: any(
            own.tensors[n][1] - own.tensors[n][0] == which for n in _numbers(own, dp)
        ),
        "tensors": lambda rank, dp, ep: bool(numbers & set(_numbers(own, dp))),
        "pieces at a coordinate": lambda rank, dp, ep: ep == k and len(_numbers(own, dp)) > 1,
        "pair of coordinates": lambda rank, dp, ep: ep == k and dp == other,
        "parity": lambda rank, dp, ep: (dp + ep) % modulus == 1,
        "stretch at a coordinate": lambda rank, dp, ep: ep == k and low <= dp < low + length,
        "stretch": lambda rank, dp, ep: low <= dp < low + length,
    }
    rule = rules[family]

    def program(rank: int) -> str:
        dp, ep = divmod(rank, experts)
        return f"{dense.pieces(rank)} {own.pieces(dp)} {rule(rank, dp, ep)}"

    return Job(family, ("dp", "ep"), sizes, (dense, own), program)


READS = {
    "environment": 'rank = int(os.environ["RANK"])\ndp, tp = rank // {tp}, rank % {tp}\n',
    "get_rank": "rank = dist.get_rank()\ntp_size = {tp}\ndp = rank // tp_size\ntp = rank % tp_size\n",
    "divmod": 'rank = int(os.getenv("RANK", "0"))\ndp, tp = divmod(rank, {tp})\n',
    "mesh": (
        'mesh = init_device_mesh("cuda", ({dp}, {tp}), mesh_dim_names=("dp", "tp"))\nrank = dist.get_rank()\n'
        'dp = mesh.get_local_rank("dp")\ntp = mesh["tp"].get_local_rank()\n'
    ),
    "coordinate": (
        'mesh = init_device_mesh("cuda", ({dp}, {tp}), mesh_dim_names=("dp", "tp"))\nrank = mesh.get_rank()\n'
        "dp, tp = mesh.get_coordinate()\n"
    ),
    "attributes": (
        "class Layout:\n    def __init__(self, tp_size):\n        self.rank = dist.get_rank()\n"
        "        self.tp_size = tp_size\n        self.dp = self.rank // self.tp_size\n"
        "        self.tp = self.rank % self.tp_size\n\nplaced = Layout({tp})\n"
    ),
}
TESTS = (
    "tp == {k} and dp == {other}",
    "(dp + tp) % {m} == 1",
    "{low} <= dp < {high}",
    "tp == {k} and {low} <= dp < {high}",
    "rank in {odd}",
    "rank == {one}",
    "rank % {big} == {rest}",
    "dp % {m} == 1 and tp != 0",
    "rank // 8 % 16 == {node}",
)


def script(number: int, seed: int) -> Job:
    """One of those that branch on what they read."""
    draw = random.Random(f"script {seed} {number}")
    tp = draw.choice((2, 4, 8))
    dp_size = RANKS // tp
    low = draw.randrange(1, dp_size - 20)
    values = {
        **{"k": draw.randrange(tp), "other": draw.randrange(dp_size), "m": draw.randrange(2, 9), "low": low},
        **{"high": low + draw.randrange(2, 40), "odd": sorted(draw.sample(range(RANKS), draw.choice((3, 10, 30))))},
        **{"one": draw.randrange(RANKS), "big": draw.choice((17, 64, 100)), "rest": draw.randrange(17)},
        **{"node": draw.randrange(16)},
    }
    how = list(READS)[number // len(TESTS) % len(READS)]
    test = TESTS[number % len(TESTS)].format(**values)
    code = compile(test, "<test>", "eval")
    written = test
    if how == "attributes":
        for name in ("rank", "dp", "tp"):
            written = " ".join(
                f"placed.{name}" if word == name else word for word in written.replace("(", "( ").split()
            )
    source = f"import os\nimport torch.distributed as dist\n{READS[how].format(tp=tp, dp=dp_size)}\n\n"
    source += f"def train(model):\n    if {written}:\n        model.extra()\n    model.step()\n"

    def program(rank: int) -> str:
        return str(eval(code, {"rank": rank, "dp": rank // tp, "tp": rank % tp}))

    return Job(f"{TESTS[number % len(TESTS)]} ({how})", ("dp", "tp"), (dp_size, tp), (), program, source)


def table(name: str, jobs: Sequence[Job], *, each: bool) -> None:
    """Print what became of them."""
    with tempfile.TemporaryDirectory() as folder:
        verdicts = []
        for number, job in enumerate(jobs):
            (place := Path(folder) / str(number)).mkdir()
            verdicts.append(fold(job, place))
    if each:
        for number, (job, verdict) in enumerate(zip(jobs, verdicts, strict=True)):
            what = "refused" if verdict.refused else f"{verdict.wrong} wrong" if verdict.wrong else "right"
            print(f"  {number:2} {what:>10}, {verdict.runs:4} run: {job.family}")
    wrong = [verdict.wrong for verdict in verdicts if verdict.wrong]
    refused = sum(verdict.refused for verdict in verdicts)
    runs = sorted(verdict.runs for verdict in verdicts)
    print(
        f"{name}: {len(wrong)} of {len(jobs)} wrong in silence ({sum(wrong)} ranks), {refused} refused;"
        f" ranks run: {sum(runs)} in all, {runs[len(runs) // 2]} in the middle, {runs[-1]} at most"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=45, help="of each table")
    parser.add_argument("--each", action="store_true", help="a line for each job")
    given = parser.parse_args()
    table("layouts", [layout(number, given.seed) for number in range(given.jobs)], each=given.each)
    table("scripts", [script(number, given.seed) for number in range(given.jobs)], each=given.each)


if __name__ == "__main__":
    main()
