"""Attention ranks that wait for each other before they take in prompts.

TensorRT-LLM with attention data parallelism (attention_dp_config: enable_balance, timeout_iters; read in
tensorrt_llm/_torch/pyexecutor/py_executor.py, _balance_adp_requests): a request belongs to the rank that had the fewest
when it came. Prompts go into a step only if every rank has one, if some rank decodes nothing, or if that was not so for
`timeout_iters` steps. Those steps are counted from the last time that prompts went in, or that the count ran out,
whether anybody waits or not.
"""

from __future__ import annotations

from typing import final

from windtunnel.studies.serving.replica.sequence import Sequence


@final
class RankGate:
    """Who is where, and when prompts may go in. Steps are decode steps of the replica."""

    def __init__(self, ranks: int, wait_steps: int) -> None:
        self.wait_steps = wait_steps
        self.here = [0] * ranks  # requests of each rank: waiting, being prefilled, decoding
        self.waiting = [0] * ranks
        self.decoding = [0] * ranks
        self._since = self._before = 0  # the step from which is counted, and the one before it

    def arrives(self, sequence: Sequence) -> None:
        """A request joins the queue of the rank with the fewest."""
        if sequence.rank < 0:
            sequence.rank = self.here.index(min(self.here))
            self.here[sequence.rank] += 1
        self.waiting[sequence.rank] += 1

    def joins(self, sequence: Sequence) -> None:
        """A request begins to decode; one that was prefilled elsewhere comes to a rank now."""
        if sequence.rank < 0:
            sequence.rank = self.here.index(min(self.here))
            self.here[sequence.rank] += 1
        self.decoding[sequence.rank] += 1

    def leaves(self, sequence: Sequence) -> None:
        """A request is gone, or goes to another replica."""
        if sequence.rank >= 0:
            self.here[sequence.rank] -= 1
            sequence.rank = -1

    @property
    def ready(self) -> bool:
        """Whether prompts need not wait for the count: each rank has one, or one of them has nothing to decode."""
        return all(self.waiting) or not all(self.decoding)

    def opens(self, step: int) -> bool:
        """Whether prompts go in at this step; if so the count begins anew."""
        since = step - self._since
        if not self.ready and (since == 0 or since % self.wait_steps):
            return False
        self._before, self._since = self._since, step
        return True

    def nobody_came(self) -> None:
        """The engine did not know yet of those for whom it would have opened: the count goes on."""
        self._since = self._before

    def opens_at(self, step: int) -> int:
        """The first step after this one at which the count runs out."""
        return self._since + ((step - self._since) // self.wait_steps + 1) * self.wait_steps
