"""What sequences hold of a replica's KV cache: blocks, shared prefixes, and what is promised to the running."""

from __future__ import annotations

from typing import final

from windtunnel.studies.serving.adapters import Slots
from windtunnel.studies.serving.kv.pool import BlockPool
from windtunnel.studies.serving.kv.tiers import Tiers
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class SequenceCache:
    """A pool of blocks and who holds them."""

    __slots__ = ("_beside", "_names", "_size", "pool", "promised", "reserves", "slots", "tiers")

    def __init__(self, rules: Rules, blocks: int, tiers: Tiers | None = None, slots: Slots | None = None) -> None:
        self.pool = BlockPool(blocks)
        self.slots = slots  # of adapters
        self.tiers = tiers  # below the GPU
        self.promised = 0  # blocks that running sequences will hold at their end, where admission reserves them
        self.reserves = rules.reserve == "output"
        self._names = rules.prefix_caching
        self._size = rules.block_size
        self._beside = rules.beside_blocks

    def known(self, one: Sequence) -> int:
        """Leading blocks of a prompt that need not be computed: all but its last token at most, and whole names."""
        if not (self._names and one.names):
            return 0
        hit, most = self.pool.known(one.names, one.span), (one.known - 1) // self._size
        return hit if hit <= most else most // one.span * one.span

    def below(self, one: Sequence, hit: int) -> list[int]:
        """Tiers from which the names behind the first `hit` blocks are copied."""
        if self.tiers is None or not one.names:
            return []
        tokens = self._size * one.span
        first = hit // one.span
        names = one.names[first : (one.known - 1) // tokens]
        return self.tiers.find(names, one.span, tokens, first * tokens, one.known)

    def computed(self, one: Sequence, hit: int, below: list[int]) -> int:
        """Tokens of a prompt that need not be computed."""
        return (hit // one.span + len(below)) * one.span * self._size if below else hit * self._size

    def fresh(self, one: Sequence, hit: int) -> int:
        """Free blocks that a prompt takes of which the first `hit` are known."""
        blocks = -(-one.known // self._size)
        return (self.pool.fresh_needed(one.names, hit, blocks, one.span) if hit else blocks) + self._beside

    def take_in(self, one: Sequence, hit: int, below: list[int]) -> None:
        """Give a sequence the blocks of its prompt; the first `hit` are known, names `below` the GPU are copied."""
        pool, blocks = self.pool, -(-one.known // self._size)
        if hit:
            one.shared = pool.share(one.names[: -(-hit // one.span)], one.span)
        if one.names:
            pool.lookups += len(one.names) * one.span
            pool.hits += hit
        pool.take(blocks - hit + self._beside)
        if self.slots is not None:
            self.slots.take(one.adapter)
        one.blocks = blocks
        one.computed = hit * self._size
        if below and self.tiers is not None:
            self.tiers.take(below, one.span)
            self.name(one, self.computed(one, hit, below) - one.computed)
        one.computed = one.cached_len = self.computed(one, hit, below)
        if self.reserves:
            self.promised += self.final_blocks(one)

    def name(self, one: Sequence, n: int) -> None:
        """Full blocks have their names from the time that their tokens are planned: siblings in one step share them.

        vLLM: kv_cache_manager.allocate_slots caches blocks when it schedules; SGLang lets one of them go first.
        """
        if self._names:
            tokens, before = self._size * one.span, one.computed
            one.shared.extend(self.pool.name(one.names[before // tokens : (before + n) // tokens]))

    def give_back(self, one: Sequence, blocks: int) -> None:
        """A sequence holds nothing any longer; `blocks` were those of its tokens."""
        if self.slots is not None:
            self.slots.leave(one.adapter)
        if self.tiers is not None:
            self.tiers.keep(one.names[: one.computed // (self._size * one.span)], one.span)
        self.pool.release(blocks + self._beside, one.shared, self._names, one.span)
        if one.shared:
            one.shared = []
        one.blocks = 0
        if self.reserves:
            self.promised -= self.final_blocks(one)

    def final_blocks(self, one: Sequence) -> int:
        """What a sequence holds at its end."""
        return -(-(one.prompt + one.output) // self._size) + self._beside
