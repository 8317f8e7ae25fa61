"""Decisions of vLLM's own scheduler, step by step, without a GPU.

    python validation/oracles/vllm_scheduler.py < loads.json > decisions.json

Needs vLLM's Python files and their ordinary dependencies, none of its compiled parts. Where the package is not
installed: unpack the wheel (`pip download vllm==0.22.1 --no-deps`; only `*.py` matters), put what it imports beside it
(`pip install --target`), and name both folders in WINDTUNNEL_VLLM, joined as in PATH.

A load: blocks, block_size, budget, sequences, max_model_len, reserve_full, and requests [arrival step, prompt, output].
Each step takes one unit of time. A decision: {request: tokens of the step}, and who was preempted.
"""

from __future__ import annotations

import json
import os
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

STUBBED = ("aiohttp", "openai_harmony", "llguidance", "xgrammar")  # imported, not used here


class _Anything:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class _Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {})


class _Fields:
    """A plain object; what it was not given is None."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def prepare() -> None:
    """Make vLLM importable."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.path[:0] = [one for one in os.environ.get("WINDTUNNEL_VLLM", "").split(os.pathsep) if one]
    for name in STUBBED:
        stub = _Stub(name)
        stub.__path__ = []
        stub.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules.setdefault(name, stub)


def scheduler_of(load: dict[str, Any]) -> Any:
    """vLLM's Scheduler, first come, first served, chunked prefill, no prefixes kept."""
    import torch
    from vllm.config import CacheConfig, SchedulerConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    longest, size = load["max_model_len"], load["block_size"]
    settings = SchedulerConfig(
        max_num_batched_tokens=load["budget"],
        max_num_seqs=load["sequences"],
        max_model_len=longest,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        scheduler_reserve_full_isl=load["reserve_full"],
    )
    cache = CacheConfig(block_size=size, gpu_memory_utilization=0.9, enable_prefix_caching=False)
    blocks = cache.num_gpu_blocks = load["blocks"] + 1  # the first is the null block
    model = _Fields(
        max_model_len=longest,
        is_encoder_decoder=False,
        is_multimodal_model=False,
        enable_return_routed_experts=False,
        skip_tokenizer_init=True,
        runner_type="generate",
        is_hybrid=False,
    )
    sizes = ("pipeline_parallel", "data_parallel", "decode_context_parallel", "prefill_context_parallel")
    parallel = _Fields(
        **{f"{name}_size": 1 for name in sizes}, data_parallel_rank=0, data_parallel_index=0, world_size=1
    )
    config = _Fields(
        model_config=model,
        scheduler_config=settings,
        cache_config=cache,
        parallel_config=parallel,
        observability_config=_Fields(kv_cache_metrics=False, enable_mfu_metrics=False),
        structured_outputs_config=_Fields(),
        num_speculative_tokens=0,
    )
    spec = FullAttentionSpec(block_size=size, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    grammar = _Fields(grammar_bitmask=lambda *_: None, should_advance=lambda _: False)
    return Scheduler(
        vllm_config=config, kv_cache_config=kv, structured_output_manager=grammar, block_size=size, log_stats=False
    )


def decisions(load: dict[str, Any]) -> list[dict[str, Any]]:
    """Every step of a load."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    scheduler = scheduler_of(load)
    coming = [(at, place, prompt, output) for place, (at, prompt, output) in enumerate(load["requests"])]
    clock, found = 0, []
    while coming or scheduler.has_requests():
        if not scheduler.has_requests():
            clock = max(clock, coming[0][0])
        while coming and coming[0][0] <= clock:
            _, place, prompt, output = coming.pop(0)
            scheduler.add_request(
                Request(
                    request_id=str(place),
                    prompt_token_ids=[1] * prompt,
                    sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
                    pooling_params=None,
                )
            )
        step = scheduler.schedule()
        names = list(step.num_scheduled_tokens)
        known = {name: scheduler.requests[name] for name in names}
        sampled = [
            [] if known[name].num_computed_tokens < known[name].num_tokens else [7]
            for name in names  # computed counts what this step adds
        ]
        if names:  # else it only tells workers who has gone
            clock += 1
            preempted = sorted(step.preempted_req_ids or ())
            found.append({"tokens": dict(step.num_scheduled_tokens), "preempted": preempted})
        scheduler.update_from_output(
            step,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: place for place, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
    return found


if __name__ == "__main__":
    prepare()
    json.dump([decisions(load) for load in json.load(sys.stdin)], sys.stdout)
