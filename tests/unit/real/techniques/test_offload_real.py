"""Offloaded training is plain training, bit by bit."""

from __future__ import annotations

import copy
import random
import time

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from windtunnel.errors import SpecError  # noqa: E402
from windtunnel.real.techniques import offload  # noqa: E402
from windtunnel.real.techniques.offload import windowed  # noqa: E402
from windtunnel.real.techniques.offload.entry import predicted_peak  # noqa: E402

pytestmark = pytest.mark.extras
torch.set_num_threads(1)
LAYERS, WIDTH, BATCH = 8, 32, 4


class Net(nn.Module):
    def __init__(self, tied: bool = False, unused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.last = nn.Linear(WIDTH, WIDTH)
        if tied:
            self.layers[5][3].weight = self.layers[1][3].weight
            self.last.weight = self.first.weight
        if unused:
            for layer in self.layers:
                layer.register_parameter("idle", nn.Parameter(torch.ones(3)))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def batch(step: int):
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def loss_of(model, x):
    return (model(x) - x.roll(1, 1)).square().mean()


def plain(steps: int, micro: int = 1, **kind):
    model = Net(**kind)
    optimizer = adam(model.parameters())
    losses = []
    for step in range(steps):
        for part in range(micro):
            loss = loss_of(model, batch(step * micro + part))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, dict(model.named_parameters())


def windowed_run(steps: int, window: int, micro: int = 1, delay_s: float = 0.0, **kind):
    model = Net(**kind)
    run = offload.apply(model, adam, window=window)
    if delay_s:
        _delay(run, delay_s)
    losses = []
    for step in range(steps):
        for part in range(micro):
            x = batch(step * micro + part)
            if part < micro - 1:
                with run.accumulate():
                    loss_of(model, x).backward()
            else:
                loss = loss_of(model, x)
                loss.backward()
        run.step()
        losses.append(loss.item())
    return losses, run


def _delay(run, most_s: float) -> None:
    chance = random.Random(7)
    for hosted in run.hosted:
        for name in ("fetch", "gradients_out"):
            inner = getattr(hosted, name)

            def later(*args, inner=inner, **kwargs):
                time.sleep(chance.random() * most_s)
                return inner(*args, **kwargs)

            setattr(hosted, name, later)


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
def test_fifty_steps_are_bit_equal(window: int) -> None:
    expected, parameters = plain(50)
    losses, run = windowed_run(50, window)
    assert losses == expected
    assert all(torch.equal(parameters[name], held) for name, held in run.whole_parameters().items())
    run.close()


@pytest.mark.parametrize("kind", [{"tied": True}, {"unused": True}])
def test_tied_and_unused_parameters(kind) -> None:
    expected, parameters = plain(10, **kind)
    losses, run = windowed_run(10, 2, **kind)
    assert losses == expected
    assert all(torch.equal(parameters[name], held) for name, held in run.whole_parameters().items())
    run.close()


def test_accumulation_is_bit_equal() -> None:
    expected, parameters = plain(10, micro=3)
    losses, run = windowed_run(10, 2, micro=3)
    assert losses == expected
    assert all(torch.equal(parameters[name], held) for name, held in run.whole_parameters().items())
    run.close()


def test_what_is_kept_of_events_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed, "KEPT", 20)
    _, run = windowed_run(6, 2)
    run.wait()
    assert len(run.events) == 20
    run.close()


def test_no_layer_computes_before_it_is_there_under_random_delays() -> None:
    expected, _ = plain(6)
    losses, run = windowed_run(6, 2, delay_s=0.003)
    run.wait()
    assert losses == expected
    here: set[int] = set()
    most = 0
    for what, number in run.events:
        if what == "here":
            here.add(number)
        elif what == "gone":
            here.discard(number)
        else:
            assert number in here, f"{what} {number} before it was there"
        most = max(most, len(here))
    assert most <= 2 * run.window
    run.close()


def test_peak_is_as_predicted_and_a_quarter_of_the_state() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(32)])
    whole = 4 * sum(p.numel() * 4 for p in model.parameters())
    budget = whole // 4
    run = offload.apply(model, adam, window="auto", device_memory=budget)
    predicted = predicted_peak(model, list(model), run.window)
    for step in range(60):
        model(batch(step)).square().mean().backward()
        run.step()
        # Copies run beside the computing: on a busy machine a step may not have as many under way as there may be.
        if step >= 2 and run.arena.peak >= 0.95 * predicted:
            break
    run.wait()
    assert run.arena.peak <= budget
    assert run.arena.peak == pytest.approx(predicted, rel=0.05)
    run.close()


def test_checkpoint_and_resume() -> None:
    expected, _ = plain(10)
    losses, run = windowed_run(5, 3)
    state = run.state_dict()
    run.close()
    model = Net()
    again = offload.apply(model, adam, window=3)
    again.load_state_dict(state)
    for step in range(5, 10):
        loss = loss_of(model, batch(step))
        loss.backward()
        again.step()
        losses.append(loss.item())
    assert losses == expected
    again.close()


def test_a_forward_pass_that_raises_is_no_step() -> None:
    expected, _ = plain(6)
    model = Net()
    run = offload.apply(model, adam, window=2)

    def broken(module, args):
        raise ValueError("a bad batch")

    losses = []
    for step in range(6):
        if step == 3:
            hook = model.layers[4].register_forward_pre_hook(broken)
            with pytest.raises(ValueError, match="a bad batch"):
                model(batch(100))
            hook.remove()
        loss = loss_of(model, batch(step))
        loss.backward()
        run.step()
        losses.append(loss.item())
    assert losses == expected
    run.close()


def test_a_backward_pass_that_raises_is_told_and_a_checkpoint_goes_on() -> None:
    expected, _ = plain(6)
    losses, run = windowed_run(3, 2)
    state, model = copy.deepcopy(run.state_dict()), run.model  # as from a file: optimizers hand out their own tensors

    def broken(gradient):
        raise ValueError("a bad gradient")

    bad = model.layers[1].register_forward_hook(lambda module, args, out: out.register_hook(broken) and None)
    with pytest.raises(ValueError, match="a bad gradient"):
        loss_of(model, batch(3)).backward()
    bad.remove()
    with pytest.raises(RuntimeError, match=r"step\(\) was not called.*load a checkpoint"):
        model(batch(3))
    model.zero_grad()
    run.load_state_dict(state)
    for step in range(3, 6):
        loss = loss_of(model, batch(step))
        loss.backward()
        run.step()
        losses.append(loss.item())
    assert losses == expected
    run.close()


def test_a_failing_update_is_raised() -> None:
    model = Net()
    run = offload.apply(model, adam, window=2)

    def broken() -> None:
        raise RuntimeError("host is out of memory")

    run.optimizers[0].step = broken
    loss_of(model, batch(0)).backward()
    with pytest.raises(RuntimeError, match="out of memory"):
        run.wait()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"window": 0}, "give 1 to 8"), ({"window": "auto"}, "needs a budget"),
     ({"window": "auto", "device_memory": 1000}, "a window of one layer needs"), ({"layers": []}, "two or more"),
     ({"window": 2.5}, "a whole number or auto"), ({"updaters": 0}, "1 or more")],
)  # fmt: skip
def test_bad_parameters_are_one_message(changes, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        offload.apply(Net(), adam, **{"window": 2, **changes})


def test_a_model_has_one_window_at_a_time() -> None:
    model = Net()
    run = offload.apply(model, adam, window=2)
    with pytest.raises(SpecError, match="has a window already"):
        offload.apply(model, adam, window=2)
    run.close()
    offload.apply(model, adam, window=3).close()


def test_parameters_that_are_away_are_not_read_or_written_behind_the_windows_back() -> None:
    model = Net()
    run = offload.apply(model, adam, window=2)
    with pytest.raises(RuntimeError, match="whole_parameters"):
        model.state_dict()
    with pytest.raises(RuntimeError, match="whole_parameters"):
        model.load_state_dict(run.whole_parameters())
    before = run.whole_parameters()
    run.close()
    assert all(torch.equal(kept, before[name]) for name, kept in model.state_dict().items())


def test_what_is_no_module_is_one_message() -> None:
    with pytest.raises(SpecError, match=r"give a torch.nn.Module"):
        offload.apply(3, adam, window=2)
