"""`flex_attention` under fake tensors: its kernel is compiled from the script's own mask function, which needs a GPU.

As an eager call PyTorch would fill the whole matrix of scores, and the whole mask before it: neither happens on a
GPU, where both are compiled. So the kernel is written down as one fused attention, causal, and a block mask as its
block counts alone. What depends on the mask's data is lost: a document mask is taken for a causal one, which is a
bound from above.

Names of torch.nn.attention.flex_attention, all private but the first: `flex_attention_hop` (the kernel, called where
the public function does not run under the compiler), `_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG` (says not to compile it
then), `create_mask` and `_convert_mask_to_block_mask` (what `create_block_mask` makes blocks of). Tried on 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from windtunnel.real.capture.replacements import Replacements

if TYPE_CHECKING:
    import torch


def flex_attention_in_one_op(note: Callable[[str], None]) -> Replacements:
    """`flex_attention` is one fused op of the dispatcher each way until exit; `note` is told of it."""
    import torch
    from torch.nn.attention import flex_attention as flex
    from torch.nn.functional import pad

    aten = torch.ops.aten

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: object,
        block_mask: tuple[object, ...],
        scale: object,
        *_: object,
        **__: object,
    ) -> object:
        causal = getattr(block_mask[-1], "__name__", "") != "noop_mask"
        note("flex_attention: recorded as fused attention, every mask as a causal one")
        heads, width = query.shape[1], value.shape[-1]
        if query.dtype in (torch.float16, torch.bfloat16):
            more = query.shape[-1] - width  # the fused op takes one width for all
            wide = pad(value, (0, more)) if more > 0 else value
            out, lse, *_ = aten._scaled_dot_product_flash_attention(query, key, wide, 0.0, causal, False, scale=scale)
            out = out[..., :width] if more > 0 else out
        else:
            if key.shape[1] != heads:
                key, value = (tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (key, value))
            keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
            out, lse, *_ = aten._scaled_dot_product_efficient_attention(
                query, key, value, None, keep, 0.0, causal, scale=scale
            )
        if lse.shape != query.shape[:3]:
            lse = query.new_empty(query.shape[:3], dtype=torch.float32)
        return out, lse, query.new_empty((0,), dtype=torch.float32)

    def mask(mask_mod: object, B: object, H: object, Q_LEN: int, KV_LEN: int, device: torch.device = None) -> object:
        device = device or torch.accelerator.current_accelerator() or "cpu"
        return torch.empty((), dtype=torch.bool, device=device).expand(B or 1, H or 1, Q_LEN, KV_LEN)

    def blocks(
        mask: torch.Tensor, Q_BLOCK_SIZE: int = 128, KV_BLOCK_SIZE: int = 128, separate_full_blocks: bool = False
    ) -> object:
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)
        *outer, rows, columns = mask.shape
        shape = (*outer, -(-rows // Q_BLOCK_SIZE), -(-columns // KV_BLOCK_SIZE))
        tables = [torch.empty(shape, dtype=torch.int8, device=mask.device) for _ in range(2)]
        return tables[0], tables[1] if separate_full_blocks else None

    return Replacements(
        (flex, "flex_attention_hop", kernel),
        (flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
        (flex, "create_mask", mask),
        (flex, "_convert_mask_to_block_mask", blocks),
    )


def compiler_rules_kept() -> Replacements:
    """The compiler's table of torch's functions, private, is filled before any is replaced and stays until exit.

    It holds functions by identity, refuses one function that stands for two, and `init_process_group` throws it away.
    """
    import torch._dynamo

    rules = torch._dynamo.trace_rules
    rules.get_torch_obj_rule_map()
    return Replacements((rules, "clear_lru_cache", lambda: None))
