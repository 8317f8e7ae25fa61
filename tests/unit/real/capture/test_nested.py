"""Nested tensors of jagged layout on pretended GPUs: their lengths are what the script said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from windtunnel.real.capture.fake_tensors.fake import fake_tensors  # noqa: E402
from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.real.capture.torch_private.nested import NestedShapesError  # noqa: E402
from windtunnel.studies.programs.program import RankProgram  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU needs no pretended one")

LENGTHS = (5, 9, 3, 7)
WIDTH, HEADS = 32, 4


def jagged(lengths: Sequence[int] = LENGTHS) -> torch.Tensor:
    parts = [torch.randn(length, WIDTH) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda")


def recorded(lengths_of_steps: Sequence[Sequence[int]], dtype: torch.dtype) -> list[RankProgram]:
    """A step of attention over sequences of these lengths, each; what their padded forms are is looked at as well."""
    programs: list[RankProgram] = []
    with fake_tensors(), Recorder(0, 1, None, on_step=programs.append, first=1) as recorder:
        layer = torch.nn.Linear(WIDTH, 3 * WIDTH, device="cuda", dtype=dtype)
        for lengths in lengths_of_steps:
            q, k, v = layer(jagged(lengths).to(dtype)).chunk(3, dim=-1)
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
            out = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
            padded = torch.nested.to_padded_tensor(out, 0.0)
            assert padded.shape == (len(lengths), max(lengths), WIDTH)
            padded.sum().backward()
            recorder.end_step()
    return programs


def flops_of(program: RankProgram, part: str) -> list[float]:
    return [op.flops for op in program.ops if part in op.name and op.flops]


def test_what_python_asks_of_a_jagged_tensor_is_what_it_was_made_of() -> None:
    with fake_tensors(), Recorder(0, 1, None):
        x = jagged()
        assert x.offsets().tolist() == [0, 5, 14, 17, 24]
        assert [tuple(part.shape) for part in x.unbind()] == [(length, WIDTH) for length in LENGTHS]
        assert x.values().shape == (24, WIDTH)
        assert int(x.offsets().diff().max()) == 9
        y = torch.nested.nested_tensor_from_jagged(torch.randn(24, 2, device="cuda"), x.offsets())
        assert torch.nested.to_padded_tensor(y, 0.0).shape[0::2] == (4, 2)
        assert (y + y).values().shape == (24, 2)


def test_a_strided_nested_tensor_is_taken_for_a_jagged_one_and_that_is_said() -> None:
    notes: list[str] = []
    with fake_tensors(note=notes.append), Recorder(0, 1, None):
        parts = [torch.randn(length, WIDTH, device="cuda") for length in LENGTHS]
        for make in (torch.nested.nested_tensor, torch.nested.as_nested_tensor):
            x = make(parts)
            assert [tuple(part.shape) for part in x.unbind()] == [(length, WIDTH) for length in LENGTHS]
            out = torch.nn.Linear(WIDTH, 2, device="cuda")(x)
            assert torch.nested.to_padded_tensor(out, 0.0).shape == (len(LENGTHS), max(LENGTHS), 2)
        assert torch.nested.as_nested_tensor(parts, torch.float16, None, torch.jagged).dtype == torch.float16
        with pytest.raises(NestedShapesError, match=r"\(2, 3\), \(4, 5\).* pad the others"):
            torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 5)])
    assert "strided" in notes[0]


def test_jagged_tensors_of_different_lengths_are_not_added() -> None:
    """Ragged sizes are equal where their offsets are the same tensor only, as on a real device."""
    with fake_tensors(), Recorder(0, 1, None):
        x, y = jagged(), jagged((9, 5, 7, 3))
        assert x.shape[1] != y.shape[1]
        assert x.shape[1] == torch.sin(x).shape[1]


def test_attention_over_jagged_tensors_is_one_kernel_whose_flops_go_by_each_length() -> None:
    for dtype, kernel in ((torch.bfloat16, "flash"), (torch.float32, "efficient")):
        other = (12, 12)  # as many tokens: what is known of one step is not taken for another
        programs = recorded((LENGTHS, other), dtype)
        for program, lengths in zip(programs, (LENGTHS, other), strict=True):
            products = sum(4 * length**2 * WIDTH for length in lengths)
            assert flops_of(program, f"_{kernel}_attention_forward") == [products]
            assert flops_of(program, f"_{kernel}_attention_backward") == [2.5 * products]


def test_lengths_that_nobody_knows_count_as_the_longest() -> None:
    with fake_tensors(), Recorder(0, 1, None, on_step=(programs := []).append, first=1) as recorder:
        layer = torch.nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        q = layer(torch.randn(24, WIDTH, device="cuda", dtype=torch.bfloat16)).unflatten(-1, (HEADS, -1))
        ends = torch.randint(1, 5, (5,), device="cuda", dtype=torch.int32)
        torch.ops.aten._flash_attention_forward(q, q, q, ends, ends, 9, 9, 0.0, True, False)
        recorder.end_step()
    assert flops_of(programs[0], "_flash_attention_forward") == [4 * 4 * 9**2 * WIDTH]
