"""What a forward pass of a model that transformers built multiplies, and what its cache holds behind it; no weights.

The model is on the meta device, so shapes alone are worked out. Products are sorted by what they multiply: by learned
matrices (`weights`, dense convolutions among them), two activations (`scores`: attention; `streams`: elsewhere), inside
of a scan over the tokens (`scans`: how a fused kernel does that is another matter than what the fallback in Python
multiplies), and convolutions channel by channel apart. FLOPs of each are those of `torch.utils.flop_counter`.

Attention is run as plain products of all tokens with all, whatever window masks them. Experts are run by transformers'
`batched_mm`, one product for each token and expert of its choice, and where a class has a loop of its own, counted as
that many. Whatever asks for a value that is not there is told 0.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

Module = Any  # of PyTorch, which only functions import
SCAN = re.compile(
    r"(delta_rule|_kda|kda_|selective_scan|selective_state|mamba_inner|ssd|chunk_scan|scan_combined|lightning|wkv|mlstm|segment_sum)",
    re.IGNORECASE,
)
ATTENDS = re.compile(r"attn|attention|mixer|self_att|rel_attn|indexer|temporal_block|[.]h[.]|xlm", re.IGNORECASE)
CROSSES = re.compile(r"(encoder_attn|crossattention|cross_attn)$")
ACTIVE: list[Products] = []


def mark_scans() -> None:
    """Name the scans that transformers has fused kernels for; before any model's module is imported."""
    from transformers import integrations
    from transformers.integrations import hub_kernels

    def decorator_of(name: str, *_: object, **__: object) -> Callable[..., object]:
        return lambda function: _inside(name, function)

    for module in (hub_kernels, integrations):
        module.use_kernel_func_from_hub_with_fallback = decorator_of


def _inside(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """The function, whose products are a scan's."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        if not ACTIVE:
            return function(*args, **kwargs)
        ACTIVE[-1].scans.append(name)
        try:
            return function(*args, **kwargs)
        finally:
            ACTIVE[-1].scans.pop()

    run.is_scan = True  # type: ignore[attr-defined]
    return run


class Products:
    """FLOPs by what is multiplied, of one pass; `by_path`: of which module."""

    def __init__(self, model: Module) -> None:
        self.flops: Counter[str] = Counter()
        self.by_path: Counter[tuple[str, str]] = Counter()
        self.scans: list[str] = []
        self.path: list[str] = [""]
        self.linear = {name for name, module in model.named_modules() if "Lightning" in type(module).__name__}
        self.learned = {p.untyped_storage()._cdata: p for p in model.parameters()}

    def add(self, kind: str, flops: int) -> None:
        """So many FLOPs."""
        path = self.path[-1]
        if "pooler" in path:  # of one token, and no part of a decoder
            return
        if (self.scans or path in self.linear) and kind in ("weights", "scores"):
            kind = "weights" if kind == "weights" and not self.scans else "scans"
        elif path.endswith("_input") or (kind == "scores" and not ATTENDS.search(path)):
            kind = "streams"
        self.flops[kind] += flops
        self.by_path[kind, re.sub(r"\b\d+\b", "N", self.path[-1])] += flops

    def mode(self) -> Any:
        """What sees every call of ATen."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        products = self

        class Seeing(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                packet = func._overloadpacket
                name = packet.__name__
                if name == "_local_scalar_dense" and args[0].is_meta:
                    kind = args[0].dtype
                    return False if kind == torch.bool else 0.0 if kind.is_floating_point else 0
                if name == "equal":
                    return True
                if name == "nonzero" and args[0].is_meta:
                    return torch.zeros(args[0].numel(), args[0].dim(), dtype=torch.long, device="meta")
                if name == "index" and args[0].is_meta:
                    args = args[0], [_all_of(index) for index in args[1]]
                if name in ("_unique2", "unique2") and args[0].is_meta:
                    return args[0].flatten(), args[0].flatten(), args[0].flatten()
                out = func(*args, **kwargs)
                tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
                tensors += [t for a in args if isinstance(a, (list, tuple)) for t in a if isinstance(t, torch.Tensor)]
                known = [t.untyped_storage()._cdata in products.learned for t in tensors if t.is_floating_point()]
                if packet in flop_registry:
                    kind = "weights" if any(known) else "scores"
                    kind = "convolutions" if "conv" in name and args[1].shape[1] == 1 else kind
                    products.add(kind, int(flop_registry[packet](*args, **kwargs, out_val=out)))
                elif known and all(known) and isinstance(out, torch.Tensor) and _stays(name, args[0]):
                    products.learned.setdefault(out.untyped_storage()._cdata, out)
                return out

        return Seeing()


def _all_of(index: Any) -> Any:
    """Numbers of all rows for a mask of some."""
    import torch

    one_dimension = index is not None and index.dtype == torch.bool and index.dim() == 1
    return torch.zeros(index.shape[0], dtype=torch.long, device="meta") if one_dimension else index


def _stays(name: str, source: Any) -> bool:
    """Whether what is made of learned numbers alone is a matrix still: rows that are looked up are not."""
    return name != "embedding" and not (name in ("index", "index_select", "gather") and source.dim() < 3)


def measured(model: Module, tokens: int, cached: tuple[int, ...]) -> dict[str, Any]:
    """FLOPs of one pass over so many tokens, and bytes of the cache behind passes over each of `cached`."""
    import torch

    torch.distributions.Distribution.set_default_validate_args(False)  # Gemma 3n asks for quantiles of a normal one
    model = text_model(model).eval()
    _answer_for_data()
    text = model.config.get_text_config()
    for module in model.modules():
        _loop_of_experts(module, getattr(text, "num_experts_per_tok", 1))
    _name_scans(model)
    products = Products(model)
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: products.path.append(name))
        module.register_forward_hook(lambda *_: [products.path.pop(), None][1])
    ACTIVE[:] = [products]
    with products.mode(), torch.no_grad(), torch.device("meta"):
        model(**_inputs(model, tokens), use_cache=False)
    flops, by_path = dict(products.flops), dict(products.by_path)
    caches: dict[int, int] = {}
    for count in cached:
        with products.mode(), torch.no_grad(), torch.device("meta"):
            made = model(**_inputs(model, count), use_cache=True)
        names = ("past_key_values", "cache_params", "state", "mems")
        kept = next((made[name] for name in names if name in made and made[name] is not None), None)
        numbers = [t for t in _tensors(kept) if t.is_floating_point()]
        storages = {t.untyped_storage()._cdata: t.numel() * t.element_size() for t in numbers}
        caches[count] = sum(storages.values())
    return {"flops": flops, "cache": caches, "by_path": by_path}


def text_model(model: Module) -> Module:
    """What takes tokens alone, where the whole asks for images or has no pass of its own (BLIP-2, Qwen2.5-Omni)."""
    wants = inspect.signature(model.forward).parameters
    inner = next((getattr(model, name) for name in ("thinker", "language_model") if hasattr(model, name)), None)
    needed = [p for name, p in wants.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    whole = "input_ids" in wants and len(needed) <= ("input_ids" in wants)
    return model if inner is None or (whole and not needed) else inner


def _inputs(model: Module, tokens: int) -> dict[str, Any]:
    import torch

    inputs = {"input_ids": torch.zeros(1, tokens, dtype=torch.long, device="meta")}
    crosses = next((m for name, m in model.named_modules() if CROSSES.search(name)), None)
    if "decoder_input_ids" in inspect.signature(model.forward).parameters:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    elif crosses is not None:
        width = next(p.shape[-1] for name, p in crosses.named_parameters() if re.search(r"k_proj|key", name))
        source = torch.zeros(1, tokens, width, dtype=model.dtype, device="meta")
        wanted = inspect.signature(model.forward).parameters
        inputs |= {name: source for name in ("encoder_hidden_states", "encoder_outputs") if name in wanted}
    return inputs


def _tensors(kept: Any, depth: int = 0) -> Iterator[Any]:
    import torch

    if isinstance(kept, torch.Tensor):
        yield kept
    elif isinstance(kept, dict):
        for inner in kept.values():
            yield from _tensors(inner, depth + 1)
    elif isinstance(kept, (list, tuple)):
        for inner in kept:
            yield from _tensors(inner, depth + 1)
    elif depth < 4 and hasattr(kept, "__dict__"):
        for inner in vars(kept).values():
            yield from _tensors(inner, depth + 1)


def _answer_for_data() -> None:
    """Masks as large as they are, of nothing."""
    import torch
    from transformers import masking_utils
    from transformers.masking_utils import AttentionMaskInterface

    def mask(
        *_: object, batch_size: int = 1, q_length: Any = None, kv_length: int = 0, cache_position: Any = None, **__: Any
    ) -> Any:
        if q_length is None:
            q_length = kv_length if cache_position is None else cache_position.shape[0]
        return torch.zeros(batch_size, 1, int(q_length), int(kv_length), device="meta", dtype=torch.bfloat16)

    masking_utils.find_packed_sequence_indices = lambda _: None
    for name in ("eager", "sdpa"):
        AttentionMaskInterface.register(name, mask)


def _name_scans(model: Module) -> None:
    for name in {type(module).__module__ for module in model.modules()}:
        module = sys.modules.get(name)
        if module is None or "transformers.models" not in name:
            continue
        for key, function in list(vars(module).items()):
            if inspect.isfunction(function) and SCAN.search(key) and not hasattr(function, "is_scan"):
                setattr(module, key, _inside(key, function))


def _loop_of_experts(module: Module, chosen: int) -> None:
    """Experts by transformers' own batched products; a class that has none is counted by its shapes."""
    import torch

    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "_experts_implementation_internal"):
        config._experts_implementation_internal = "batched_mm"
    own = type(module).forward
    if hasattr(own, "__wrapped__") and "experts" in getattr(own, "__qualname__", "").lower():
        return
    try:
        source = inspect.getsource(own)
    except (OSError, TypeError):
        return
    arguments = len(inspect.signature(own).parameters) - 1
    all_of_all = arguments == 1 and isinstance(getattr(module, "gate_up_proj", None), torch.nn.Parameter)
    if "expert" not in type(module).__name__.lower():
        return
    if not all_of_all and (arguments != 3 or not re.search(r"expert_hit|one_hot|nonzero\(|\.tolist\(\)", source)):
        return
    stacked = [p for p in module.parameters() if p.dim() == 3]
    one = sum(math.prod(p.shape[1:]) for p in stacked)
    if not stacked:
        experts = len(module) if isinstance(module, torch.nn.ModuleList) else module.num_experts
        one = sum(p.numel() for p in module.parameters() if p.dim() == 2) // experts

    def counted(hidden: Any, first: Any, second: Any) -> Any:
        index = second if first.is_floating_point() else first
        ACTIVE[-1].add("weights", 2 * (hidden.numel() // hidden.shape[-1]) * index.shape[-1] * one)
        return hidden * 1.0

    def given_all(hidden: Any) -> Any:
        """Llama 4 hands all tokens to each expert, zeros to those that a token does not choose."""
        ACTIVE[-1].add("weights", 2 * (hidden.shape[0] // stacked[0].shape[0]) * chosen * one)
        return hidden * 1.0

    module.forward = given_all if all_of_all else counted
