"""The peak of a step from the allocator's log."""

import os
from pathlib import Path
from typing import Any

import pytest
from forked import windtunnel

from windtunnel.real.emulate.memory import MARK, OPTIMIZER_MARK, peak_of, read_log


def event(ts: float, size: int, address: int) -> dict[str, Any]:
    arguments = {"Device Type": 0, "Bytes": size, "Addr": address}
    return {"ph": "i", "name": "[memory]", "ts": ts, "tid": 1, "args": arguments}


def mark(ts: float, name: str = MARK) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": 0.1, "tid": 1}


def span(ts: float, end: float, name: str, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": end - ts, "tid": 1}


def test_the_peak_its_op_its_line_and_its_categories(tmp_path: Any) -> None:
    (tmp_path / "train.py").write_text("")
    events = [
        mark(0.0),
        event(1.0, 100, 10),  # a gradient of the first step
        mark(2.0),
        event(3.0, -100, 10),  # is let go in the second
        span(4.0, 5.0, "aten::mm"),
        span(3.9, 9.0, "train.py(33): main", "python_function"),
        event(4.5, 500, 11),  # an activation
        span(5.5, 6.5, "c10d::allreduce_"),
        event(6.0, 50, 12),
        span(6.6, 7.5, "aten::add"),
        event(7.0, 300, 13),  # the gradient of this step: the peak
        event(8.0, -500, 11),
        mark(8.5, OPTIMIZER_MARK),
        event(8.6, 400, 14),
        event(8.7, -400, 14),
        mark(9.0),
    ]
    log = read_log({"traceEvents": events})
    peak = peak_of(log, 1000, {"parameters": {1: 600}, "optimizer": {2: 400}}, {13}, [str(tmp_path)])
    assert peak is not None
    assert peak.allocated_bytes == 1000 + 500 + 50 + 300
    assert (peak.op, peak.place) == ("aten::add", "train.py:33")
    assert peak.categories == {
        "parameters": 600, "optimizer": 400, "gradients": 300, "communication": 50, "activations and temporaries": 500,
    }  # fmt: skip
    assert sum(peak.categories.values()) == peak.allocated_bytes
    assert peak.events == 7


def test_what_was_there_before_is_let_go_at_its_size() -> None:
    """The profiler does not know the size of what it did not see allocated."""
    events = [mark(0.0), mark(1.0), event(2.0, 0, 5), event(3.0, 100, 6), mark(4.0)]
    peak = peak_of(read_log({"traceEvents": events}), 1000, {"gradients": {5: 300}, "parameters": {7: 700}})
    assert peak is not None
    assert peak.allocated_bytes == 1000
    assert peak.op == ""


def test_the_same_address_later_is_no_gradient() -> None:
    """A temporary lay where the gradient comes to lie."""
    events = [
        *(mark(0.0), mark(1.0), event(2.0, 800, 5), event(3.0, -800, 5), event(4.0, 100, 5)),
        *(mark(5.0, OPTIMIZER_MARK), mark(6.0)),
    ]
    peak = peak_of(read_log({"traceEvents": events}), 0, {}, {5})
    assert peak is not None
    assert peak.categories == {"activations and temporaries": 800}


def test_a_log_without_a_whole_step_has_no_peak() -> None:
    assert peak_of(read_log({"traceEvents": [mark(0.0), event(1.0, 5, 1)]}), 0, {}) is None


def test_what_was_let_go_without_a_line_is_no_longer_there() -> None:
    """A gradient of before the log: gone when the last step begins, or its address taken by something new."""
    events = [mark(0.0), event(0.5, 200, 6), mark(1.0), event(3.0, 100, 8), mark(4.0)]
    owned = {"gradients": {5: 300, 6: 150}, "parameters": {7: 700}}
    peak = peak_of(read_log({"traceEvents": events}), 1150, owned, left={6, 7})
    assert peak is not None
    assert peak.allocated_bytes == 700 + 200 + 100


LOOP = """
import sys
from pathlib import Path
import torch
from windtunnel.real.emulate.memory import MemoryWatch

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(3)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
watch = MemoryWatch()

def step():
    optimizer.zero_grad(set_to_none=sys.argv[1] == "True")
    model(torch.ones(2, 1024)).sum().backward()
    watch.note_gradients([optimizer])
    optimizer.step()

step()
assert watch.start([optimizer], stack=False)
watch.mark([optimizer])
for _ in range(2):
    step()
    watch.mark([optimizer])
print(watch.stop(Path(sys.argv[2]), []).allocated_bytes)
"""


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_printed_peak_of_a_real_loop_is_what_is_allocated(set_to_none: bool, tmp_path: Path) -> None:
    """In a process of its own: the log is the whole process's, and so holds what other tests leave to be collected."""
    pytest.importorskip("torch")
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    done = windtunnel(str(set_to_none), str(tmp_path), cwd=tmp_path, env={**os.environ}, module=str(script))
    assert done.returncode == 0, done.stderr
    # Weights and as many gradients. A new gradient meets the one that it is added to where those are kept.
    weight = 1024 * 1024 * 4
    assert int(done.stdout) == pytest.approx((6 if set_to_none else 7) * weight, rel=0.005)
