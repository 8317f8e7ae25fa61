"""Packages of kernels that are not installed: in place where a script ended for want of them, and what they record."""

from __future__ import annotations

import importlib.util
import sys

import pytest

torch = pytest.importorskip("torch")

from windtunnel.real.capture.fake_tensors.fake import fake_tensors  # noqa: E402
from windtunnel.real.capture.torch_private.stand_ins import VERSIONS, stand_in_for  # noqa: E402

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("flash_attn", "flash_attn_interface")), reason="it is installed"
)


def raised(text: str) -> BaseException:
    try:
        exec(text, {})
    except BaseException as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("import flash_attn", "flash_attn"),
        ("from flash_attn.layers.rotary import apply_rotary_emb", "flash_attn"),
        ("import flash_attn_interface", "flash_attn_interface"),
        ("raise ImportError('FlashAttention2 was asked for: install flash_attn')", "flash_attn"),
        ("try:\n import flash_attn\nexcept ImportError as e:\n raise RuntimeError('no') from e", "flash_attn"),
        ("try:\n import grouped_gemm.ops\nexcept ImportError:\n raise RuntimeError('install it')", "grouped_gemm"),
        ("import surely_not_there", ""),
        ("raise ValueError('flash_attn')", ""),
    ],
)
def test_what_a_script_could_not_do_without(text: str, package: str) -> None:
    assert stand_in_for(raised(text)) == package


def test_nothing_is_in_place_unless_it_is_missing_nor_afterwards() -> None:
    with fake_tensors("cuda", gpus=1):
        assert importlib.util.find_spec("flash_attn") is None
    with fake_tensors("cuda", gpus=1, missing=("flash_attn",)):
        from flash_attn import __version__  # type: ignore[import-not-found]

        assert __version__ == VERSIONS["flash_attn"]
        assert importlib.util.find_spec("flash_attn.layers.rotary") is not None
        exec("from flash_attn.modules.mha import flash_attn_varlen_kvpacked_func", {})
        with pytest.raises(ImportError):
            exec("from flash_attn import something_else", {})
    assert not [name for name in sys.modules if name.startswith("flash_attn")]


@pytest.mark.parametrize("package", ["flash_attn", "flash_attn_interface"])
def test_decoding_from_a_cache_can_be_imported_but_not_called(package: str) -> None:
    """transformers imports it with the others, whoever trains."""
    with fake_tensors("cuda", gpus=1, missing=(package,)):
        decode = importlib.import_module(package).flash_attn_with_kvcache
        with pytest.raises(NotImplementedError, match="install flash-attn"):
            decode(None, None, None)


def ops_of(run: object) -> list[str]:
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Noted(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    with Noted():
        run()  # type: ignore[operator]
    return names


@pytest.mark.parametrize("name", ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func"])
def test_attention_is_one_kernel_each_way_and_keeps_shapes(name: str) -> None:
    with fake_tensors("cuda", gpus=1, missing=("flash_attn",)):
        import flash_attn

        packed = torch.randn(2, 64, 3, 4, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        ends = torch.arange(0, 129, 64, device="cuda", dtype=torch.int32)
        separate = [one.flatten(0, 1) if "varlen" in name else one for one in packed.unbind(2)]
        given = [packed] if "packed" in name else separate
        more = [ends, ends, 64, 64] if "varlen" in name else []
        out = getattr(flash_attn, name)(*given, *more, causal=True)
        assert out.shape == separate[0].shape
        names = ops_of(lambda: getattr(flash_attn, name)(*given, *more, causal=True).sum().backward())
        assert packed.grad.shape == packed.shape
    attention = [one for one in names if "attention" in one]
    assert attention == ["aten::_flash_attention_forward", "aten::_flash_attention_backward"]


def test_other_kernels_are_one_op_that_writes_what_the_kernel_writes() -> None:
    with fake_tensors("cuda", gpus=1, missing=("flash_attn",)):
        from flash_attn.layers.rotary import apply_rotary_emb  # type: ignore[import-not-found]
        from flash_attn.ops.triton.layer_norm import rms_norm_fn  # type: ignore[import-not-found]

        x = torch.randn(2, 64, 4, 16, device="cuda", requires_grad=True)
        weight = torch.ones(16, device="cuda", requires_grad=True)
        cos = torch.ones(64, 8, device="cuda")
        names = ops_of(lambda: rms_norm_fn(apply_rotary_emb(x, cos, cos), weight, None).sum().backward())
        assert (x.grad.shape, weight.grad.shape) == (x.shape, weight.shape)
    assert names.count("windtunnel::triton_kernel") == 4


def test_experts_products_are_one_grouped_product_each_way() -> None:
    with fake_tensors("cuda", gpus=1, missing=("grouped_gemm",)):
        import grouped_gemm.ops as ops  # type: ignore[import-not-found]

        tokens = torch.randn(64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        experts = torch.randn(4, 32, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        chosen = torch.zeros(64, 2, device="cuda", dtype=torch.int32)
        weights = torch.ones(64, 2, device="cuda", requires_grad=True)
        sizes = torch.tensor([32, 32, 32, 32])

        def mixed() -> None:
            rows, where = ops.permute(tokens, chosen)
            assert (rows.shape, where.shape) == ((128, 32), (128,))
            out = ops.gmm(rows, experts, sizes)
            back = ops.gmm(out, experts, sizes, trans_b=True)
            assert (out.shape, back.shape) == ((128, 16), (128, 32))
            mean = ops.unpermute(back, where, weights)
            assert mean.shape == tokens.shape
            mean.sum().backward()

        names = ops_of(mixed)
        assert (tokens.grad.shape, experts.grad.shape) == (tokens.shape, experts.shape)
        assert weights.grad.shape == weights.shape
    assert names.count("aten::_grouped_mm") == 6
    assert names.count("windtunnel::triton_kernel") == 5  # rows sorted; copied and put back, each way
