"""Bugs that hang, crash or corrupt a job, each told with its line, its ranks and its group; and no others."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from bugged import BUGS, HEALTHY, PRELUDE, Bug
from small_models import rank_of

from windtunnel.real.capture.checks import first_call_that_differs
from windtunnel.real.capture.fake_tensors.control_flow import Answers
from windtunnel.real.capture.recorder.recorder import Recorder
from windtunnel.real.capture.source.branches import deciding_places
from windtunnel.studies.programs.rank_classes.agreement import book_of, deadlock, disagreement
from windtunnel.studies.programs.rank_classes.findings import CORRUPT, CallLog, Finding, compare
from windtunnel.studies.programs.rank_classes.replicas import compare_replicas

sys.path.append(str(Path(__file__).parents[2] / "studies" / "programs"))
from every_rank import whole_job

WORLD = 4


def played(
    path: Path, rank: int, own: float | None = None, own_lines: Sequence[str] = (), device: str = "cpu"
) -> tuple[Recorder, bool]:
    """One rank of the script; and whether it ended in an ordinary way."""
    recorder: Any = None
    ended = True
    with rank_of(WORLD, rank, fake=device) as world:
        import torch.distributed as dist

        dist.destroy_process_group()
        with Recorder(rank, WORLD, world, answers=Answers(own=own, own_lines=own_lines)) as recorder:
            try:
                exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
            except SystemExit:
                ended = False
    return recorder, ended


def findings(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What is said of a script, in the order in which a capture asks."""
    monkeypatch.chdir(folder)
    path = folder / "train.py"
    path.write_text(PRELUDE + script)
    recorders = [played(path, rank)[0] for rank in range(WORLD)]
    logs = {rank: one.journal.log() for rank, one in enumerate(recorders)}
    found = compare(logs, WORLD)
    if not found:
        job = whole_job([one.program for one in recorders])
        found += [one for one in (disagreement(book_of(job)), deadlock(job)) if one is not None][:1]
    races = [race for one in recorders for race in (*one.journal.races, *one.replicas.findings)]
    if races:
        ranks = tuple(race.ranks[0] for race in races)
        found.append(Finding(races[0].kind, ranks, races[0].group, races[0].line, races[0].text, CORRUPT))
    found += compare_replicas({rank: one.replicas.facts for rank, one in enumerate(recorders)}, WORLD)
    reads = [(name, int(line)) for name, _, line in (read.rpartition(":") for read in recorders[0].own_reads)]
    deciding = deciding_places([str(path)], reads)
    for value in (1e-12, math.inf) if deciding and not found else ():
        other, ended = played(path, 0, value, [f"{name}:{line}" for name, line in deciding])
        if ended and first_call_that_differs(logs[0], other.journal.log(), ends=True):
            found.append(Finding("data", tuple(range(WORLD)), "world", f"train.py:{deciding[-1][1]}", ""))
            break
    return found


def line_of(bug: Bug) -> str:
    lines = (PRELUDE + bug.script).splitlines()
    return f"train.py:{next(number for number, text in enumerate(lines, 1) if text.endswith('# here'))}"


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_told_with_its_line_its_ranks_and_its_group(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = BUGS[name]
    found = findings(bug.script, tmp_path, monkeypatch)
    assert found
    first = found[0]
    assert (first.kind, sorted(first.ranks), first.line) == (bug.kind, sorted(bug.ranks), line_of(bug)), first
    assert bug.group in first.group


@pytest.mark.parametrize("name", HEALTHY)
def test_of_a_healthy_script_nothing_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(HEALTHY[name], tmp_path, monkeypatch) == []


@pytest.mark.parametrize(
    ("script", "waits"),
    [
        ("if r < 2: dist.new_group([0, 1])", False),
        ("if r < 2: dist.new_group([0, 1])\ndist.new_group([2, 3])", True),
        ("if r != 1: dist.all_reduce(torch.zeros(1), group=dist.new_group([0, 1, 2]))", True),
        (
            "dist.destroy_process_group(); dist.init_process_group('gloo', device_id=torch.device('cuda:0'))\n"
            "if r < 2: dist.new_group([0, 1])",
            True,
        ),
    ],
)
def test_a_last_group_made_by_its_members_alone_hangs_nobody(
    script: str, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = findings(f"{script}\nfor i in range(2):\n    back(); reduce(); done()\n", tmp_path, monkeypatch)[0]
    assert (first.kind, first.is_fatal) == ("set-up", waits)
    assert ("no rank waits" in first.text) != waits


def test_a_split_of_the_world_is_every_rank_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "{}dist.split_group(split_ranks=[[0, 1], [2, 3]])\nfor i in range(2):\n    back(); reduce(); done()\n"
    assert findings(script.format(""), tmp_path, monkeypatch) == []
    first = findings(script.format("if r < 2: "), tmp_path, monkeypatch)[0]
    assert (first.kind, first.line, first.is_fatal) == ("set-up", "train.py:18", True)


def test_a_norm_of_all_with_a_constant_from_the_host_is_no_rank_s_own(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    loop = """
m.cuda()
for i in range(3):
    back(torch.randn(8, 16, device="cuda")); reduce()
    norm = m.weight.grad.norm(); dist.all_reduce(norm)
    {}
    if bool((~torch.isfinite(norm) | (norm < 0)).any()): opt.zero_grad(); continue
    done()
"""
    constant = 'norm.masked_fill_(norm.isinf(), torch.tensor(-1.0, device="cuda"))'
    for line, own in ((constant, []), ("norm += torch.tensor([0.5, 1.0]).cuda().sum()", [f"{path}:24"])):
        path.write_text(PRELUDE + loop.format(line))
        assert list(played(path, 0, device="cuda")[0].own_reads) == own


def test_steps_that_a_log_leaves_out_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(PRELUDE + "for i in range(3 if r == 1 else 5):\n    back(); reduce(); done()\n")
    journals = [played(path, rank)[0].journal for rank in (0, 1, 2)]
    whole = {rank: journal.log() for rank, journal in enumerate(journals)}
    cut = {**whole, 0: CallLog.from_plain(journals[0].log(steps=2).to_plain())}
    assert [one.ranks for one in compare(whole, WORLD)] == [(1,)]
    assert compare(cut, WORLD) == []
    assert {rank for rank, log in cut.items() if log.cut} == {0}
