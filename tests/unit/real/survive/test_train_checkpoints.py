"""`train` with a folder for checkpoints goes on where it was ended, to the same bits."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from windtunnel.errors import InputFileError, SpecError  # noqa: E402
from windtunnel.real.survive import launch, train  # noqa: E402

pytestmark = pytest.mark.extras
SCRIPT = Path(__file__).parents[4] / "examples" / "resilience" / "train.py"


class EndedError(Exception):
    """The process ends here."""


def run(folder: Path, ends_at: int | None = None, every: int = 10) -> None:
    """With `ends_at`, the process is gone after that step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def on_step(step: int, value: float) -> None:
        if step == ends_at:
            raise EndedError

    train(
        model, optimizer, lambda *_: model(torch.ones(1, 8)).sum(), 25, on_step=on_step, checkpoints=folder,
        checkpoint_every=every,
    )  # fmt: skip


def test_the_loop_steps_a_scheduler_with_each_step_that_counts(tmp_path: Path) -> None:
    def rate_after(steps: int) -> float:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        others = {"rate": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)}
        train(
            model, optimizer, lambda *_: model(torch.ones(1, 2)).sum(), steps, others=others, checkpoints=tmp_path
        )  # fmt: skip
        return optimizer.param_groups[0]["lr"]

    assert rate_after(3) == 0.5**3
    assert rate_after(5) == 0.5**5  # goes on from the third


def test_a_job_that_ended_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def job(folder: Path | None, steps: int) -> tuple[list[float], list[torch.Tensor]]:
        for layer in (model[0], model[2]):
            torch.manual_seed(1)
            layer.reset_parameters()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def loss(step: int, rank: int, world: int) -> torch.Tensor:
            return model(torch.linspace(0, 1 + step, 32).view(4, 8)).square().mean()

        losses = train(model, optimizer, loss, steps, checkpoints=folder, checkpoint_every=10)
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    calm, expected = job(None, 25)
    first, _ = job(tmp_path, 12)
    assert first == calm[:12]
    resumed, weights = job(tmp_path, 25)
    assert resumed == calm
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000020", "step-000000025"]


def test_a_job_that_is_cut_off_loses_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EndedError):
        run(tmp_path, ends_at=17)
    for writer in threading.enumerate():  # a real end would leave a write under way where it is
        if writer.name.startswith("checkpoint"):
            writer.join()
    done: list[int] = []
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with pytest.raises(InputFileError, match="does not fit this model"):
        train(model, optimizer, lambda *_: model(torch.ones(1, 8)).sum(), 25, checkpoints=tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = train(
        model, optimizer, lambda step, *_: (done.append(step), model(torch.ones(1, 8)).sum())[1], 25,
        checkpoints=tmp_path,
    )  # fmt: skip
    assert done == list(range(10, 25))
    assert len(losses) == 25


def test_every_so_many_steps_is_a_number_of_steps(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="checkpoint_every"):
        run(tmp_path, every=0)


@pytest.mark.long
def test_ranks_that_are_all_killed_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    """Two gloo ranks, both killed at once: standbys without state read what rank 0 had written."""
    told = {}
    losses = {}
    for name, kills in (("calm", 0), ("killed", 1)):
        left = [kills]
        words = [sys.executable, str(SCRIPT), "--steps", "60", "--pause", "0.05", "--losses", str(tmp_path / name)]
        folder = tmp_path / f"{name} checkpoints"

        def strike(pids, members, warm, left=left, folder=folder) -> None:
            if left[0] and "" not in members and warm and (folder / "step-000000020").exists():
                left[0] -= 1
                for member in members:
                    os.kill(pids[member], signal.SIGKILL)

        told[name] = launch([*words, "--checkpoints", str(folder)], 2, 1, watching=strike)
        losses[name] = (tmp_path / name).read_text()
        assert told[name].status == 0
        assert (folder / "step-000000060").exists()
    assert told["killed"].replacements
    assert losses["killed"] == losses["calm"]
