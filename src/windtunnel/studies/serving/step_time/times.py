"""The same prices as fast tables, in integer ticks of 1/1024 ns.

    decode step    t = base[b, segment] + slope[b, segment] x (sum of contexts),   whole ticks
    mixed step     t = dense(T) + group(G) + decode attention + sum over chunks of prefill attention + head + host

For a given batch the decode time is a straight line between two context nodes: k steps in a row, in which the sum of
contexts grows by b each, take k t0 + s k (k - 1) / 2 with s = slope x b. Every step is a whole number of ticks, so the
closed form and one step at a time give the same integer.

With speculation a step computes 1 + d tokens per sequence and gives 1 + a + ... + a^d of them on average. It is
simulated as that many steps of one token, each with its share of the time, so tokens, contexts and blocks stay exact.

Attention ranks (`attn_dp`) step together: sequences spread evenly over them, prompts go to the least loaded, and the
longest rank is waited for. A pipeline holds as many micro-batches as stages; each passes all stages, in the order in
which they came, so that a round takes as many times the longest as there are stages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log
from typing import Protocol

from windtunnel.studies.serving.engines.profile import Profile

TICKS_PER_NS = 1024
SHIFT = TICKS_PER_NS.bit_length() - 1  # ticks >> SHIFT = ns
TICKS_PER_S = TICKS_PER_NS * 10**9
EXPERT_KNEE = 512.0  # tokens of a step, of all attention ranks
LONG_CHUNK = 2048  # tokens at which attention of a prompt is at its rate
PER_OCTAVE = 2  # nodes per doubling in tables over tokens


class Prices(Protocol):
    """What a step is made of, in seconds: `layers.Layers`, or tables of measured kernels, which have one stage."""

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return 1

    def dense(self, tokens: float) -> float:
        """All that sees the tokens of one attention rank."""

    def group(self, tokens: float) -> float:
        """All that sees the tokens of every rank, beyond what `dense` has."""
        return 0.0

    def exchange(self, tokens: float) -> float:
        """Of `group`: what lies between attention ranks and experts."""
        return 0.0

    def decode_surface(self, queries: int = 1) -> Callable[[float, float], float]:
        """Decode attention over (sequences of one rank, mean context), each with so many new tokens."""

    def decode_nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(batches, contexts) between which the surface is straight."""

    def prefill(self, chunk: int, past: int) -> float:
        """Attention of one prompt's chunk."""

    def head(self, sequences: float) -> float:
        """Output matrix and sampling, where `dense` has them not."""
        return 0.0

    def handover(self, tokens: float) -> float:
        """Activations to the next stage."""
        return 0.0


@dataclass(frozen=True)
class DecodeLine:
    """Step times of one batch size: straight lines over the sum of contexts."""

    ends: tuple[int, ...]  # sum of contexts up to which a segment holds; the last is without end
    base: tuple[int, ...]  # ticks
    slope: tuple[int, ...]  # ticks per cached token

    def at(self, context_sum: int) -> int:
        """Ticks of one step."""
        place = bisect_left(self.ends, context_sum)
        return self.base[place] + self.slope[place] * context_sum


@dataclass(eq=False)
class StepTimes:
    """Times of a deployment's iterations, remembered as they are asked for."""

    prices: Prices
    profile: Profile
    layers: float  # of one stage
    ranks: int = 1  # attention ranks of the replica
    speculative: tuple[int, float] = (0, 0.0)  # tokens drafted per step, acceptance
    sums: float = 0.0  # sums over tensor-parallel ranks in one stage
    dense_factor: float = 1.0  # on prompts' dense kernels, beside the profile's own
    expert_marginal: float = 1.0  # share of the experts' time per further token beyond EXPERT_KNEE
    draft_step_s: float = 0.0  # of every step that drafts: launches that no graph holds
    _decode: dict[int, DecodeLine] = field(default_factory=dict, repr=False)
    _steps: dict[tuple[int, int], list[float]] = field(default_factory=dict, repr=False)
    _nodes: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict, repr=False)
    _prefill: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)
    _mixed: dict[int, float] = field(default_factory=dict, repr=False)
    _heads: dict[int, float] = field(default_factory=dict, repr=False)
    _attention: dict[int, list[float]] = field(default_factory=dict, repr=False)

    @cached_property
    def _surface(self) -> Callable[[float, float], float]:
        return self.prices.decode_surface()

    @cached_property
    def _checking(self) -> Callable[[float, float], float]:
        """Of 1 + d new tokens of each sequence."""
        drafted = self.speculative[0]
        return self.prices.decode_surface(1 + drafted) if drafted else self._surface

    @cached_property
    def _stages(self) -> int:
        return self.prices.stages

    @cached_property
    def _contexts(self) -> tuple[float, ...]:
        return self.prices.decode_nodes()[1]

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a sequence per decode step: 1 + a + ... + a^d with d drafted, each kept with chance a."""
        drafted, chance = self.speculative
        return sum(chance**place for place in range(drafted + 1))

    def decode(self, sequences: int) -> DecodeLine:
        """Step times of `sequences` that all add one token."""
        line = self._decode.get(sequences)
        if line is None:
            line = self._decode[sequences] = self._line(sequences)
        return line

    def doubt(self, sequences: float, context: float) -> float:
        """How much of a decode step, in logarithm, `expert_marginal` decides: none where no step passes the knee."""
        if self.expert_marginal == 1.0:
            return 0.0
        batch = max(1, round(sequences))
        plain = replace(self, expert_marginal=1.0, _decode={}, _steps={}, _mixed={})
        whole = round(batch * context)
        return abs(log(plain.decode(batch).at(whole) / self.decode(batch).at(whole)))

    def mixed(self, decoding: int, context_sum: int, chunks: Sequence[tuple[int, int]], finishing: int) -> int:
        """Ticks of a step with prompt chunks (tokens, tokens before them) beside `decoding` sequences.

        `finishing`: chunks that end their prompt, so that their sequence gets its first token.
        """
        stages, ranks, profile = self._stages, self.ranks, self.profile
        batches = ranks * stages
        fresh = 0
        attention = 0.0
        if batches == 1:
            for n, past in chunks:
                fresh += n
                attention += self._prompt(n, past)
            tokens = decoding + fresh
            fixed = self._mixed.get(tokens)
            if fixed is None:
                fixed = self._mixed[tokens] = self._kernels_of_mixed(float(tokens), tokens)
        else:
            fresh = sum(n for n, _ in chunks)
            own, attention = self._fullest(decoding, chunks)
            fixed = self._kernels_of_mixed(own, max(own, (decoding + fresh) / stages))
        if decoding:
            context = context_sum / decoding
            alone = self._beside(decoding, batches, context)
            attention += max(alone, decoding / batches * self._tile(context)) if profile.mixed_decode_tile else alone
        sampled = decoding + finishing
        head = self._heads.get(sampled)
        if head is None:
            head = self._heads[sampled] = self.over("head", max(1.0, sampled / batches))
        gpu = fixed + stages * (attention * profile.prefill_attention_factor + head)
        launched = stages * self.layers * max(profile.eager_layer_s, profile.prompt_layer_s)
        if gpu < launched:
            gpu = launched
        exposed = self._exposed((decoding + len(chunks)) / ranks, gpu)
        return max(1, round(TICKS_PER_S * (gpu + profile.mixed_step_s + exposed)))

    def _beside(self, decoding: int, batches: int, context: float) -> float:
        """Attention of sequences that decode beside prompts; straight between contexts, as that of a decode step."""
        nodes = self._contexts
        if not nodes[0] < context < nodes[-1]:
            return self._surface(decoding / batches, context)
        seconds = self._attention.get(decoding)
        if seconds is None:
            seconds = self._attention[decoding] = [self._surface(decoding / batches, node) for node in nodes]
        place = bisect_right(nodes, context)
        low, high = nodes[place - 1], nodes[place]
        return seconds[place - 1] + (seconds[place] - seconds[place - 1]) * (context - low) / (high - low)

    def _kernels_of_mixed(self, tokens: float, group_tokens: float) -> float:
        """What a mixed step's kernels take beside attention and head: of its tokens alone.

        `tokens` of one micro-batch of one attention rank, `group_tokens` of one micro-batch of all ranks.
        """
        profile, stages = self.profile, self.prices.stages
        seconds = self.over("dense", tokens) * profile.prefill_factor * self.dense_factor
        factor = profile.expert_prefill_factor if self.ranks == 1 else profile.expert_prefill_factor_ranks
        seconds += self._group(group_tokens) * factor
        hops = max(0, self.ranks - 2)
        if profile.uneven_exchange_hop and hops:
            seconds += profile.uneven_exchange_hop * hops * self.over("exchange", group_tokens)
        seconds += self.prices.handover(tokens)
        gaps = self.layers * profile.layer_gap_s + self.sums * profile.collective_gap_s
        return stages * (seconds + gaps)

    def _group(self, tokens: float) -> float:
        """Experts at the tokens of all attention ranks."""
        seconds = self.over("group", tokens)
        if self.expert_marginal == 1.0 or tokens <= EXPERT_KNEE:
            return seconds
        knee = self.over("group", EXPERT_KNEE)
        return knee + self.expert_marginal * (seconds - knee)

    def over(self, part: str, size: float) -> float:
        """`dense`, `group`, `exchange` or `head` at a size, straight between nodes."""
        table = self._nodes.get(part)
        if table is None:
            nodes = sorted({float(round(2.0 ** (i / PER_OCTAVE))) for i in range(15 * PER_OCTAVE + 1)})
            price = getattr(self.prices, part)
            table = self._nodes[part] = (nodes, [price(node) for node in nodes])
        nodes, seconds = table
        if size <= nodes[0]:
            return seconds[0]
        place = min(bisect_right(nodes, size), len(nodes) - 1)
        low, high = nodes[place - 1], nodes[place]
        return seconds[place - 1] + (seconds[place] - seconds[place - 1]) * (size - low) / (high - low)

    def _seconds(self, of_rank: int, hosted: int) -> list[float]:
        """A token's share of a decode step at each context, graph padding, host and speculation included.

        `of_rank` sequences of a micro-batch of one attention rank, `hosted` of that rank.
        """
        entry = self._steps.get((of_rank, hosted))
        if entry is not None:
            return entry
        profile, stages, ranks = self.profile, self.prices.stages, self.ranks
        drafted = self.speculative[0]
        padded, captured = profile.padded(of_rank * (1 + drafted))
        fixed = self.over("dense", padded) * profile.decode_factor + self.prices.handover(padded)
        expert_factor = profile.expert_factor if ranks == 1 else profile.expert_factor_ranks
        buffered = max(padded, profile.all_to_all_buffer) if captured and ranks > 1 else padded
        fixed += self._group(buffered * ranks) * expert_factor
        fixed = stages * (fixed + self.over("head", of_rank * (1 + drafted)))  # the last stage's; the others wait
        layers = stages * self.layers
        fixed += layers * profile.layer_gap_s + stages * self.sums * profile.collective_gap_s
        if not captured:
            fixed = max(fixed, layers * profile.eager_layer_s)
        fixed += drafted * (fixed / max(1.0, layers) + self.over("head", of_rank))  # one layer and the head per draft
        fixed += self.draft_step_s if drafted else 0.0
        gained = self.tokens_per_step
        times = []
        for context in self._contexts:
            attention = stages * self._checking(of_rank, context) * profile.attention_factor * (1.0 + drafted / layers)
            gpu = fixed + attention
            times.append((gpu + self._exposed(hosted, gpu)) / gained)
        self._steps[of_rank, hosted] = times
        return times

    def _line(self, sequences: int) -> DecodeLine:
        """Straight lines of one batch."""
        contexts, ranks = self._contexts, self.ranks
        times = self._seconds(-(-sequences // (ranks * self.prices.stages)), -(-sequences // ranks))
        ends, base, slope = [], [], []
        for place in range(len(contexts) - 1):
            low, high = contexts[place] * sequences, contexts[place + 1] * sequences
            per_token = (times[place + 1] - times[place]) / (high - low)
            ticks = max(0, round(TICKS_PER_S * per_token))
            ends.append(int(high))
            slope.append(ticks)
            base.append(max(1, round(TICKS_PER_S * times[place] - ticks * low)))
        per_token = max(times[-1] - times[-2], 0.0) / ((contexts[-1] - contexts[-2]) * sequences)
        ticks = round(TICKS_PER_S * per_token)
        ends.append(1 << 62)
        slope.append(ticks)
        base.append(max(1, round(TICKS_PER_S * times[-1] - ticks * contexts[-1] * sequences)))
        return DecodeLine(tuple(ends), tuple(base), tuple(slope))

    def _exposed(self, sequences: float, gpu: float) -> float:
        """What of the host's time is seen: all of it, or, planned while the GPU runs, what is longer.

        `sequences` of one attention rank. In a pipeline the host walks over all of them for each micro-batch, while
        others run; what a micro-batch itself waits for it is its own.
        """
        profile, stages = self.profile, self._stages
        host = profile.step_s + profile.sequence_s * sequences
        hidden = profile.asynchronous and (profile.drafting_overlaps or not self.speculative[0])
        if stages > 1 and not profile.pipeline_hides_host:
            return stages * host
        return max(0.0 if hidden else host, stages * host - gpu)

    def _tile(self, context: float) -> float:
        """Attention of a tile's rows against a whole context: its part of a long chunk's, which is causal in itself."""
        share = self.profile.mixed_decode_tile / LONG_CHUNK
        return self._prompt(LONG_CHUNK, int(context)) * share * context / (context + LONG_CHUNK / 2)

    def _prompt(self, chunk: int, past: int) -> float:
        """Prefill attention in one stage, from a table over (chunk, past) with two nodes per octave."""
        entry = self._prefill.get((chunk, past))
        if entry is not None:
            return entry
        low, high, share = _between(chunk)
        seconds = (1.0 - share) * self._prompt_row(low, past) + share * self._prompt_row(high, past)
        if len(self._prefill) < 1 << 16:
            self._prefill[chunk, past] = seconds
        return seconds

    def _prompt_row(self, chunk: int, past: int) -> float:
        if past == 0:
            return self._prompt_node(chunk, 0)
        low, high, share = _between(past)
        return (1.0 - share) * self._prompt_node(chunk, low) + share * self._prompt_node(chunk, high)

    def _prompt_node(self, chunk: int, past: int) -> float:
        entry = self._prefill.get((-chunk, past))
        if entry is None:
            entry = self._prefill[-chunk, past] = self.prices.prefill(chunk, past)
        return entry

    def _fullest(self, decoding: int, chunks: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """(tokens, prefill attention) of the attention rank or micro-batch with the most: prompts to the least loaded.

        Ranks step together, and micro-batches follow each other in a fixed order, so the fullest sets the pace.
        """
        batches = self.ranks * self.prices.stages
        tokens = [0.0] * batches
        attention = [0.0] * batches
        for n, past in sorted(chunks, reverse=True):
            place = tokens.index(min(tokens))
            tokens[place] += n
            attention[place] += self._prompt(n, past)
        return max(tokens) + decoding / batches, max(attention)


def _between(size: int) -> tuple[int, int, float]:
    """The nodes around a size, and where between them it lies; a node is 2^(i/2), rounded."""
    if size <= 1:
        return 1, 1, 0.0
    place = bisect_right(_NODES, size)
    if place == len(_NODES):
        return _NODES[-2], _NODES[-1], (size - _NODES[-2]) / (_NODES[-1] - _NODES[-2])
    low, high = _NODES[place - 1], _NODES[place]
    return low, high, (size - low) / (high - low)


_NODES = sorted({round(2.0 ** (i / 2)) for i in range(2 * 20 + 1)})
