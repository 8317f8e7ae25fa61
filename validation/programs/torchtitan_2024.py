"""torchtitan's Llama 3 as it was in December 2024, for the benchmarks of that time.

    python -m torchtitan.train --experimental.custom_import torchtitan_2024 ...

Model: attention got keys and values with as many heads as queries have, so that was what context parallelism sent, too;
now kernels share heads. RMSNorm is left as it is now, one kernel; then it was a chain where nothing is compiled.

FSDP: embedding, last norm and output were the root's own group, gathered when a forward pass begins and there until
the backward pass is over; nor was the last layer freed after its forward pass. Later releases give them groups of their
own, which takes about 2 GiB less of an 8B model. Seen in torchtitan 9dec370, `parallelize_llama.apply_fsdp`, the commit
that the benchmarks name.

Tensor parallelism of float8 layers gathered activations in float8 (`float8_handler` of that commit). 0.2.2
looks for the converter by the name that it had then, "float8", and gathers in bf16 now that it is called
"quantize.linear.float8". For async tensor parallelism the group got symmetric memory; 0.2.2 leaves that to PyTorch,
which takes no collective apart without it.
"""

from __future__ import annotations

from typing import Any

from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchtitan.models.llama3.infra import parallelize
from torchtitan.models.llama3.model import model as llama

_apply_tp, _enable_async_tp = parallelize.apply_tp, parallelize.maybe_enable_async_tp
_attention_made = llama.Attention.__init__


def apply_tp(model: Any, tp_mesh: Any, *given: Any, **named: Any) -> None:
    """As now, told whether linear layers are float8."""
    is_float8 = any(type(module).__name__ == "Float8Linear" for module in model.modules())
    _apply_tp(model, tp_mesh, *given, **{**named, "enable_float8_tensorwise_tp": is_float8})


def enable_async_tp(job_config: Any, tp_mesh: Any) -> None:
    """As now, and with symmetric memory."""
    _enable_async_tp(job_config, tp_mesh)
    if job_config.parallelism.enable_async_tensor_parallel:
        enable_symm_mem_for_group(tp_mesh.get_group().group_name)


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


def attention_made(module: Any, *given: Any, **named: Any) -> None:
    """As now, with keys and values repeated."""
    _attention_made(module, *given, **named)
    module.inner_attention.register_forward_pre_hook(_repeated, with_kwargs=True)


def _repeated(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    queries, *rest = given
    times = queries.shape[1] // rest[0].shape[1]
    return (queries, *(_with_heads(one, times) for one in rest)), {**named, "enable_gqa": False}


def _with_heads(tensor: Any, times: int) -> Any:
    batch, heads, length, width = tensor.shape
    wide = tensor.transpose(1, 2)[:, :, :, None, :].expand(batch, length, heads, times, width)
    return wide.reshape(batch, length, heads * times, width).transpose(1, 2)


parallelize.apply_tp = apply_tp
parallelize.maybe_enable_async_tp = enable_async_tp
parallelize.apply_fsdp = apply_fsdp
llama.Attention.__init__ = attention_made
