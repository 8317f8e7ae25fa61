"""Parallelisms as torchtitan laid them over Llama 3 in December 2024, for the benchmarks of that time.

    python -m torchtitan.train --experimental.custom_import torchtitan_2024 ...

FSDP: embedding, last norm and output were the root's own group, gathered when a forward pass begins and there until
the backward pass is over; nor was the last layer freed after its forward pass. Later releases give them groups of their
own, which takes about 2 GiB less of an 8B model. Seen in torchtitan 9dec370, `parallelize_llama.apply_fsdp`, the commit
that the benchmarks name.

Tensor parallelism of float8 layers gathered activations in float8 (`float8_handler` of that commit). 0.2.2
looks for the converter by the name that it had then, "float8", and gathers in bf16 now that it is called
"quantize.linear.float8".
"""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchtitan.models.llama3.infra import parallelize

_apply_tp = parallelize.apply_tp


def apply_tp(model: Any, tp_mesh: Any, *given: Any, **named: Any) -> None:
    """As now, told whether linear layers are float8."""
    is_float8 = any(type(module).__name__ == "Float8Linear" for module in model.modules())
    _apply_tp(model, tp_mesh, *given, **{**named, "enable_float8_tensorwise_tp": is_float8})


def apply_fsdp(
    model: Any, dp_mesh: Any, param_dtype: Any, reduce_dtype: Any, pp_enabled: bool, *_: Any, **__: Any
) -> None:
    """One group a layer, and the root's."""
    how = {"mesh": dp_mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)}
    last = len(model.layers) - 1
    for number, layer in enumerate(model.layers.values()):
        fully_shard(layer, **how, reshard_after_forward=not pp_enabled and number < last)
    fully_shard(model, **how, reshard_after_forward=not pp_enabled)
    parallelize.disable_fsdp_gradient_division(model)


parallelize.apply_tp = apply_tp
parallelize.apply_fsdp = apply_fsdp
