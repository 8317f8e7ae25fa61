"""Blocks of KV cache: counted, not numbered; blocks of known prefixes are counted by name.

A full block of a prompt whose content has a name (`prefix ids`: equal id = equal prefix so far) can be shared: each
running sequence that uses it holds a reference. Without references it stays as a cached block, which counts as free
and is taken away, the longest unused first, when a block is needed. Blocks of one sequence are given back from the
tail, so that tails go before heads (vLLM's order).

    held + cached + empty = total           always
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import final


@final
class BlockPool:
    """A replica's blocks. `held`: referenced by sequences; `cached`: known prefixes that nobody uses."""

    __slots__ = ("_cached", "_held", "held", "hits", "lookups", "peak", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self.peak = 0
        self.hits = self.lookups = 0  # blocks found, blocks asked for
        self._held: dict[int, int] = {}  # named block -> references
        self._cached: OrderedDict[int, None] = OrderedDict()  # as given back; a dict is slow to find its first again

    @property
    def free(self) -> int:
        """Blocks that can be had: empty ones and cached ones."""
        return self.total - self.held

    @property
    def cached(self) -> int:
        """Blocks that hold a known prefix nobody uses."""
        return len(self._cached)

    def known(self, names: Sequence[int]) -> int:
        """How many leading blocks of a prompt are there already."""
        held, cached = self._held, self._cached
        count = 0
        for name in names:
            if name not in held and name not in cached:
                break
            count += 1
        return count

    def fresh_needed(self, names: Sequence[int], hit: int, blocks: int) -> int:
        """Free blocks that a sequence of `blocks` takes when its first `hit` named ones are known."""
        cached = self._cached
        return blocks - hit + (sum(1 for name in names[:hit] if name in cached) if cached else 0)

    def take(self, blocks: int) -> None:
        """Hold so many more unnamed blocks. AssertionError where there are not as many."""
        self.held += blocks
        assert self.held <= self.total, f"{self.held} blocks held of {self.total}"
        if self.held > self.peak:
            self.peak = self.held
        cached = self._cached
        if cached:
            over = self.held + len(cached) - self.total
            while over > 0:
                cached.popitem(last=False)
                over -= 1

    def share(self, names: Sequence[int]) -> None:
        """Hold known blocks: one more reference each."""
        held, cached = self._held, self._cached
        for name in names:
            if name in cached:
                del cached[name]
                self.held += 1
                held[name] = 1
            else:
                held[name] += 1
        if self.held > self.peak:
            self.peak = self.held

    def name(self, names: Sequence[int]) -> list[int]:
        """Give names to as many held blocks, now that they are full; returns those that are really named.

        Where another sequence has filled the same block meanwhile, this one keeps a copy without a name.
        """
        held, cached = self._held, self._cached
        given = []
        for name in names:
            if name in held:
                continue
            if name in cached:  # the copy that nobody uses gives way
                del cached[name]
            held[name] = 1
            given.append(name)
        return given

    def release(self, blocks: int, names: Sequence[int], keep: bool = True) -> None:
        """Give back `blocks` in all, of which `names` are named: last block first. `keep`: as cached prefixes."""
        held, cached = self._held, self._cached
        unnamed = blocks - len(names)
        assert unnamed >= 0
        self.held -= unnamed
        for name in reversed(names):
            count = held[name] - 1
            if count:
                held[name] = count
                continue
            del held[name]
            self.held -= 1
            if keep:
                cached[name] = None
        assert self.held >= 0
