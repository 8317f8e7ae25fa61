"""The order of a set is another in each process: where a source takes it, and what comes of that."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from forked import HASH_SEED, windtunnel

from windtunnel.faces.report.captured import captured_document
from windtunnel.real.capture.source.set_order import numbers_drawn, orders_taken


@pytest.mark.parametrize(
    "line",
    [
        "for n in {'a', 'b'}: print(n)",
        "for n in set(names): print(n)",
        "order = list(frozenset(names))",
        "first = next(iter({str(n) for n in names}))",
        "found = {*names}\nfor i, n in enumerate(found): print(n)",
        "class A:\n    def f(self):\n        self.seen = set()\n        return [n for n in self.seen]",
        "def f(kinds: set[str]):\n    return tuple(kinds)",
        "found = set(names)\nrest = found\nrest.pop()",
        "for n in one.keys() - other.keys(): print(n)",
        "for n in set(names) | more: print(n)",
        "owner = hash(name) % 8",
    ],
)
def test_a_set_whose_order_is_taken_is_found_at_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(line + "\n")
    assert orders_taken({str(path): "train.py"}) == [("train.py", line.count("\n") + 1)]


@pytest.mark.parametrize(
    "line",
    [
        "for n in sorted({'a', 'b'}): print(n)",
        "if n in {'a', 'b'}: print(n)",
        "count = len(set(names))",
        "for i in {1, 2, 3}: print(i)",
        "found = sorted(n for n in {'a', 'b'})",
        "most = max(len(n) for n in set(names))",
        "again = {n.lower() for n in {'a', 'b'}}",
        "names = ['a', 'b']\nfor n in names: print(n)",
        "for n in {'a': 1, 'b': 2}: print(n)",
        "last = names.pop()",
    ],
)
def test_what_has_one_order_is_not(line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(line + "\n")
    assert orders_taken({str(path): "train.py"}) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f(x):\n    if np.random.rand() < 0.5: return x\n", [2]),
        ("if np.random.random() < 0.5:\n    g()\n", [1]),
        ("torch.manual_seed(0)\nif np.random.random() < 0.5:\n    g()\n", [2]),
        ("x = np.random.rand(4)\n", []),
        ("np.random.seed(0)\nif np.random.rand() < 0.5: print()\n", []),
        ("set_seed(0)\nif np.random.random() < 0.5: print()\n", []),
        ("random.seed(0)\nif np.random.random() < 0.5: print()\n", [2]),
        ("args.seeds.append(1)\nif np.random.random() < 0.5: print()\n", [2]),
        ("np.random.seed()\nif np.random.random() < 0.5: print()\n", [2]),
        ("def set_seed(n): random.seed(n)\nset_seed(0)\nif np.random.random() < 0.5: print()\n", [3]),
        ("from numpy.random import seed\nseed(0)\nif np.random.random() < 0.5: print()\n", []),
        ("r = np.random.default_rng(0)\nif np.random.random() < 0.5: print()\n", []),
        ("pl.seed_everything(0)\nif np.random.random() < 0.5: print()\n", []),
        ("count = [np.random.randint(1, 4)]\ndist.broadcast_object_list(count)\nif count[0] > 2: g()\n", []),
    ],
)
def test_numbers_that_are_drawn_and_decide(source: str, lines: list[int], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    assert numbers_drawn({str(path): "train.py"}) == [("train.py", line) for line in lines]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("names = list(set(p)) if r == 0 else empty\ndist.broadcast_object_list(names)\n", []),
        ("seed = [hash('run') % 3]\ndist.broadcast_object_list(seed)\nfor _ in range(seed[0]): g()\n", []),
        ("for n in set(p):\n    dist.broadcast(p[n], 0)\n", [1]),
        ("xs = list(set(p))\nx = torch.cat(xs)\ndist.all_reduce(x)\n", [1]),  # exchanged, and mixed
    ],
)
def test_an_order_that_is_broadcast_is_that_of_all(source: str, lines: list[int], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    assert orders_taken({str(path): "train.py"}) == [("train.py", line) for line in lines]


SCRIPT = """
import torch, torch.nn as nn, torch.distributed as dist
dist.init_process_group("gloo")
m = nn.Linear(16, 24)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
stats = {word: torch.zeros(SIZE) for word in ("loss", "norm", "rate", "right", "seen")}
for i in range(2):
    m(torch.randn(8, 16)).sum().backward()
    sums = {word: value + 1 for word, value in stats.items()}
    for word in ORDER:
        dist.all_reduce(sums[word])
    opt.step(); opt.zero_grad()
"""
HARMLESS = "    words = list(set(stats))\n"


@pytest.mark.parametrize(
    ("size", "order", "effect"),
    [
        ("len(word) + ord(word[0])", "set(stats)", "hang"),
        ("4", "set(stats)", "silent corruption"),
        ("4", "sorted(set(stats))", ""),
    ],
)
def test_tensors_that_are_reduced_in_the_order_of_a_set_are_told(
    size: str, order: str, effect: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT.replace("SIZE", size).replace("ORDER", order))
    environment = {name: value for name, value in os.environ.items() if name != HASH_SEED}
    words = ("capture", "--world-size", "2", "--device", "cpu", "--json", "train.py")
    done = windtunnel(*words, cwd=tmp_path, env=environment)
    document = json.loads(done.stdout)
    found = document["findings"]
    if done.returncode == 0:
        lines = [line for view in captured_document(document, "out", None).views for line in getattr(view, "lines", ())]
        assert any(line.startswith("silent corruption: ") for line in lines) == bool(effect)  # printed, too
    assert [(one["kind"], one["effect"], one["line"]) for one in found] == (
        [("set-order", effect, "train.py:10")] if effect else []
    )
    assert all("train.py:11" in one["text"] for one in found)


def test_what_differs_under_the_same_order_too_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from windtunnel.real.capture.arguments import Launch
    from windtunnel.real.capture.launch import Options, capture_job

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    # A process that plays a rank again loads less before it.
    script = SCRIPT.replace("import torch,", "import sys, torch,", 1).replace("ORDER", "sorted(stats)")
    script += HARMLESS
    (tmp_path / "train.py").write_text(
        script.replace("SIZE", "4 if 'torch.distributed.pipelining' in sys.modules else 5")
    )
    launch = Launch("train.py", (), is_module=False, world_size=2, local_world_size=2)
    assert capture_job(launch, Options(device="cpu"), tmp_path / "out")["findings"] == []
    assert os.environ.get(HASH_SEED) is None


def test_a_rank_is_run_again_under_as_many_seeds_as_it_and_those_it_waits_for_have_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided again and again of one capture; in the place of each run again is the run that there was."""
    pytest.importorskip("torch")
    from windtunnel.real.capture import checks
    from windtunnel.real.capture.arguments import Launch
    from windtunnel.real.capture.launch import Options, capture_job

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    seeds: dict[float, list[str]] = {}
    compare = checks.Checks.compare_orders_of_sets

    def compare_often(self: checks.Checks, task: dict[str, object]) -> None:
        for cpu_s in (1.0, 12.0, 40.0):
            spent, seeds[cpu_s] = iter(range(99)), []
            monkeypatch.setattr(checks, "ended_children_cpu_s", lambda: cpu_s * next(spent))  # noqa: B023
            monkeypatch.setattr(
                checks.Checks,
                "_run_under",
                lambda self, seed, *rest: seeds[cpu_s].append(seed) or nullcontext(self._workers),  # noqa: B023
            )
            compare(self, task)

    monkeypatch.setattr(checks.Checks, "compare_orders_of_sets", compare_often)
    (tmp_path / "train.py").write_text(SCRIPT.replace("SIZE", "4").replace("ORDER", "sorted(stats)") + HARMLESS)
    launch = Launch("train.py", (), is_module=False, world_size=2, local_world_size=2)
    assert capture_job(launch, Options(device="cpu"), tmp_path / "out")["findings"] == []
    assert seeds == {cpu_s: list(checks.HASH_SEEDS[:runs]) for cpu_s, runs in ((1.0, 3), (12.0, 2), (40.0, 1))}
