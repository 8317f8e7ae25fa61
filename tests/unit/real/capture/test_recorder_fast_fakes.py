"""The fast way to fake tensors gives what PyTorch's own fake-tensor mode gives, the second time as the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from windtunnel.real.capture.fake_tensors.dispatch_cache import FastFakes  # noqa: E402

OPS: dict[str, Callable[..., Any]] = {
    "product": lambda x, y: x @ y,
    "view": lambda x, y: x.view(2, -1),
    "transposed": lambda x, y: x.t()[1:, ::2],
    "in place": lambda x, y: x.add_(y),
    "in place through a view": lambda x, y: x[1].mul_(2.0),
    "out": lambda x, y: torch.add(x, y, out=y),
    "scalars": lambda x, y: (x * 2, x * 2.0, x > 1, x.to(torch.bfloat16)),
    "several": lambda x, y: torch.topk(x, 2),
    "views of one": lambda x, y: x.split(2, 1),
    "expanded": lambda x, y: x[None].expand(3, 6, 6).sum(0),
    "made": lambda x, y: (torch.zeros(3, 4), torch.arange(5), torch.full((2,), 1.5, dtype=torch.float64)),
    "multi-tensor": lambda x, y: torch._foreach_add([x, y], 1.0),
    "norm": lambda x, y: torch.nn.functional.layer_norm(x, (6,)),
    "loss": lambda x, y: torch.nn.functional.cross_entropy(x, torch.zeros(6, dtype=torch.long)),
    "slices": lambda x, y: (
        *(x.flatten().narrow(0, 9 * at, 9) for at in range(4)),
        *(x[-3:], x[2:1], x[7:], x.t()[:, -4:5:3], (x + y)[1:99], x.view(torch.int32)[:2]),
    ),
    "rows and columns": lambda x, y: (
        *(x[at] for at in range(-6, 6)),
        *(x[:, at] for at in (0, 5, -6)),
        *(x.t()[2][at] for at in (0, 3)),
        (x + y)[1:, 2:][3, -1],
        x.view(2, 3, 6).select(1, -1),
    ),
    "set strides": lambda x, y: torch.empty_strided((2, 3), (1, 2)).mul(2),
    "nothing": lambda x, y: x[:0] @ y,
    "of numbers": lambda x, y: (
        *(torch.tensor(one) for one in ([1, 2, 3], [1.5, 2.5], [[True], [False]], [7], 8, [], [1j, 2j])),
        torch.tensor([1.0, 2.0], requires_grad=True).exp(),
        torch.tensor([1, 2, 3], dtype=torch.int16),
    ),
    "detached": lambda x, y: x.detach().requires_grad_().exp(),
}


class Fast(TorchDispatchMode):
    def __init__(self, fakes: FastFakes) -> None:
        super().__init__()
        self.fakes, self.repeats = fakes, 0
        repeat = fakes._repeat

        def counted(*args: Any) -> Any:
            self.repeats += 1
            return repeat(*args)

        fakes._repeat = counted  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.fakes.run(func, types, args, kwargs or {})


def described(values: Any, inputs: list[Any]) -> list[Any]:
    """All that can be seen of results: metadata, which input they are, and whose storage they lie on."""
    storages = {t.untyped_storage()._cdata: i for i, t in enumerate(inputs)}
    found: list[Any] = []
    for t in tree_leaves(values):
        if isinstance(t, torch.Tensor):
            assert isinstance(t, FakeTensor)
            place = storages.get(t.untyped_storage()._cdata)
            same = next((i for i, x in enumerate(inputs) if x is t), None)
            found.append((t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, place, same, t.is_contiguous()))
        else:
            found.append(t)
    return found


def made() -> list[Any]:
    return [torch.randn(6, 6), torch.randn(6, 6)]


@pytest.mark.parametrize("name", OPS)
def test_the_same_as_the_ordinary_way(name: str) -> None:
    op = OPS[name]
    with FakeTensorMode():
        inputs = made()
        ordinary = described(op(*inputs), inputs)
    mode = FakeTensorMode()
    with mode, Fast(FastFakes(mode)) as fast:
        for _ in range(3):
            inputs = made()
            assert described(op(*inputs), inputs) == ordinary
    assert fast.repeats > 0


def test_autograd_runs_on_what_it_makes() -> None:
    mode = FakeTensorMode()
    with mode, Fast(FastFakes(mode)):
        for _ in range(2):
            x = torch.randn(4, 4, requires_grad=True)
            loss = (x @ x.t()).relu().view(2, 8).sum()
            loss.backward()
            assert x.grad is not None
            assert x.grad.shape == x.shape


def test_other_arguments_are_other_calls() -> None:
    mode = FakeTensorMode()
    with mode, Fast(FastFakes(mode)):
        x = torch.randn(4, 4)
        assert [(x * value).dtype for value in (2, 2.0, True)] == [torch.float32] * 3
        whole = torch.arange(4)
        assert [(whole * value).dtype for value in (2, 2.0, True)] == [torch.int64, torch.float32, torch.int64]
        assert x.sum(0).shape == (4,)
        assert x.sum(0, keepdim=True).shape == (1, 4)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "name", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy", "huber_loss", "l1_loss"]
)
def test_a_loss_takes_as_much_memory_as_a_real_one(name: str, reduction: str) -> None:
    def sizes() -> list[int]:
        x, y = torch.rand(4, 8, requires_grad=True), torch.rand(4, 8)
        loss_of = getattr(torch.nn.functional, name)
        return [loss_of(x, y, reduction=reduction).untyped_storage().nbytes() for _ in range(2)]

    real = sizes()
    with FakeTensorMode() as mode, Fast(FastFakes(mode)):
        assert sizes() == real


def test_a_call_is_kept_once() -> None:
    """Not by PyTorch's own cache as well: its key costs a third of a new call."""
    FakeTensorMode.cache_clear()
    with FakeTensorMode() as mode, Fast(FastFakes(mode)):
        assert (torch.randn(7, 3) + 1).shape == (7, 3)
    assert FakeTensorMode.cache_info().size == 0
