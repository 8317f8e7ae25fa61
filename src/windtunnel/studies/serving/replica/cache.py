"""What sequences hold of a replica's KV cache: blocks, shared prefixes, and what is promised to the running."""

from __future__ import annotations

from typing import final

from windtunnel.studies.serving.kv.pool import BlockPool
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class SequenceCache:
    """A pool of blocks and who holds them."""

    __slots__ = ("_beside", "_names", "_size", "pool", "promised", "reserves")

    def __init__(self, rules: Rules, blocks: int) -> None:
        self.pool = BlockPool(blocks)
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

    def fresh(self, one: Sequence, hit: int) -> int:
        """Free blocks that a prompt takes of which the first `hit` are known."""
        blocks = -(-one.known // self._size)
        return (self.pool.fresh_needed(one.names, hit, blocks, one.span) if hit else blocks) + self._beside

    def take_in(self, one: Sequence, hit: int) -> None:
        """Give a sequence the blocks of its prompt, of which the first `hit` are known."""
        pool, blocks = self.pool, -(-one.known // self._size)
        if hit:
            one.shared = pool.share(one.names[: -(-hit // one.span)], one.span)
        if one.names:
            pool.lookups += len(one.names) * one.span
            pool.hits += hit
        pool.take(blocks - hit + self._beside)
        one.blocks = blocks
        one.computed = one.cached_len = hit * self._size
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
        self.pool.release(blocks + self._beside, one.shared, self._names, one.span)
        if one.shared:
            one.shared = []
        one.blocks = 0
        if self.reserves:
            self.promised -= self.final_blocks(one)

    def final_blocks(self, one: Sequence) -> int:
        """What a sequence holds at its end."""
        return -(-(one.prompt + one.output) // self._size) + self._beside
