"""Packages of GPU kernels that a script cannot do without and that are not installed here: flash-attn, for one.

They are only put in place where the script ended because it could not import them, so a script that has another way
takes it, as it would. Attention is PyTorch's own flash attention, which is the same kernel; a norm, a rotation or a
loss is one op that reads and writes the tensors that the package's kernel does, as are Triton kernels. What is not
named here is missing, as before.

Public names of flash-attn 2.8 and 3, and the private ones that ring attention calls (`_flash_attn_forward` and its
likes); `kernels.get_kernel`, which downloads the same; those of grouped_gemm 1.1 that mixtures of experts call, its
product being PyTorch's own grouped one.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private.flash_attention import attention_functions

if TYPE_CHECKING:
    import torch

VERSIONS = {"flash_attn": "2.8.3", "flash_attn_interface": "3.0.0", "kernels": "0.10.0", "grouped_gemm": "1.1.4"}
_ASKED_FOR = re.compile(r"flash[ _-]?attn|flash[ _-]?attention", re.IGNORECASE)
Launch = Callable[[str, "Sequence[torch.Tensor]"], None]
Content = Mapping[str, object]  # of a module


def stand_in_for(error: BaseException) -> str:
    """The package whose absence ended the script, if it is one of these; else ""."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ImportError):
            root = (seen.name or "").partition(".")[0]
            if root in VERSIONS:
                return root
            if root == "" and _ASKED_FOR.search(str(seen)):
                return "flash_attn"
        trace = seen.__traceback__
        while trace is not None:
            if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "kernels":
                return "kernels"
            trace = trace.tb_next
        seen = seen.__cause__ or seen.__context__
    return ""


@contextmanager
def stand_ins(names: Sequence[str], launch: Launch, note: Callable[[str], None]) -> Iterator[None]:
    """Put these packages in place until exit, and say so to `note`."""
    if not names:
        yield
        return
    modules: dict[str, Content] = {}
    makers = {"flash_attn": _flash_attn, "flash_attn_interface": _flash_attn_3, "kernels": _kernels}
    makers["grouped_gemm"] = _grouped_gemm
    for name in names:
        modules |= makers[name](launch)
        note(
            f"{name} is not installed here: its {'products are' if name == 'grouped_gemm' else 'attention is'} recorded"
            " as PyTorch's own, the same kernel; its other kernels as one op of their tensors each"
        )
    before = {name: sys.modules.get(name) for name in modules}
    for name in names:
        for word in [module for module in sys.modules if module.partition(".")[0] == name]:
            before.setdefault(word, sys.modules.pop(word))
    for name, content in modules.items():
        sys.modules[name] = _module(name, content, is_package=any(word.startswith(f"{name}.") for word in modules))
    for name in modules:
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, sys.modules[name])
    version = importlib.metadata.version

    def version_of(distribution: str) -> str:
        name = distribution.replace("-", "_")
        return VERSIONS[name] if name in names else version(distribution)

    mapping = importlib.metadata.packages_distributions

    def distributions() -> dict[str, list[str]]:
        return {**mapping(), **{name: [name.replace("_", "-")] for name in names}}

    try:
        with Replacements(
            (importlib.metadata, "version", version_of), (importlib.metadata, "packages_distributions", distributions)
        ):
            yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def _module(name: str, content: Content, *, is_package: bool) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    module.__file__ = f"<windtunnel stand-in for {name}>"
    if is_package:
        module.__path__ = []
    vars(module).update(content)
    return module


def _one_kernel(launch: Launch) -> Callable[..., torch.Tensor]:
    """`f(name, like, *tensors)`: a kernel that reads tensors and writes one like `like`, backward too."""
    import torch

    class Kernel(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            context: torch.autograd.function.FunctionCtx, name: str, like: torch.Tensor, *tensors: object
        ) -> torch.Tensor:
            out = torch.empty_like(like)
            inputs = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
            launch(name, [*inputs, out])
            context.name, context.tensors = name, tensors
            return out

        @staticmethod
        def backward(
            context: torch.autograd.function.FunctionCtx, grad: torch.Tensor
        ) -> tuple[torch.Tensor | None, ...]:
            gradients = [torch.empty_like(tensor) if needed else None for tensor, needed in _needed(context)]
            inputs = [tensor for tensor in context.tensors if isinstance(tensor, torch.Tensor)]
            launch(
                f"{context.name}_backward",
                [grad, *inputs, *(gradient for gradient in gradients if gradient is not None)],
            )
            return (None, None, *gradients)

    def _needed(context: torch.autograd.function.FunctionCtx) -> list[tuple[torch.Tensor, bool]]:
        return list(zip(context.tensors, context.needs_input_grad[2:], strict=True))

    return lambda name, like, *tensors: Kernel.apply(name, like.detach(), *tensors)


def _flash_attn(launch: Launch) -> dict[str, Content]:
    import torch

    attention, kernel = attention_functions(), _one_kernel(launch)

    def layer_norm_fn(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        x1: object = None,
        weight1: object = None,
        bias1: object = None,
        eps: float = 1e-6,
        dropout_p: float = 0.0,
        rowscale: object = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
        is_rms_norm: bool = False,
        return_dropout_mask: bool = False,
        **_: object,
    ) -> object:
        name = "rms_norm" if is_rms_norm else "layer_norm"
        added = x if residual is None else x + residual
        out = kernel(name, x, added, weight, bias)
        return (out, added) if prenorm else out

    def rms_norm_fn(x: torch.Tensor, weight: torch.Tensor, *more: Any, **kwargs: Any) -> object:
        return layer_norm_fn(x, weight, *more, **{**kwargs, "is_rms_norm": True})

    def apply_rotary_emb(
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        interleaved: bool = False,
        inplace: bool = False,
        seqlen_offsets: object = 0,
        cu_seqlens: object = None,
        max_seqlen: object = None,
    ) -> object:
        if inplace and not x.requires_grad:
            launch("rotary", [x, cos, sin])
            return x
        return kernel("rotary", x, x, cos.detach(), sin.detach())

    class RMSNorm(torch.nn.Module):  # type: ignore[misc]
        def __init__(
            self,
            hidden_size: int,
            eps: float = 1e-5,
            device: torch.device = None,
            dtype: torch.dtype = None,
            **_: object,
        ):
            super().__init__()
            self.eps = eps
            self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))

        def forward(
            self, x: torch.Tensor, residual: torch.Tensor | None = None, prenorm: bool = False, **_: object
        ) -> object:
            return rms_norm_fn(x, self.weight, None, residual=residual, eps=self.eps, prenorm=prenorm)

    class RotaryEmbedding(torch.nn.Module):  # type: ignore[misc]
        def __init__(
            self,
            dim: int,
            base: float = 10000.0,
            interleaved: bool = False,
            scale_base: float | None = None,
            pos_idx_in_fp32: bool = True,
            device: torch.device = None,
        ):
            super().__init__()
            self.dim, self.base, self.interleaved = dim, float(base), interleaved
            self.scale_base, self.scale, self.pos_idx_in_fp32 = scale_base, None, pos_idx_in_fp32
            self._seq_len_cached, self._cos_cached, self._sin_cached = 0, None, None
            self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)

        def _compute_inv_freq(self, device: torch.device = None) -> torch.Tensor:
            return self.base ** -(torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim)

        def _update_cos_sin_cache(self, seqlen: int, device: torch.device = None, dtype: torch.dtype = None) -> None:
            if seqlen > self._seq_len_cached:
                self._seq_len_cached = seqlen
                angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), self.inv_freq.to(device))
                self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)

        def forward(
            self,
            qkv: torch.Tensor,
            kv: torch.Tensor | None = None,
            seqlen_offset: object = 0,
            max_seqlen: int | None = None,
            **_: object,
        ) -> object:
            self._update_cos_sin_cache(int(max_seqlen or qkv.shape[1]), qkv.device, qkv.dtype)
            cos, sin = self._cos_cached, self._sin_cached
            turned = kernel("rotary", qkv, qkv, cos, sin)
            return turned if kv is None else (turned, kernel("rotary", kv, kv, cos, sin))

    def cross_entropy_loss(
        logits: torch.Tensor, labels: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.empty(logits.shape[:-1], dtype=torch.float32, device=logits.device)
        return kernel("cross_entropy", rows, logits, labels), torch.zeros_like(rows)

    class CrossEntropyLoss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, ignore_index: int = -100, reduction: str = "mean", **_: object):
            super().__init__()
            self.reduction = reduction

        def forward(self, input: torch.Tensor, target: torch.Tensor, **_: object) -> object:
            rows = cross_entropy_loss(input, target)[0]
            return {"mean": rows.mean, "sum": rows.sum}.get(self.reduction, lambda: rows)()

    def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return input[indices]

    def unpad_input(
        hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: object = None
    ) -> tuple[object, ...]:
        lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
        indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
        ends = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
        rows = hidden_states.flatten(0, 1)[indices]
        return rows, indices, ends, int(attention_mask.shape[1]), lengths

    def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
        out = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
        out[indices] = hidden_states
        return out.unflatten(0, (batch, seqlen))

    norms = {"layer_norm_fn": layer_norm_fn, "rms_norm_fn": rms_norm_fn, "RMSNorm": RMSNorm}
    return {
        "flash_attn": {**attention, "__version__": VERSIONS["flash_attn"]},
        "flash_attn.flash_attn_interface": attention,
        "flash_attn.bert_padding": {
            "index_first_axis": index_first_axis,
            "unpad_input": unpad_input,
            "pad_input": pad_input,
        },
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": apply_rotary_emb, "RotaryEmbedding": RotaryEmbedding},
        "flash_attn.modules": {},
        "flash_attn.modules.mha": attention,
        "flash_attn.losses": {},
        "flash_attn.losses.cross_entropy": {"CrossEntropyLoss": CrossEntropyLoss},
        "flash_attn.ops": {},
        "flash_attn.ops.rms_norm": {"RMSNorm": RMSNorm, "rms_norm": rms_norm_fn},
        "flash_attn.ops.triton": {},
        "flash_attn.ops.triton.layer_norm": norms,
        "flash_attn.ops.triton.cross_entropy": {"cross_entropy_loss": cross_entropy_loss},
    }


def _flash_attn_3(launch: Launch) -> dict[str, Content]:
    second = attention_functions()

    def without_dropout(name: str, tensors: int) -> Callable[..., object]:
        """FlashAttention-3 takes no dropout: what follows the tensors is the scale."""
        function = second[name]

        def call(*args: object, softmax_scale: object = None, causal: object = False, **kwargs: object) -> object:
            scale = args[tensors] if len(args) > tensors else softmax_scale
            causal = args[tensors + 1] if len(args) > tensors + 1 else causal
            options = {key: kwargs[key] for key in ("window_size", "return_attn_probs") if key in kwargs}
            lengths = {key: value for key, value in kwargs.items() if key.startswith(("cu_seqlens", "max_seqlen"))}
            return function(*args[:tensors], **lengths, softmax_scale=scale, causal=causal, **options)

        return call

    functions = {
        "flash_attn_with_kvcache": second["flash_attn_with_kvcache"],
        "flash_attn_func": without_dropout("flash_attn_func", 3),
        "flash_attn_varlen_func": without_dropout("flash_attn_varlen_func", 7),
    }
    return {"flash_attn_interface": functions}


def _grouped_gemm(launch: Launch) -> dict[str, Content]:
    import torch

    kernel = _one_kernel(launch)

    def gmm(
        a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_a: bool = False, trans_b: bool = False
    ) -> torch.Tensor:
        """Rows of `a` that belong to an expert times its matrix; `trans_a`: a matrix for each expert, of its rows."""
        ends = batch_sizes.cumsum(0).to(device=a.device, dtype=torch.int32)
        return torch._grouped_mm(a.t() if trans_a else a, b.transpose(-2, -1) if trans_b else b, offs=ends)

    def permute(
        input_act: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None, max_token_num: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens in the order of their experts, one copy for each expert of a token, and where each went."""
        where = torch.empty(indices.numel(), dtype=torch.int32, device=input_act.device)
        launch("sort_rows", [indices, where])
        rows = input_act.new_empty((num_out_tokens or indices.numel(), input_act.shape[-1]))
        return kernel("permute", rows, input_act), where

    def unpermute(input_act: torch.Tensor, row_id_map: torch.Tensor, probs: torch.Tensor | None = None) -> torch.Tensor:
        """Back, with the copies of a token added up."""
        experts = 1 if probs is None else probs.shape[-1]
        like = input_act.new_empty((row_id_map.numel() // experts, input_act.shape[-1]))
        return kernel("unpermute", like, input_act, row_id_map, probs)

    functions = {"gmm": gmm, "permute": permute, "unpermute": unpermute}
    return {"grouped_gemm": {"__version__": VERSIONS["grouped_gemm"]}, "grouped_gemm.ops": functions}


def _kernels(launch: Launch) -> dict[str, Content]:
    third = _module("flash_attn_interface", _flash_attn_3(launch)["flash_attn_interface"], is_package=False)

    def get_kernel(repo_id: str, *_: object, **__: object) -> ModuleType:
        if not re.search(r"flash[-_]?attn|flash[-_]?attention", repo_id, re.IGNORECASE):
            raise ImportError(f"the kernel {repo_id} is not here, and windtunnel has no stand-in for it")
        if repo_id.rstrip("0123456789").lower().endswith(("flash-attn", "flash_attn", "attention-")):
            content = {**_flash_attn_3(launch)["flash_attn_interface"], "flash_attn_interface": third}
            return _module("flash_attn_kernel", content, is_package=False)
        return _module("flash_attn_kernel", attention_functions(), is_package=False)

    return {"kernels": {"get_kernel": get_kernel, "has_kernel": lambda *_, **__: True, "__version__": "0.10.0"}}
