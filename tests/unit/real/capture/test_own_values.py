"""What a rank finds by itself (its data, its clock, its random numbers) and what all agree on before they act on it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import HASH_SEED, windtunnel

from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.checks import LARGE, Checks
from windtunnel.real.capture.source.branches import deciding_places
from windtunnel.studies.programs.rank_classes.findings import CallLog

HEAD = """
import datetime, random, time
import torch, torch.nn as nn, torch.distributed as dist
dist.init_process_group("gloo")
m = nn.Linear(16, 24)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
begun = last = time.time()
day = datetime.datetime.now()
count = [100]
"""
# Whatever draws is run again in new processes with other orders of sets.
DRAWN = HEAD.replace("[100]", "[random.randint(1, 1000)]\ndist.broadcast_object_list(count)")
LOOP = """
for i in range(6):
    loss = m(torch.randn(8, 16)).square().sum()
    loss.backward()
    dist.all_reduce(torch.zeros(count[0]))
WHAT
    for p in m.parameters(): dist.all_reduce(p.grad)
    opt.step(); opt.zero_grad()
"""
STOPS = """
    bad = torch.tensor([float(WHEN)])
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad.item(): MORE
"""
SCRIPTS = {
    "a clock that says something, beside one that all agree on": (
        "    if time.time() - last > 10: print('still here')" + STOPS.replace("WHEN", "time.time() - begun > 3600"),
        "break",
        "",
    ),
    "a loss that is told, beside one that all agree on": (
        "    if loss.item() > 100: print('large')" + STOPS.replace("WHEN", "loss.item() > 100"),
        "continue",
        "",
    ),
    "the order of a set that is printed, beside a number that is drawn and broadcast": (
        "    for name in {'a', 'b', 'c'}: print(name)",
        "",
        "",
    ),
    "a clock of its own, beside one that all agree on": (
        "    if time.monotonic() - last > 10: continue" + STOPS.replace("WHEN", "time.time() - begun > 3600"),
        "break",
        "clock",
    ),
    "a clock of the last rank, which does something else than the first": (
        "    if dist.get_rank() and time.time() - last > 10: continue\n    if dist.get_rank(): m(torch.randn(4, 16))",
        "",
        "clock",
    ),
    "a date of its own": (
        "    if (datetime.datetime.now() - day).total_seconds() > 10: continue",
        "",
        "clock",
    ),
    "a clock of its own, and a date that is sent": (
        "    dist.broadcast_object_list([datetime.datetime.now()])\n    if time.time() - last > 10: continue",
        "",
        "clock",
    ),
    "a date by its other name": (
        "    if (datetime.datetime.today() - day).total_seconds() > 10: continue",
        "",
        "clock",
    ),
    "a clock of a rank in the middle": (
        "    if dist.get_rank() == 1 and time.time() - last > 10: continue",
        "",
        "clock",
    ),
    "a loss that the last rank alone has": (
        "    if dist.get_rank() == dist.get_world_size() - 1 and loss.item() < 1e-6: continue",
        "",
        "data",
    ),
    "a loss of its own as a whole number, which infinity is not": (
        "    if int(loss.item()) > 100: continue",
        "",
        "data",
    ),
    "a loss of its own, beside one that all agree on": (
        "    if loss.item() < 1e-6: continue" + STOPS.replace("WHEN", "loss.item() > 100"),
        "continue",
        "data",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_all_agree_on_is_no_finding_whatever_stands_beside_it(name: str, tmp_path: Path) -> None:
    what, after, kind = SCRIPTS[name]
    source = (DRAWN if "drawn" in name else HEAD) + LOOP.replace("WHAT", what.replace("MORE", after))
    if "monotonic" in what:
        source = source.replace("last = time.time()", "time.time(); last = time.monotonic()")
    line = next((number for number, text in enumerate(source.splitlines(), 1) if ": continue" in text), 0)
    assert findings(source, tmp_path) == ([(kind, f"train.py:{line}")] if kind else [])


@pytest.mark.parametrize(("line", "replaced"), [("time.time()", False), ("datetime.now()", True)])
def test_dates_are_of_another_class_only_where_one_is_looked_at(line: str, replaced: bool, tmp_path: Path) -> None:
    """pandas derives from `datetime.datetime` in C: imported after that, it ended the process by SIGSEGV."""
    (tmp_path / "train.py").write_text(f"begun = {line}\n")
    program = (
        "import datetime; from windtunnel.real.capture.processes.clock import quicken_clock; real = datetime.datetime;"
        f"quicken_clock([({str(tmp_path / 'train.py')!r}, 1)]); print(datetime.datetime is not real)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(replaced)]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("    if loss.item() > 100: raise ValueError('diverged')", ("(where it is large)", "ValueError: diverged")),
        (
            "    if time.time() - last > 10: raise ValueError('late')",
            ("(where that goes faster)", "ValueError: late"),
        ),
        (
            "    names = list({'a', 'b', 'c', 'd', 'e'})\n    if sys.flags.hash_randomization: 1 / 0",
            ("with another order of sets", "ZeroDivisionError"),
        ),
    ],
)
def test_a_rank_that_does_not_come_through_when_it_is_run_again_is_named(
    what: str, said: tuple[str, ...], tmp_path: Path
) -> None:
    source = (HEAD + LOOP.replace("WHAT", what)).replace("import datetime", "import sys, datetime")
    notes = [text for text in captured(source, tmp_path)["notes"] if "run again" in text]
    assert notes
    assert all(part in text for text in notes for part in ("rank 0, run again", "is not known", *said)), notes


@pytest.mark.parametrize(("contradicts", "tried"), [(False, [math.inf, LARGE]), (True, [math.inf])])
def test_a_large_number_is_tried_where_infinity_may_be_at_fault(
    contradicts: bool, tried: list[float], tmp_path: Path
) -> None:
    """Lengths of parts that fit no tensor (of experts' tokens, in an all-to-all) are no fault of infinity's."""

    class Ranks:
        folder, values = tmp_path, list[float]()

        def again(self, rank: int, task: dict[str, Any]) -> dict[str, object]:
            self.values.append(task["own"])
            return {"status": "error", "contradicts": contradicts, "message": "of the script"}

    ranks = Ranks()
    checks = Checks(Launch("train.py", (), False, 2, 2), "cuda", ranks)  # type: ignore[arg-type]
    assert checks._parted(0, CallLog(0), {"own": math.inf}, "with another value") is None
    assert ranks.values == tried
    assert "(of the script)" in checks.notes[0]


# The command with one of its orders of sets: each is a process that imports PyTorch; how many, test_set_order.py knows.
ONE_SEED = """
from windtunnel.faces.cli import main
from windtunnel.real.capture import checks
checks.HASH_SEEDS = checks.HASH_SEEDS[:1]
raise SystemExit(main())
"""


def findings(source: str, folder: Path) -> list[tuple[str, str]]:
    """Kinds and lines of what a capture says of a script at 4 ranks."""
    return [(one["kind"], one["line"]) for one in captured(source, folder)["findings"]]


def captured(source: str, folder: Path) -> dict[str, Any]:
    """What a capture says of a script at 4 ranks."""
    pytest.importorskip("torch")
    (folder / "train.py").write_text(source)
    (folder / "command.py").write_text(ONE_SEED)
    environment = {name: value for name, value in os.environ.items() if name != HASH_SEED}
    words = ("capture", "--world-size", "4", "--device", "cpu", "--json", "train.py")
    done = windtunnel(*words, cwd=folder, env=environment, module=str(folder / "command.py"))
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


PIPELINE = """
import math
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
dist.init_process_group("gloo")
r, w = dist.get_rank(), dist.get_world_size()
m = nn.Linear(16, 16)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
schedule = Schedule1F1B(PipelineStage(m, r, w, torch.device("cpu")), 4, loss_fn=nn.functional.mse_loss)
for i in range(5):
    losses, bad = [], torch.zeros(1)
    if r == 0: schedule.step(torch.randn(8, 16))
    elif r == w - 1: schedule.step(target=torch.randn(8, 16), losses=losses)
    else: schedule.step()
    if r == w - 1:
        bad.fill_(not math.isfinite(torch.stack(losses).mean().item()))
    AGREE
    if not bad.item():
        norm = sum(p.grad.square().sum() for p in m.parameters())
        dist.all_reduce(norm)
        opt.step()
    opt.zero_grad()
"""


@pytest.mark.parametrize(("agree", "kinds"), [("dist.broadcast(bad, w - 1)", []), ("pass", ["data"])])
def test_the_last_stage_of_a_pipeline_skips_on_its_loss_alone(agree: str, kinds: list[str], tmp_path: Path) -> None:
    assert [kind for kind, _ in findings(PIPELINE.replace("AGREE", agree), tmp_path)] == kinds


HELPER = "def agree(late):\n    flag = torch.tensor(late)\n    dist.all_reduce(flag)\n    return flag.item()\n"


@pytest.mark.parametrize(
    ("source", "decides"),
    [
        ("x = loss.item()\nif x > 1: stop()\n", True),
        ("x = loss.item()\nif agree(x > 1): stop()\n", False),
        ("x = loss.item()\nx = agree(x)\nif x > 1: stop()\n", False),
        ("x = loss.item()\nfound = [x]\ndist.broadcast_object_list(found)\nx = found[0]\nif x > 1: stop()\n", False),
        ("self.flag.fill_(loss.item() > 1)\ndist.all_reduce(self.flag)\nif self.flag.item(): stop()\n", False),
        ("self.flag = tensor(loss.item())\ndist.all_reduce(self.flag)\nif self.flag.item(): stop()\n", False),
        ("flag.fill_(loss.item() > 1)\nif flag.item(): stop()\n", True),
        ("self.x = loss.item()\nif self.y: dist.all_reduce(self.z)\n", False),  # another attribute
        ("x = loss.item()\nif x > 1: stop()\nshown = tensor(x)\ndist.all_reduce(shown)\n", True),  # too late
        ("if loss.item() > 1:\n    flag.fill_(1)\ndist.all_reduce(flag)\nif flag: stop()\n", False),
        ("if loss.item() > 1:\n    flag.fill_(1)\n    continue\ndist.all_reduce(flag)\nif flag: stop()\n", True),
        ("def bad():\n    return loss.item() > 1\nif agree(bad()): stop()\n", False),
        ("if loss.item() > 1:\n    flag.fill_(1)\n    dist.barrier()\ndist.all_reduce(flag)\n", True),
        ("if loss.item() > 1:\n    flag.fill_(1)\nelse:\n    dist.send(x, 1)\ndist.all_reduce(flag)\n", True),
        (
            "def low():\n    dist.recv(x)\ndef high():\n    low()\n"
            "if loss.item() > 1:\n    flag.fill_(1)\n    high()\ndist.all_reduce(flag)\n",
            True,
        ),
        ("for x in d:\n    v = loss.item()\n    if v < 9: dist.all_reduce(g)\n    v = agree(v)\n", True),
        ("for x in d:\n    v = loss.item()\n    w = v + 1\n    if w < 9: f()\n    v = agree(v)\n", True),
        ("def f():\n    v = loss.item()\n    if v < 9: g()\ndef h(v):\n    v = agree(v)\n", True),  # another `v`
        ("if late:\n    v = agree(loss.item())\nelse:\n    v = 0\nif v: stop()\n", False),
        ("stop = False\nwhile not stop:\n    v = loss.item()\n    v = agree(v)\n    stop = v > 1\n", False),
        ("stop = 0\nwhile not stop:\n    stop = loss.item() > 1\n    stop = agree(stop)\n", False),
        ("def all():\n    dist.all_reduce(flag)\nflag = t(loss.item())\nall()\nif flag: stop()\n", False),
        ("def step():\n    dist.all_reduce(g)\n    return loss.item()\nif step() > 1: stop()\n", True),
    ],
)
def test_a_value_decides_until_it_has_been_exchanged(source: str, decides: bool, tmp_path: Path) -> None:
    path, helper = tmp_path / "train.py", tmp_path / "helper.py"
    path.write_text(source)
    helper.write_text(HELPER)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "loss.item()" in text)
    place = (str(path), line)
    assert deciding_places([str(path), str(helper)], [place]) == ([place] if decides else [])
