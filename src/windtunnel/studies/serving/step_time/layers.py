"""Kernels of one iteration on one rank, layer by layer, priced.

    dense(T)           projections, dense feed-forward, norms, tensor-parallel sums: the T tokens of this rank
    group(G)           routed experts and the exchange around them: the G tokens of all ranks together
    decode(b, c)       b sequences that add one token each, against c cached tokens on average
    prefill(n, p)      n tokens of one prompt after p that are cached
    head(s)            the output matrix for the s sequences that get a token, and sampling

MLA: decode attends in the latent space (absorbed products), prefill expands keys and values from it. Small kernels
(norms, rotary, activation, cache write, quantisation) are counted, and cost a launch inside a graph plus their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from windtunnel.physics.cost.inference import InferenceKernels
from windtunnel.physics.cost.inference.experts import WIDE
from windtunnel.physics.cost.inference.modules import Module, kind_of, module_of, streams_of
from windtunnel.physics.cost.inference.surface import Surface
from windtunnel.physics.cost.scans import mixer_s
from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model
from windtunnel.physics.model.mixers import Compressed, ExtendedBlock, Indexed, Recurrent, Streamed, absent
from windtunnel.studies.serving.adapters import adapters_of, products_s
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import order_of

TWO_BYTES = 2.0
SHARED_BESIDE = 256  # tokens up to which vLLM runs shared experts on a stream of their own
SMALL_KERNELS = 5  # per layer: two norms with residual, rotary and cache write, activation, and what fusion leaves


@dataclass(frozen=True, eq=False)
class Layers:
    """Prices of a deployment. All results in seconds; without what the host adds."""

    model: Model
    deployment: Deployment
    kernels: InferenceKernels
    kv: str
    filter_bytes: float = 0.0  # moved per logit to find the likeliest

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, float], ...]:
        """Each distinct layer and how often one pipeline stage has it on average."""
        return tuple((layer, count / self.deployment.pp) for layer, count in self.model.distinct_layers())

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.deployment.pp

    # ------------------------------------------------------------------------------------------ tokens of this rank

    def dense(self, tokens: float) -> float:
        """All that sees `tokens` of this rank, over the layers of one stage."""
        seconds = sum(count * self._dense(layer, tokens) for layer, count in self.kinds)
        if self.deployment.lora is None:
            return seconds
        size, tp, lora = self.model.hidden_size, self.deployment.tp, adapters_of(self.deployment.lora)
        stream_s = self.kernels.stream_s
        return seconds + sum(n * products_s(stream_s, layer, size, tp, lora, tokens) for layer, n in self.kinds)

    def _dense(self, layer: Layer, tokens: float) -> float:
        hidden, tp = self.model.hidden_size, self.deployment.tp
        seconds = (
            0.0
            if self._module(layer)
            else self._projections(layer.attention, tokens, self.deployment.projections(layer))
        )
        if isinstance(layer, Streamed):
            seconds += self._streams(layer.streams, tokens)
        block = layer.feed_forward
        if not block.size:
            pass  # a mixer alone
        elif block.kind == "dense":
            seconds += self._feed_forward(block.size, block.gated, tokens, tp)
        else:
            seconds += self.kernels.gemm_s(tokens, block.experts, hidden, "bf16")
            if block.shared_size:
                shared = self._feed_forward(block.shared_size, block.gated, tokens, tp)
                if self._shared_beside and tokens <= SHARED_BESIDE:
                    shared = max(0.0, shared - self._experts(layer, tokens * self.deployment.attn_dp))
                seconds += shared
        # A mixer or a feed-forward alone has one norm and one sum.
        halves = 2 if block.size and not absent(layer.attention) else 1
        sums = 1 if layer.parallel_block else halves
        seconds += sums * self.kernels.all_reduce_s(TWO_BYTES * tokens * hidden, tp)
        if layer.attention.qk_norm == "full":  # two sums of squares per token, over the heads of all ranks
            seconds += self.kernels.all_reduce_s(8.0 * tokens, tp)
        moved = TWO_BYTES * tokens * hidden * 3  # a norm with its residual: read two, write one, and the next reads it
        # Norms see every feature on every rank; what else there is, a rank's own heads and its part of the inner size.
        rest = self.kernels.stream_s(moved / 2 / tp)
        return seconds + halves * self.kernels.stream_s(moved) + (SMALL_KERNELS - 2) * rest

    @cached_property
    def _shared_beside(self) -> bool:
        """Whether shared experts run beside the routed ones: vLLM's, on NVIDIA (pull requests 26440, 28406, 30085)."""
        release, amd = order_of(self.kernels.release), self.kernels.gpu.generation.startswith("cdna")
        return self.kernels.framework == "vllm" and release >= order_of("0.12") and not amd

    def _module(self, layer: Layer) -> Module | None:
        """Its attention as timed whole, projections included."""
        if kind_of(layer.attention) is None:
            return None
        heads = -(-layer.attention.heads // self.deployment.tp)
        formats = (self.deployment.projections(layer), self.kv)
        return module_of(self.kernels.gpu, self.kernels.framework, layer.attention, heads, *formats)

    def _streams(self, streams: int, tokens: float) -> float:
        """Hyper-connections around both halves of a layer; every rank mixes all features."""
        timed = streams_of(self.kernels.gpu.kernel_tables, self.kernels.framework, self.model.hidden_size)
        if timed is not None:
            return 2.0 * timed.at(max(1.0, tokens))
        moved = TWO_BYTES * tokens * self.model.hidden_size * (3 * streams + 2)
        return 2.0 * (self.kernels.stream_s(moved) + 3 * self.kernels.stream_s(1.0))

    def _projections(self, attention: Attention, tokens: float, dtype: str) -> float:
        hidden, tp, gemm = self.model.hidden_size, self.deployment.tp, self.kernels.gemm_s
        heads = -(-attention.heads // tp)
        if absent(attention):
            return 0.0
        if isinstance(attention, Recurrent):
            width = (attention.in_width + attention.more_weights / hidden) / tp
            return gemm(tokens, width, hidden, dtype) + gemm(tokens, hidden, heads * attention.value_head_dim, dtype)
        if isinstance(attention, Compressed):
            rank, out = attention.q_lora_rank or hidden, attention.out_groups * attention.out_rank / tp
            scored = attention.index_heads * attention.index_dim
            way_in = gemm(tokens, attention.in_width, hidden, dtype) + gemm(
                tokens, heads * attention.head_dim + scored, rank, dtype
            )
            grouped = attention.heads * attention.head_dim / attention.out_groups
            return way_in + gemm(tokens, out, grouped, dtype) + gemm(tokens, hidden, out, dtype)
        if attention.kind == "mla":
            rank, queries = attention.kv_lora_rank or 0, attention.q_lora_rank or 0
            index = attention if isinstance(attention, Indexed) and attention.index_heads else None
            index_in = index.index_dim + index.index_heads if index else 0
            index_up = index.index_heads * index.index_dim if index else 0
            down = gemm(tokens, queries + rank + attention.rope_head_dim + index_in, hidden, dtype)
            up = gemm(tokens, heads * attention.head_dim + index_up, queries or hidden, dtype)
            return down + up + gemm(tokens, hidden, heads * attention.value_head_dim, dtype)
        kv = -(-attention.kv_heads // tp)
        width = heads * attention.head_dim + kv * (attention.head_dim + attention.value_head_dim)
        return gemm(tokens, width, hidden, dtype) + gemm(tokens, hidden, heads * attention.value_head_dim, dtype)

    def _feed_forward(self, size: int, gated: bool, tokens: float, tp: int) -> float:
        hidden, dtype, gemm = self.model.hidden_size, self.deployment.weights, self.kernels.gemm_s
        inner = -(-size // tp)
        return gemm(tokens, inner * (2 if gated else 1), hidden, dtype) + gemm(tokens, hidden, inner, dtype)

    # ----------------------------------------------------------------------------------------- tokens of the group

    def group(self, tokens: float) -> float:
        """Routed experts for the tokens of all attention ranks, and bringing tokens there and back."""
        return sum(count * self._experts(layer, tokens) for layer, count in self.kinds)

    def _experts(self, layer: Layer, tokens: float) -> float:
        block = layer.feed_forward
        if block.kind == "dense":
            return 0.0
        hidden = self.model.hidden_size
        latent = block.latent if isinstance(block, ExtendedBlock) else 0
        ways = 0.0
        if latent:
            gemm = self.kernels.gemm_s
            ways = gemm(tokens, latent, hidden, "bf16") + gemm(tokens, hidden, latent, "bf16")
            hidden = latent
        slices, groups = self.deployment.expert_sizes
        line = self.kernels.experts(
            hidden,
            block.size,
            block.experts_per_token,
            block.experts,
            slices,
            groups,
            self.deployment.experts_as(layer),
            block.gated,
        )
        return line.at(tokens) + ways + self._exchange(tokens, block)

    def _exchange(self, tokens: float, block: FeedForward) -> float:
        """Attention ranks with tokens of their own gather them before the experts and scatter the sums after.

        Over more GPUs than a node of eight, all on NVLink, engines send a token straight to the ranks that hold its
        experts and no others (one-sided all-to-all): of R ranks R (1 - (1 - 1 / R)^k) for k experts.
        """
        ranks = self.deployment.tp * self.deployment.attn_dp
        if self.deployment.attn_dp == 1:
            return 0.0  # the sum after the experts is that of `_dense`
        whole = TWO_BYTES * tokens * self.model.hidden_size
        if WIDE < ranks <= self.kernels.cluster.gpus_in_domain:
            whole *= 1.0 - (1.0 - 1.0 / ranks) ** block.experts_per_token
            exchange_s = self.kernels.exchange_s
            return exchange_s("all_to_all", whole / 2, ranks) + exchange_s("all_to_all", whole, ranks)
        gathered = self.kernels.exchange_s("all_gather", whole / 2, ranks)  # quantised on the way there
        return gathered + self.kernels.exchange_s("reduce_scatter", whole, ranks)

    def exchange(self, tokens: float) -> float:
        """Of `group`: bringing tokens there and back."""
        blocks = ((layer.feed_forward, count) for layer, count in self.kinds)
        return sum(count * self._exchange(tokens, block) for block, count in blocks if block.kind != "dense")

    # ------------------------------------------------------------------------------------------------ attention

    def decode_surface(self, queries: int = 1) -> Callable[[float, float], float]:
        """Seconds over (sequences of this rank, mean context), all layers of one stage.

        `queries`: new tokens of each sequence (drafted ones too). To MLA they are as many heads more, since all heads
        read one latent; grouped heads read their cache once for all of them.
        """
        tp = self.deployment.tp
        parts = []
        gpu, framework = self.kernels.gpu, self.kernels.framework
        mixers = [(layer.attention, count) for layer, count in self.kinds if isinstance(layer.attention, Recurrent)]
        for layer, count in self.kinds:
            attention = layer.attention
            if isinstance(attention, Recurrent):
                continue
            heads = -(-attention.heads // tp)
            module = self._module(layer)
            table = module.decode if module else self._decode_table(attention, heads, queries)
            parts.append((table, count, attention, heads if module is None else 0))

        def seconds(sequences: float, context: float) -> float:
            total = sum(count * queries * mixer_s(gpu, framework, mixer, 1, sequences, tp) for mixer, count in mixers)
            for table, count, attention, heads in parts:
                if not heads:  # timed whole
                    total += count * table.at(sequences * queries, context)
                    continue
                chosen = context if not isinstance(attention, Indexed) else min(context, float(attention.selected))
                if isinstance(attention, Compressed):
                    chosen = min(context, (attention.window or context) + attention.far_keys(2.0 * context))
                spent = table.at(sequences, chosen)
                if attention.kind == "mla" and queries > 1:  # no slower than as many sequences of one token each
                    spent = min(spent, self._decode_table(attention, heads).at(sequences * queries, chosen))
                if isinstance(attention, Compressed) and attention.index_heads:
                    spent += self.kernels.stream_s(
                        TWO_BYTES * sequences * context / attention.ratio * attention.index_dim
                    )
                if isinstance(attention, Indexed) and attention.index_heads:  # keys of the indexer are read, in 16 bits
                    spent += self.kernels.stream_s(TWO_BYTES * sequences * context * attention.index_dim)
                if attention.kind == "mla":
                    spent += self.kernels.absorbed_s(
                        sequences * queries,
                        heads,
                        attention.nope_head_dim,
                        attention.value_head_dim,
                        attention.kv_lora_rank or 0,
                    )
                total += count * spent
            return total

        return seconds

    def _decode_table(self, attention: Attention, heads: int, queries: int = 1) -> Surface:
        if attention.kind == "mla":
            return self.kernels.latent_attention(
                heads * queries, (attention.kv_lora_rank or 0) + attention.rope_head_dim, self.kv
            )
        if isinstance(attention, Compressed):
            return self.kernels.latent_attention(heads * queries, attention.head_dim, self.kv)
        kv = -(-attention.kv_heads // self.deployment.tp)
        return self.kernels.decode_attention(heads, kv, attention.head_dim, self.kv, attention.window)

    def decode_nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(batches, contexts) between which `decode_surface` is straight."""
        batches: set[float] = set()
        contexts: set[float] = set()
        for layer, _ in self.kinds:
            if isinstance(layer.attention, Recurrent):
                continue
            module = self._module(layer)
            table = module.decode if module else None
            table = table or self._decode_table(layer.attention, -(-layer.attention.heads // self.deployment.tp))
            batches.update(table.batches)
            for curve in table.curves:
                contexts.update(curve.nodes)
        if not batches:  # states alone, whatever the context
            return tuple(float(2**i) for i in range(11)), (1.0, float(1 << 20))
        return tuple(sorted(batches)), tuple(sorted(contexts))

    def prefill(self, chunk: int, past: int) -> float:
        """Attention of one prompt's chunk, all layers of one stage."""
        tp = self.deployment.tp
        total = 0.0
        for layer, count in self.kinds:
            attention = layer.attention
            if isinstance(attention, Recurrent):
                total += count * mixer_s(self.kernels.gpu, self.kernels.framework, attention, chunk, 1, tp)
                continue
            if module := self._module(layer):
                total += count * module.prompt_s(chunk, past)
                continue
            heads = -(-attention.heads // tp)
            window = attention.selected if isinstance(attention, Indexed) else attention.window
            if isinstance(attention, Compressed):
                window = int((attention.window or 0) + attention.far_keys(2.0 * (past + chunk / 2)))
            kv = heads if attention.kind == "mla" else -(-attention.kv_heads // tp)
            spent = self.kernels.prefill_attention_s(
                chunk, past, heads, kv, attention.head_dim, attention.value_head_dim, window
            )
            if isinstance(attention, Compressed):
                spent += chunk * attention.index_flops(2.0 * past + chunk) / (0.4 * self.kernels.gpu.peak_flops("bf16"))
            if isinstance(attention, Indexed):
                scores = chunk * attention.index_flops(past + chunk / 2)
                spent += scores / (0.4 * self.kernels.gpu.peak_flops("bf16"))
            if attention.kind == "mla":  # keys and values of chunk and past, out of the latent
                width = heads * (attention.nope_head_dim + attention.value_head_dim)
                spent += self.kernels.gemm_s(chunk + past, width, attention.kv_lora_rank or 1, self.deployment.weights)
            total += count * spent
        return total

    # ---------------------------------------------------------------------------------------------------- the ends

    def head(self, sequences: float) -> float:
        """Embedding, final norm, output matrix and sampling for `sequences` new tokens."""
        tp, vocab, hidden = self.deployment.tp, self.model.vocab_size, self.model.hidden_size
        seconds = self.kernels.gemm_s(sequences, -(-vocab // tp), hidden, "bf16")
        if tp > 1:
            seconds += self.kernels.exchange_s("all_gather", TWO_BYTES * sequences * vocab, tp)
        seconds += 3 * self.kernels.stream_s(4.0 * sequences * vocab)  # softmax in 4 bytes, then the choice
        return seconds + (self.kernels.stream_s(self.filter_bytes * sequences * vocab) if self.filter_bytes else 0.0)

    def handover(self, tokens: float) -> float:
        """Activations to the next pipeline stage."""
        if self.stages == 1:
            return 0.0
        return self.kernels.exchange_s("send_recv", TWO_BYTES * tokens * self.model.hidden_size / self.deployment.tp, 2)
