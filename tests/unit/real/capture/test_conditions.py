"""Steps and ranks that a script's source treats on their own: found in its text and in the values that it runs with."""

from __future__ import annotations

import ast
import sys
import weakref
from pathlib import Path

import pytest

from windtunnel.real.capture.source import conditions
from windtunnel.real.capture.source.branches import branches_on, deciding_clocks
from windtunnel.real.capture.source.conditions import (
    Loop,
    calls_not_reached,
    ranks_named,
)
from windtunnel.real.capture.source.trees import nodes_of, parts_of, tree_of

# What a step does, the steps that run, and after how many it repeats.
PERIODS = {
    "plain": ("for i in range(12):\n    ended()", 1),
    "every fourth": ("for i in range(12):\n    if (i + 1) % 4 == 0: sync()\n    ended()", 4),
    "two that meet": ("for i in range(40):\n    if i % 4 == 0: sync()\n    if i % 6 == 0: save()\n    ended()", 12),
    "accumulation": ("for i in range(24):\n    if (i + 1) % 8 == 0: step(); ended()", 1),
    "fifty": ("K = 50\nfor i in range(120):\n    if i % K == K - 1: outer.sync()\n    ended()", 50),
    "in a function": (
        "def train(every):\n    for i in range(9):\n        if i % every == 0: sync()\n        ended()\ntrain(3)",
        3,
    ),
    "an attribute": ("args.every = 5\nfor i in range(15):\n    if i % args.every == 0: evaluate()\n    ended()", 5),
    "counted by itself": ("i = 0\nwhile i < 14:\n    i += 1\n    if i % 7 == 0: sync()\n    ended()", 7),
    "an index": ("sizes = (1, 2, 3)\nfor i in range(7):\n    x = sizes[i % len(sizes)]\n    ended()", 3),
    "a counter": ("n = 0\nfor i in range(14):\n    ended()\n    n += 1\n    if n == 5: n = 0; average()", 5),
    "a counter that is passed": (
        "n = 0\nfor i in range(14):\n    ended()\n    n += 2\n    if n >= 5: n = 0; average()",
        3,
    ),
    "a check": ("for i in range(9):\n    if 12 % 4: raise ValueError\n    if i >= 4: break\n    ended()", 1),
    "printing": ("for i in range(12):\n    if i % 3 == 0: print(i)\n    ended()", 1),
    "too far apart": ("for i in range(5):\n    if i % 1000 == 999: save()\n    ended()", 1),
    "a rank's": ("rank = 3\nfor i in range(5):\n    if rank % 2 == 0: sync()\n    ended()", 1),
}


def run(text: str, folder: Path, most: int = 1000) -> Loop:
    path, loop, count = folder / "train.py", Loop(), 0
    path.write_text(text)
    for known in (
        conditions.tree_of,
        conditions.functions_of,
        conditions.calls_of,
        conditions.conditions_of,
        conditions._rounds_of,
        conditions._calls_of,
        conditions._ends_of,
        conditions._leaves_of,
    ):
        known.cache_clear()  # another script of the same name

    def ended() -> None:
        nonlocal count
        count += 1
        if count <= most:
            loop.look(sys._getframe(1), lambda name: "train.py" if name == str(path) else "")

    class Anything:
        every = 0

        def __getattr__(self, name: str) -> object:
            return lambda *_: None

    names = {name: lambda *_: None for name in ("sync", "save", "step", "evaluate", "average")}
    exec(compile(text, str(path), "exec"), {"ended": ended, "args": Anything(), "outer": Anything(), **names})
    return loop


@pytest.mark.parametrize("name", PERIODS)
def test_a_period_follows_from_conditions_and_what_they_run_with(name: str, tmp_path: Path) -> None:
    text, period = PERIODS[name]
    assert run(text, tmp_path).period() == period


def test_what_was_not_seen_is_said_with_its_line(tmp_path: Path) -> None:
    loop = run(PERIODS["too far apart"][0], tmp_path, most=2)
    assert loop.unseen(2) == ["train.py:2: `i % 1000` holds every 1,000 steps, and 2 were seen"]


def test_a_step_that_is_named_is_waited_for(tmp_path: Path) -> None:
    loop = run("for i in range(9):\n    if i == 5: sync()\n    ended()", tmp_path, most=2)
    assert loop.steps_more(2) == 5
    assert loop.unseen(2) == ["train.py:2: `i == 5` holds in 5 steps, and 2 were seen"]


def test_loops_inside_the_loop_and_what_lies_behind_them(tmp_path: Path) -> None:
    epochs = "x = [0] * 9\nfor epoch in range(3):\n    for part in enumerate(x):\n        ended()\n    evaluate()"
    loop = run(epochs, tmp_path, most=2)
    assert loop.rounds() == 9
    assert loop.unseen(2) == [
        "train.py:3: `for ... in enumerate(x)` goes round 9 times, and 2 steps were seen: nothing behind it"
    ]
    assert loop.unseen(20) == []
    assert run("for epoch in range(3):\n    ended()", tmp_path).rounds() == 0
    assert run("for epoch in range(3):\n    for _ in range(4): step()\n    ended()", tmp_path).rounds() == 0


def test_rounds_that_may_be_left_by_some_ranks_are_named(tmp_path: Path) -> None:
    body = "x = [1] * 9\nwhile True:\n    try:\n        x.pop()\n    except IndexError:\n        break\n    ended()\n"
    left = "for k in range(2):\n    if len(x) > k:\n        continue\n    if k == 7:\n        break\n    ended()\n"
    says = "leaves a round: whether it does on some ranks alone was not seen behind step 20"
    inner = "for k in range(2):\n    for p in [1, None]:\n        if p is None:\n            continue\n    ended()\n"
    assert not any(says in text for text in run(inner, tmp_path).unseen(2))  # a loop within the step
    assert run(body, tmp_path).unseen(20) == [f"train.py:5: `except IndexError` {says}"]
    (other := tmp_path / "other").mkdir()
    assert run(f"x = []\n{left}", other).unseen(20)[1:] == [f"train.py:3: `if len(x) > k` {says}"]


def test_conditions_where_nobody_looks_are_named(tmp_path: Path) -> None:
    helper = (
        "def odd(n):\n    return n % 2\nodd(3)\ndef due(i):\n    return i % 4 == 0\n"
        "def after(i):\n    if due(i): sync()\nfor i in range(3):\n    after(i)\n    ended()"
    )
    loop = run(helper, tmp_path)
    path = str(tmp_path / "train.py")
    assert loop.not_met({path: "train.py"}) == ["train.py:5: `i % 4`"]
    assert run("for i in range(3):\n    if i % 2 == 0: sync()\n    ended()", tmp_path).not_met({}) == []


def test_words_that_change_are_a_reason_to_look_on(tmp_path: Path) -> None:
    turns = 'for turn in ("one", "{}", "one"):\n    if turn == "one": sync()\n    ended()'
    assert run(turns.format("other"), tmp_path).changes()
    assert not run(turns.format("one"), tmp_path).changes()


def test_ranks_that_a_source_names_come_first(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "if step == 100: save()\nif rank == 37: skip()\nif rank < 64: pass\nif local_rank in (3, 5): pass\n"
        "if rank == 5000: pass\nif size > 9: pass\nif n == 2: pass\n"
    )
    assert sorted(ranks_named([str(path)], 1024)[:5]) == [3, 5, 37, 63, 64]
    assert ranks_named([str(path)], 1024)[5:] == [100]  # it may be one; 2 and 9 hardly, 5,000 is none


def test_calls_that_nobody_came_to(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "dist.all_reduce(\n    x,\n)\nx.gather(0)\nif late:\n    dist.barrier()\ntorch.distributed.send(x, 1)\n"
    )
    names = ("all_reduce", "barrier", "send", "gather")
    assert calls_not_reached({str(path): "train.py"}, {"train.py:2"}, names) == [
        "train.py:6 (barrier)",
        "train.py:7 (send)",
    ]


def test_what_is_read_decides_a_branch_where_a_test_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "loss = f()\nvalue = loss.item()\nshown = loss.item()\nif value < 1:\n    g()\n"
        "if loss.item() > 2: g()\nprint(shown)\n"
    )
    assert [line for line in range(1, 8) if branches_on(str(path), line)] == [1, 2, 4, 6]


def test_a_clock_that_decides_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "last = time.time()\nif time.time() - last > 600: save()\nbegun = time.perf_counter()\n"
        "print(time.perf_counter() - begun)\n"
    )
    assert deciding_clocks([str(path)]) == [(str(path), 1), (str(path), 2)]
    agreed = tmp_path / "agreed.py"
    agreed.write_text("late = torch.tensor(time.time() > end)\naccelerator.reduce(late)\nif late: save()\n")
    assert deciding_clocks([str(agreed)]) == []


HELPER = "def agree(late):\n    flag = torch.tensor(late)\n    dist.all_reduce(flag)\n    return flag.item()\n"


@pytest.mark.parametrize(
    ("source", "is_agreed"),
    [
        (
            "if rank == 0 and time.time() > end:\n    flag.fill_(1)\ndist.broadcast(flag, 0)\nif flag.item(): stop()\n",
            True,
        ),
        ("if time.time() > end:\n    stop = [True]\ndist.broadcast_object_list(stop)\nif stop[0]: end()\n", True),
        ("if agree(time.time() > end): stop()\n", True),  # in another file
        ("if time.time() > end:\n    flag.fill_(1)\nif flag.item(): stop()\n", False),
        ("if time.time() > end:\n    x = f()\n    dist.all_reduce(x)\n", False),
        ("while time.time() < end:\n    x = f()\n    dist.all_reduce(x)\n", False),
    ],
)
def test_a_clock_whose_verdict_is_exchanged_decides_for_all(source: str, is_agreed: bool, tmp_path: Path) -> None:
    path, helper = tmp_path / "train.py", tmp_path / "helper.py"
    path.write_text(source)
    helper.write_text(HELPER)
    places = [] if is_agreed else [(str(path), 1)]
    assert deciding_clocks([str(path), str(helper)]) == places


@pytest.mark.parametrize(
    ("body", "rounds"),
    [
        ("ended()", 30),
        ("ended()\n    if i >= most: break", 9),
        ("ended()\n    if i == args.every: print(i); break", 30),  # at 0: never
        ("ended()\n    if i > most: print(i)", 30),
        ("for k in range(4):\n        ended()\n        if k == 2: break", 30),  # of the inner one
        ("for k in range(4):\n        ended()\n    if i > most: break", 9),
        ("ended()\n    n += 1\n    if n >= most: break", 9),
        ("ended()\n    n = n + 1\n    if n >= most: break", 9),
        ("ended()\n    if n >= most: break", 30),  # it never grows
        ("ended()\n    if i % 7 == 6: n += 1\n    if n >= most: break", 30),  # not in each round
        ("ended()\n    if i % 7: continue\n    n += 1\n    if n >= most: break", 30),
    ],
)
def test_a_loop_goes_round_as_often_as_it_has_items_or_until_it_is_left(body: str, rounds: int, tmp_path: Path) -> None:
    loop = run(f"most = 9; n = 0\nfor i in range(30):\n    {body}\n", tmp_path)
    assert loop.lengths["train.py", 2, "for ... in range(30)"] == rounds


class Held:
    """Stands for a tensor."""


def test_looking_keeps_nothing_of_the_script_alive(tmp_path: Path) -> None:
    """Rank 0 looks and the others do not: what it kept would be memory of its own, and a class of its own."""
    path, loop = tmp_path / "train.py", Loop()
    path.write_text(
        "def train():\n    mine = None\n    for i in range(3):\n        if i % 2: sync()\n        loss = Held()\n"
        "        kept = ref(loss)\n        ended()\n        del loss\n        gone.append(kept() is None)\n"
        "def saves():\n    a = 5\n    mine = locals()\n    for i in range(2):\n        ended()\n"
        "    gone.append(mine['a'] == 5)\n"
        "train()\nsaves()\n"
    )
    gone: list[bool] = []
    names = {
        **{"Held": Held, "ref": weakref.ref, "gone": gone, "sync": lambda: None},
        "ended": lambda: loop.look(sys._getframe(1), lambda name: "train.py" if name == str(path) else ""),
    }
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert gone == [True] * 4
    assert loop.period() == 2


def test_all_that_is_below_a_node_is_found_without_a_walk() -> None:
    shared = ast.expr_context | ast.operator | ast.unaryop | ast.cmpop | ast.boolop
    nodes = [node for node in ast.walk(tree_of(__file__)) if not isinstance(node, shared)]
    for node in nodes:
        below = [part for part in ast.walk(node) if not isinstance(part, shared)]
        assert sorted(map(id, parts_of(node))) == sorted(map(id, below))
    assert sorted(map(id, nodes)) == sorted(map(id, nodes_of(__file__)))


def test_a_node_stands_in_the_innermost_function_around_it() -> None:
    here = {
        (function, node.value)
        for function, node in zip(conditions.functions_of(__file__), nodes_of(__file__), strict=True)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("where ")
    }

    def inner() -> str:
        return "where it is inside"

    names = {value: name for (name, _), value in here}
    assert names[inner()] == "inner"
    assert names["where it is outside"] == test_a_node_stands_in_the_innermost_function_around_it.__name__
