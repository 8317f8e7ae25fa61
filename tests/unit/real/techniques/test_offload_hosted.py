"""A window in the user's own loop: the same bits with whatever stands between reduce and step, and the memory said."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from windtunnel.errors import SpecError
from windtunnel.real.techniques import offload
from windtunnel.real.techniques.offload.hosted import WINDOWS, predicted_bytes
from windtunnel.real.techniques.offload.windowed import owned

pytestmark = pytest.mark.extras
LAYERS, WIDTH = 5, 8
KINDS = ["plain", "amp", "accumulated", "clipped", "frozen", "recompute", "two passes"]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(x))))


class Net(nn.Module):
    def __init__(self, recompute: bool = False, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight  # of no layer, and used twice
        self.layers, self.recompute = nn.ModuleList(Layer() for _ in range(LAYERS)), recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x)


def trained(window: int, kind: str) -> tuple[list[float], dict[str, torch.Tensor], nn.Module]:
    net = Net(kind == "recompute", tied=kind != "two passes")  # tied ones are added up pass by pass
    if kind == "frozen":
        for name, parameter in net.named_parameters():
            parameter.requires_grad_("down" in name)
    model: nn.Module = offload.apply(net, window=window) if window else net
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "amp", init_scale=2.0**12, growth_interval=3)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for at in range(8):
        torch.manual_seed(at)
        tokens = torch.randint(16, (4, 6))
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "amp"):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            if kind == "two passes":
                loss = loss + model(tokens.flip(1)).square().mean()
        scaler.scale(loss).backward()
        if kind == "accumulated" and at % 4 < 3:
            continue
        scaler.unscale_(optimizer)
        if kind == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            losses.append(float(model(tokens).sum()))
    return losses, model.state_dict(), net


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_ones_own_gives_the_same_bits(kind: str) -> None:
    losses, state, _ = trained(0, kind)
    for window in (1, 3):
        again, weights, net = trained(window, kind)
        assert again == losses
        assert all(torch.equal(weights[name], value) for name, value in state.items())
        run = WINDOWS[net]
        assert run.arena.now == 0  # nothing is left on the device between steps
        if kind in ("plain", "accumulated", "clipped"):
            assert run.arena.peak == predicted_bytes(net, owned(net, list(net.layers)), window)  # type: ignore[arg-type]


def test_a_window_by_budget_is_the_largest_that_fits() -> None:
    net = Net()
    own = owned(net, list(net.layers))
    budget = predicted_bytes(net, own, 3)
    assert WINDOWS[offload.apply(net, device_memory=budget)].window == 3
    with pytest.raises(SpecError, match="a window already"):
        offload.apply(net)
    with pytest.raises(SpecError, match="the least is"):
        offload.apply(Net(), device_memory=100)


def fail(*_: object) -> None:
    raise RuntimeError("wrong")


def test_a_pass_that_fails_leaves_nothing_and_the_next_is_as_ever() -> None:
    tokens, found = torch.arange(6)[None], []
    for failing in (False, True):
        net = offload.apply(Net().eval(), window=1)
        run = WINDOWS[net]
        if failing:
            handle = net.layers[2].up.register_forward_hook(fail)  # type: ignore[union-attr]
            with pytest.raises(RuntimeError, match="wrong"):
                net(tokens)
            handle.remove()
            out = net(tokens)
            out.register_hook(fail)
            with pytest.raises(RuntimeError, match="wrong"):
                out.sum().backward()
            del out
            gc.collect()
        net(tokens).square().sum().backward()
        assert run.arena.now == 0
        found.append([parameter.grad for parameter in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_an_average_of_the_weights_computes_with_its_own() -> None:
    net = offload.apply(Net(), window=1)
    average = torch.optim.swa_utils.AveragedModel(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert float(average(torch.arange(6)[None]).abs().sum()) > 0
    assert float(net(torch.arange(6)[None]).abs().sum()) == 0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(each: bool) -> nn.Module:
    net = Net()
    for layer in net.layers if each else ():
        fully_shard(layer)
    return fully_shard(net)


@pytest.mark.usefixtures("world")
def test_what_is_wrapped_is_taken_or_is_one_error() -> None:
    wrong: list[tuple[Callable[[], nn.Module], str]] = [
        (lambda: DistributedDataParallel(Net()), "before DistributedDataParallel"),
        (lambda: sharded(False), "0 of 5 are sharded"),
        (lambda: torch.compile(Net(), backend="eager"), "before torch.compile"),  # type: ignore[arg-type, return-value]
    ]
    for make, said in wrong:
        with pytest.raises(SpecError, match=said):
            offload.apply(make())
    tokens = torch.arange(6)[None]
    plain, taken = sharded(True), offload.apply(sharded(True), window=2)
    plain.eval(), taken.eval()
    assert all(module._get_fsdp_state()._fsdp_param_groups[0].fsdp_params[0].offload_to_cpu for module in taken.layers)  # type: ignore[union-attr]
    assert torch.equal(plain(tokens), taken(tokens))
    with pytest.raises(SpecError, match="before the first step"):
        offload.apply(taken)
    parallel, expected = DistributedDataParallel(offload.apply(Net(), window=1)), DistributedDataParallel(Net())
    for model in (parallel, expected):
        torch.manual_seed(1)
        model(tokens).square().sum().backward()
    pairs = zip(parallel.parameters(), expected.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)
