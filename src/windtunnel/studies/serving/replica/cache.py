"""What sequences hold of a replica's KV cache: blocks, shared prefixes, and what is promised to the running."""

from __future__ import annotations

from typing import final

from windtunnel.studies.serving.adapters import Slots
from windtunnel.studies.serving.kv.pool import BlockPool
from windtunnel.studies.serving.kv.tiers import Tiers
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import NO_NAMES, Sequence


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

    def leading_blocks(self, sequence: Sequence) -> int:
        """Leading blocks of a prompt that need not be computed: all but its last token at most, and whole names."""
        if not (self._names and sequence.names):
            return 0
        hit, most = self.pool.leading_blocks(sequence.names, sequence.span), (sequence.known - 1) // self._size
        return hit if hit <= most else most // sequence.span * sequence.span

    def below(self, sequence: Sequence, hit: int) -> list[int]:
        """Tiers from which the names behind the first `hit` blocks are copied."""
        if self.tiers is None or not sequence.names:
            return []
        tokens = self._size * sequence.span
        first = hit // sequence.span
        names = sequence.names[first : (sequence.known - 1) // tokens]
        return self.tiers.find(names, sequence.span, tokens, first * tokens, sequence.known)

    def computed(self, sequence: Sequence, hit: int, below: list[int]) -> int:
        """Tokens of a prompt that need not be computed."""
        return (hit // sequence.span + len(below)) * sequence.span * self._size if below else hit * self._size

    def fresh(self, sequence: Sequence, hit: int) -> int:
        """Free blocks that a prompt takes of which the first `hit` are known."""
        blocks = -(-sequence.known // self._size)
        return (self.pool.fresh_needed(sequence.names, hit, blocks, sequence.span) if hit else blocks) + self._beside

    def take_in(self, sequence: Sequence, hit: int, below: list[int]) -> None:
        """Give a sequence the blocks of its prompt; the first `hit` are known, names `below` the GPU are copied."""
        pool, blocks = self.pool, -(-sequence.known // self._size)
        if hit:
            sequence.shared = pool.share(sequence.names[: -(-hit // sequence.span)], sequence.span)
        if sequence.names:
            pool.lookups += len(sequence.names) * sequence.span
            pool.hits += hit
        pool.take(blocks - hit + self._beside)
        if self.slots is not None:
            self.slots.take(sequence.adapter)
        sequence.blocks = blocks
        sequence.computed = hit * self._size
        if below and self.tiers is not None:
            self.tiers.take(below, sequence.span)
            self.name(sequence, self.computed(sequence, hit, below) - sequence.computed)
        sequence.computed = sequence.cached_len = self.computed(sequence, hit, below)
        if self.reserves:
            self.promised += self.final_blocks(sequence)

    def name(self, sequence: Sequence, n: int) -> None:
        """Full blocks have their names from the time that their tokens are planned: siblings in one step share them.

        vLLM: kv_cache_manager.allocate_slots caches blocks when it schedules; SGLang lets one of them go first.
        """
        if self._names:
            tokens, before = self._size * sequence.span, sequence.computed
            sequence.shared = sequence.shared + self.pool.name(
                sequence.names[before // tokens : (before + n) // tokens]
            )

    def give_back(self, sequence: Sequence, blocks: int) -> None:
        """A sequence holds nothing any longer; `blocks` were those of its tokens."""
        if self.slots is not None:
            self.slots.leave(sequence.adapter)
        if self.tiers is not None:
            self.tiers.keep(sequence.names[: sequence.computed // (self._size * sequence.span)], sequence.span)
        self.pool.release(blocks + self._beside, sequence.shared, self._names, sequence.span)
        sequence.shared = NO_NAMES
        sequence.blocks = 0
        if self.reserves:
            self.promised -= self.final_blocks(sequence)

    def final_blocks(self, sequence: Sequence) -> int:
        """What a sequence holds at its end."""
        return -(-(sequence.prompt + sequence.output) // self._size) + self._beside
