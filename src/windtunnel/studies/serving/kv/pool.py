"""Blocks of KV cache: counted, not numbered; blocks of known prefixes are counted by name.

A full block of a prompt whose content has a name (`prefix ids`: equal id = equal prefix so far) can be shared: each
running sequence that uses it holds a reference. Without references it stays as a cached block, which counts as free
and is taken away, the longest unused first, when a block is needed. Blocks of one sequence are given back from the
tail, so that tails go before heads (vLLM's order).

    held + cached + empty = total           always

A name may stand for a `span` of blocks, as where a trace names 512 tokens: it is given when all of them are full, and
of one that nobody holds the last blocks go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import final


@final
class BlockPool:
    """A replica's blocks. `held`: referenced by sequences; `cached`: of known prefixes that nobody uses."""

    __slots__ = ("_cached", "_references", "cached", "held", "hits", "lookups", "peak", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self.cached = 0
        self.peak = 0
        self.hits = self.lookups = 0  # blocks found, blocks asked for
        self._references: dict[int, int] = {}  # name -> references
        # Name -> blocks that are left of it, as given back; a dict is slow to find its first again.
        self._cached: OrderedDict[int, int] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be had: empty ones and cached ones."""
        return self.total - self.held

    def leading_blocks(self, names: Sequence[int], span: int = 1) -> int:
        """How many leading blocks of a prompt are there already."""
        references, cached = self._references, self._cached
        count = 0
        for name in names:
            if name in references:
                count += span
                continue
            left = cached.get(name, 0)
            count += left
            if left < span:
                break
        return count

    def fresh_needed(self, names: Sequence[int], hit: int, blocks: int, span: int = 1) -> int:
        """Free blocks that a sequence of `blocks` takes when its first `hit` named ones are known."""
        cached = self._cached
        if not cached:
            return blocks - hit
        return blocks - hit + sum(cached[name] for name in names[: -(-hit // span)] if name in cached)

    def take(self, blocks: int) -> None:
        """Hold so many more unnamed blocks. AssertionError where there are not as many."""
        self.held += blocks
        assert self.held <= self.total, f"{self.held} blocks held of {self.total}"
        if self.held > self.peak:
            self.peak = self.held
        over = self.held + self.cached - self.total
        if over > 0:
            cached = self._cached
            self.cached -= over
            while over > 0:
                name, left = cached.popitem(last=False)
                if left > over:
                    cached[name] = left - over
                    cached.move_to_end(name, last=False)
                over -= left

    def share(self, names: Sequence[int], span: int = 1) -> list[int]:
        """Hold the known blocks of these names; returns those of which there is one more reference.

        Where only the first blocks of the last name are left they become the sequence's own, without a name.
        """
        references, cached = self._references, self._cached
        shared = []
        for name in names:
            left = cached.pop(name, 0)
            if left:
                self.cached -= left
                self.held += left
                if left < span:
                    break
                references[name] = 1
            else:
                references[name] += 1
            shared.append(name)
        if self.held > self.peak:
            self.peak = self.held
        return shared

    def name(self, names: Sequence[int]) -> list[int]:
        """Give names to as many held blocks, now that they are full; returns those that are really named.

        Where another sequence has filled the same block meanwhile, this one keeps a copy without a name.
        """
        references, cached = self._references, self._cached
        new_names = []
        for name in names:
            if name in references:
                continue
            if name in cached:  # the copy that nobody uses gives way
                self.cached -= cached.pop(name)
            references[name] = 1
            new_names.append(name)
        return new_names

    def release(self, blocks: int, names: Sequence[int], keep: bool = True, span: int = 1) -> None:
        """Give back `blocks` in all, of which `names` are named: last block first. `keep`: as cached prefixes."""
        unnamed = blocks - span * len(names)
        assert unnamed >= 0
        self.held -= unnamed
        if names:
            references, cached = self._references, self._cached
            for name in reversed(names):
                count = references[name] - 1
                if count:
                    references[name] = count
                    continue
                del references[name]
                self.held -= span
                if keep:
                    cached[name] = span
                    self.cached += span
        assert self.held >= 0
