"""Kernels that are compiled from a script's own code: flex attention and Triton, each written down as one op."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from small_models import recorded  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from windtunnel.real.capture.fake_tensors.fake import fake_tensors  # noqa: E402
from windtunnel.real.capture.torch_private.flex import flex_attention_in_one_op  # noqa: E402
from windtunnel.real.capture.torch_private.triton import triton_kernels_in_one_op  # noqa: E402
from windtunnel.studies.programs.op_shapes import Attention, attention_of  # noqa: E402
from windtunnel.studies.programs.program import Op  # noqa: E402

HEADS, KV_HEADS, SEQ, WIDTH = 8, 2, 256, 64


def attended(masked: bool, dtype: torch.dtype, device: str = "cuda") -> list[Op]:
    """What one flex attention and its backward do."""

    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(
                torch.randn((2, heads, SEQ, WIDTH), device=device, dtype=dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)
            )

        def forward(self, mask: object) -> torch.Tensor:
            return flex_attention(*self.weights, block_mask=mask, enable_gqa=True)  # type: ignore[return-value]

    def job(device: str) -> None:
        model = Attend()
        mask = None
        if masked:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, SEQ, SEQ, device=device)
        out = model(mask)
        assert (out.shape, out.dtype) == (model.weights[0].shape, dtype)
        out.sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    return [op for op in recorded(job, fake=device).program.ops if "attention" in op.name]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_flex_attention_is_one_op_each_way(masked: bool, dtype: torch.dtype) -> None:
    calls = [attention_of(op) for op in attended(masked, dtype)]
    assert [call is not None and call.backward for call in calls] == [False, True]
    for call in calls:
        assert isinstance(call, Attention)
        assert (call.batch, call.heads, call.seq_q, call.seq_kv, call.head_dim) == (2, HEADS, SEQ, SEQ, WIDTH)
        assert call.causal == masked


def test_a_mask_costs_its_blocks_only() -> None:
    """The whole mask of scores, 4 GiB here, is never made."""

    def job(device: str) -> None:
        weight = torch.randn(8, device=device, requires_grad=True)
        create_block_mask(lambda b, h, i, j: i >= j, None, None, 1 << 16, 1 << 16, device=device)
        weight.sum().backward()
        torch.optim.SGD([weight], lr=0.1).step()

    recorder = recorded(job, fake="cuda")
    assert recorder.ledger.high_water_bytes < 16 << 20


def test_flex_attention_is_as_it_was_afterwards() -> None:
    from torch.nn.attention import flex_attention as flex

    before = flex.flex_attention_hop, flex.create_mask
    told: list[str] = []
    with flex_attention_in_one_op(told.append):
        assert flex.flex_attention_hop is not before[0]
    assert (flex.flex_attention_hop, flex.create_mask) == before
    assert told == []


def test_a_mask_that_is_taken_for_a_causal_one_is_told() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    told: list[str] = []
    with fake_tensors("cpu", note=told.append):
        x = torch.randn(1, 2, 128, 16)
        flex_attention(x, x, x)
    assert told == ["flex_attention: recorded as fused attention, every mask as a causal one"]


def test_a_triton_launch_is_one_op_of_its_tensors() -> None:
    pytest.importorskip("triton")
    import triton
    import triton.language as tl

    @triton.jit
    def doubled(x, y, n, size: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * size + tl.arange(0, size)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    class Doubles(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            doubled[(8,)](y, torch.empty_like(y), y.numel(), size=128)
            return y

    def job(device: str) -> None:
        model = Doubles(32, 32, device=device)
        model(torch.ones(32, 32, device=device)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    launches = [op for op in recorded(job, fake="cuda").program.ops if op.name == "windtunnel.triton_kernel"]
    assert [[spec.shape for spec in op.inputs] for op in launches] == [[(32, 32), (32, 32)]]


def test_nothing_changes_where_no_kernel_is_launched() -> None:
    with triton_kernels_in_one_op(pytest.fail, pytest.fail):
        assert torch.ones(2).sum().item() == 2.0
