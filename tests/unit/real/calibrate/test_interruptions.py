"""A calibration that something stops: one message, and what was measured is kept and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from windtunnel.errors import InputFileError, UserError  # noqa: E402
from windtunnel.physics.hardware import parse_cluster  # noqa: E402
from windtunnel.real.calibrate import calibrate, session  # noqa: E402
from windtunnel.real.calibrate.device import gpu_errors  # noqa: E402
from windtunnel.real.calibrate.journal import journal_path  # noqa: E402
from windtunnel.real.calibrate.timing import Timing  # noqa: E402


def measured(out: Path, **options: Any) -> Any:
    return calibrate(out, device="cpu", budget_s=1.0, only=("copy",), begun=0.0, **options)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is really measured: every call takes 0.1 ms, and looking at the clock a millisecond."""

    def measure(calls: Sequence[Callable[[], object]], *rest: object) -> Timing:
        calls[0]()
        return Timing(1e-4, 1e-4, 1e-4, 3, 0)

    clock = SimpleNamespace(monotonic=count(0.0, 1e-3).__next__)
    monkeypatch.setattr(session, "time", clock)
    for name in ("calls_beside_ops", "new_pages", "new_shapes"):
        monkeypatch.setattr(session.host_costs, name, lambda *given: {})
    monkeypatch.setattr(session.host_costs, "eager_launch_s", lambda *given: 1e-6)
    monkeypatch.setattr(session, "keep_pages", lambda: True)
    monkeypatch.setattr(session, "measure", measure)
    monkeypatch.setattr(session, "Pool", lambda *given: None)
    monkeypatch.setattr(session, "build", lambda *given: [lambda: None])


def failing_once(monkeypatch: pytest.MonkeyPatch, error: BaseException, at: int = 2) -> None:
    """The `at`-th copy fails, the probe's included. One is measured whatever the budget: there is no file without."""
    copies: list[None] = []

    def build(torch: Any, curve: Any, *rest: Any) -> Any:
        if curve.kind == "copy":
            copies.append(None)
        if curve.kind != "copy" or len(copies) != at:
            return [lambda: None]

        def fails() -> None:
            with gpu_errors():  # as the timer of a GPU has it
                raise error

        return [fails]

    monkeypatch.setattr(session, "build", build)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling")],
)
def test_what_does_not_fit_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing_once(monkeypatch, error, 4)  # after the probe's, the least and a middling one: the largest
    outcome = measured(tmp_path / "my.yaml")
    assert any("did not fit in memory and was left out" in note for note in outcome.found.notes)
    calibration = parse_cluster(f"{tmp_path / 'my.yaml'}:1").calibration
    assert calibration is not None
    assert len(calibration.points["copy forward", "bytes"].seconds) >= 2


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("slow", "usual_s"),
    [
        pytest.param(lambda look: 3 <= look < 8, 1e-4, id="for a while"),
        pytest.param(lambda look: look >= 3, 2e-4, id="but for the begin"),
        pytest.param(lambda look: look % 2, None, id="every other time"),
    ],
)
def test_what_was_measured_while_the_device_was_not_as_usual_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: Callable[[int], bool], usual_s: float | None
) -> None:
    """Everything takes twice as long after some of the looks at the reference."""
    looks: list[None] = []

    def build(torch: Any, curve: Any, shape: Any, *rest: Any) -> Any:
        if shape == (512, 512, 512):
            looks.append(None)
        return [lambda: None]

    def measure(*given: object) -> Timing:
        seconds = 2e-4 if slow(len(looks)) else 1e-4
        return Timing(seconds, seconds, seconds, 3, 0)

    monkeypatch.setattr(session, "build", build)
    monkeypatch.setattr(session, "measure", measure)
    monkeypatch.setattr(session, "_REFERENCE_EVERY_S", 0.02)
    found = measured(tmp_path / "my.yaml").found
    times = {timing.median_s for points in found.points.values() for timing in points.values()}
    assert len(looks) > 20
    assert (times == {usual_s}) == (usual_s is not None)
    said = any("points were measured while it was over 10% off its median" in note for note in found.notes)
    assert said == (usual_s is None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("held", "gives"), [(1 << 50, True), (0, False)])
def test_a_heap_that_holds_much_gives_back_what_it_does_not_use_after_each_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, gives: bool
) -> None:
    given: list[None] = []
    monkeypatch.setattr(session, "_resident_bytes", lambda: held)
    monkeypatch.setattr(session, "give_back_pages", lambda: given.append(None))
    found = measured(tmp_path / "my.yaml").found
    assert len(given) == (found.n_points if gives else 0)
    assert found.n_points > 3


@pytest.mark.usefixtures("quick")
def test_ops_that_no_time_was_left_for_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=count(0.0, 1.0).__next__))  # at once too late
    options = {"device": "cpu", "budget_s": 1.0, "begun": 0.0}
    notes = calibrate(tmp_path / "my.yaml", only=("adamw",), **options).found.notes
    assert "no time was left to measure adamw: give more --budget" in notes
    notes = calibrate(tmp_path / "other.yaml", only=("copy",), **options).found.notes
    assert not any("no time was left" in note for note in notes)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("usual", "large", "said"), [(1.5e-10, 2e-10, False), (1.5e-10, 6e-10, True), (2e-12, 8e-12, False)]
)
def test_pages_that_cost_more_in_large_processes_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usual: float, large: float, said: bool
) -> None:
    costs = {"new_page_s_per_byte": usual, "new_page_2gib_s_per_byte": usual, "new_page_4gib_s_per_byte": large}
    monkeypatch.setattr(session.host_costs, "new_pages", lambda *given: costs)
    notes = measured(tmp_path / "my.yaml").found.notes
    assert any("4.0 times as much in a process of 4 GiB" in note for note in notes) == said


@pytest.mark.usefixtures("quick")
def test_a_device_that_fails_is_one_message_and_its_points_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "my.yaml"
    with monkeypatch.context() as patch:
        failing_once(patch, RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors"))
        with pytest.raises(UserError) as failed:
            measured(out)
    assert len(str(failed.value).splitlines()) == 1
    assert not out.exists()
    kept = journal_path(out).read_bytes().count(b'"kind":"gemm"')
    assert kept >= 1
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=count(0.0, 1e-3).__next__))
    outcome = measured(out)
    assert outcome.resumed_points >= kept
    assert out.exists()
    assert not journal_path(out).exists()


@pytest.mark.usefixtures("quick")
def test_a_journal_of_another_torch_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "my.yaml"
    with monkeypatch.context() as patch:
        failing_once(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            measured(out)
    kept = journal_path(out).read_bytes()
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(InputFileError, match=r"2\.99\.0.*remove it"):
        measured(out)
    assert journal_path(out).read_bytes() == kept
