"""The rules by which a replica batches: an engine profile's defaults with what the deployment says instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile

RATIO_FLOOR = 0.14  # SGLang: the share of output that admission expects falls to this part of its start ...
RATIO_STEPS = 600  # ... over so many decode steps without a retraction (sglang/srt/managers/scheduler.py)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Limits of the whole replica: all attention ranks together."""

    batching: Literal["mixed", "prefill_first"] = "mixed"
    chunked: bool = True
    reserve: Literal["prompt", "output", "ratio"] = "prompt"
    reserve_ratio: float = 0.7
    max_num_seqs: int = 256
    token_budget: int = 8192
    longest_chunk: int = 8192  # of one prompt in one step
    block_size: int = 16
    watermark_blocks: int = 0
    prefix_caching: bool = False
    lag: bool = False  # a step is planned while the one before it runs: arrivals wait for one more
    gather: int = 1  # prompts that are waited for before any is admitted beside decodes ...
    gather_steps: int = 0  # ... but no longer than so many decode steps
    ranks: int = 1  # above one: attention ranks that wait for each other with their prompts, `gather_steps` at most
    receive_steps: int = 1  # the engine looks for new requests once in so many decode steps, and after prompts
    beside_blocks: int = 0  # of each sequence beside those of its tokens: windows of recent keys, states
    swap_ticks_per_block: int = 0  # above zero: preempted sequences go to host memory and come back at this price

    @property
    def longest_whole(self) -> int:
        """The longest prompt that one step can compute."""
        return min(self.longest_chunk, self.token_budget)


def expected_share(start: float, steps: int) -> float:
    """Share of the output still to come that admission expects, so many decode steps after the last retraction."""
    return max(RATIO_FLOOR * start, start - (1.0 - RATIO_FLOOR) * start * steps / RATIO_STEPS)


def rules_of(
    profile: Profile, deployment: Deployment, blocks: int, tokens_per_step: float = 1.0, beside_blocks: int = 0
) -> Rules:
    """The rules of a deployment; `blocks` in all, `beside_blocks` of each sequence whatever its length.

    `tokens_per_step` of a sequence: above 1 where tokens are drafted.

    A round of a pipeline is as many micro-batches as stages, each scheduled with a budget of tokens of its own.
    """
    ranks, stages = deployment.attn_dp, deployment.pp
    seqs = (deployment.max_num_seqs or profile.max_num_seqs) * (stages if profile.seqs_per_stage else 1)
    chosen = deployment.chunked_prefill
    caching = deployment.prefix_caching
    budget = profile.max_num_batched_tokens // (ranks if profile.ranks_share_tokens else 1)
    budget = deployment.max_num_batched_tokens or budget
    return Rules(
        batching=profile.batching,
        chunked=profile.chunked_prefill if chosen is None else chosen,
        reserve=profile.reserve,
        reserve_ratio=profile.reserve_ratio,
        max_num_seqs=seqs * ranks,
        token_budget=budget * ranks * stages,
        longest_chunk=budget,
        block_size=deployment.block_size or profile.block_size,
        watermark_blocks=int(profile.watermark * blocks),
        prefix_caching=profile.prefix_caching if caching is None else caching,
        lag=profile.delay_steps > 0 and (profile.drafting_overlaps or not deployment.speculative_tokens),
        gather=profile.gather if profile.gather_steps and profile.gather else 1,
        gather_steps=in_tokens(profile.gather_steps, tokens_per_step),
        ranks=ranks if profile.gather_steps and not profile.gather else 1,
        beside_blocks=beside_blocks,
        receive_steps=looks_every(profile.receive_steps, tokens_per_step),
    )


def looks_every(engine_steps: int, tokens_per_step: float) -> int:
    """Decode steps of one token, which is what a replica counts, between two looks for requests."""
    return max(1, in_tokens(engine_steps, tokens_per_step)) if engine_steps > 1 else 1


def in_tokens(engine_steps: int, tokens_per_step: float) -> int:
    """Decode steps of one token in so many of the engine's."""
    return round(engine_steps * tokens_per_step)
