"""Sequences packed from documents of uneven length: how much attention each micro-batch has to do.

The formula is in docs/physics/imbalance.md. Documents are drawn from a histogram and laid end to end; a sequence
boundary cuts the document that crosses it. Nothing is padded, and everything but attention takes as long as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.passes import pass_durations
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.workload.histogram_file import read_histogram

FORMS = (("length", "count"),)
SEE = "give a CSV file with the header length,count"
SHORTEST = 64  # tokens; below half a block of the kernels' masks documents cost alike
DOCUMENTS_MOST = 1e9  # drawn for one step


@dataclass(frozen=True, eq=False)
class Lengths:
    """A histogram of document lengths."""

    text: str  # as it was given
    tokens: NDArray[np.int64]  # length of each kind of document, rising
    weight: NDArray[np.float64]  # share of documents, sum 1

    @property
    def mean_tokens(self) -> float:
        """Mean length of a document."""
        return float(self.tokens @ self.weight)


@dataclass(frozen=True, eq=False)
class AttentionVariants:
    """Durations of a step's passes by share of attention, linear between those that were built."""

    shares: NDArray[np.float64]  # [variants], rising to 1
    durations_ns: NDArray[np.int64]  # [segments, variants]

    def __call__(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """int64[segments, *shares.shape]; below the smallest share built, as there."""
        durations = np.stack([np.interp(shares, self.shares, row) for row in self.durations_ns])
        return np.asarray(np.rint(durations), np.int64)


def read_lengths(path: str | Path) -> Lengths:
    """A histogram from a CSV file with the header length,count. Raises SpecError and InputFileError."""
    _, rows = read_histogram(Path(path), FORMS, SEE)
    for line, (length,), _ in rows:
        if length == 0:
            raise SpecError("length", 0, "a document has at least one token", f"{path}:{line}")
    rows.sort(key=lambda row: row[1])
    tokens = np.array([keys[0] for _, keys, _ in rows], np.int64)
    weight = np.array([count for _, _, count in rows])
    if not weight.sum() > 0.0:
        raise SpecError("count", 0, "no length has any documents", f"{path}:{rows[-1][0]}")
    return Lengths(str(path), tokens, weight / weight.sum())


def attention_shares(lengths: Lengths, layout: Layout, seed: int, draw: int = 0) -> NDArray[np.float64]:
    """float[replicas, micro-batches]: attention work over that of whole sequences, in step `draw` of a run.

    Every replica reads documents of its own, whatever the number of replicas.
    """
    plan = layout.plan
    sequences = layout.micro_batches * plan.micro_batch
    documents = layout.dp * sequences * plan.seq_len / lengths.mean_tokens
    if documents > DOCUMENTS_MOST:
        raise SpecError("lengths", lengths.text, f"{documents:.1e} documents per step are too many: use longer ones")
    shares = np.empty((layout.dp, layout.micro_batches))
    upto = np.cumsum(lengths.weight)
    upto /= upto[-1]
    for replica in range(layout.dp):
        generator = np.random.default_rng((seed, 0x5E0, draw, replica))
        packed = packed_shares(
            _draw_documents(lengths, upto, sequences * plan.seq_len, generator), plan.seq_len, sequences
        )
        shares[replica] = packed.reshape(layout.micro_batches, plan.micro_batch).mean(axis=1)
    return shares


def packed_shares(documents: NDArray[np.int64], seq_len: int, sequences: int) -> NDArray[np.float64]:
    """float[sequences]: attention of each sequence when documents are laid end to end, over that of a whole one."""
    total = sequences * seq_len
    ends = np.cumsum(documents)
    assert ends[-1] >= total, "too few documents"
    cuts = np.union1d(ends[ends < total], np.arange(1, sequences + 1) * seq_len)
    pieces = np.diff(cuts, prepend=0)
    squares = np.bincount((cuts - 1) // seq_len, (pieces / seq_len) ** 2, minlength=sequences)
    return np.asarray(squares, np.float64)


def waited_shares(shares: NDArray[np.float64], tied: int) -> NDArray[np.float64]:
    """The same where blocks of `tied` neighbouring replicas wait for each other inside a pass: the longest of each."""
    blocks = shares.reshape(len(shares) // tied, tied, -1)
    return np.broadcast_to(blocks.max(axis=1, keepdims=True), blocks.shape).reshape(shares.shape)


def attention_variants(step: LoweredStep, pieces: tuple[Piece, ...], pricer: Pricer) -> AttentionVariants:
    """Each pass of a step built with whole sequences, and with documents of a half, a quarter, an eighth of one ..."""
    seq_len = pricer.layout.plan.seq_len
    lengths = [seq_len]
    while lengths[-1] > SHORTEST:
        lengths.append(-(-lengths[-1] // 2))
    lengths.reverse()
    durations = [pass_durations(step, pieces, pricer.with_documents(length)) for length in lengths]
    return AttentionVariants(np.array(lengths) / seq_len, np.stack(durations, axis=1))


def micro_batch_of(step: LoweredStep) -> NDArray[np.int64]:
    """int64[ops]: the micro-batch of each pass, -1 of what is none."""
    passes = np.flatnonzero(step.graph.category < len(step.segments))
    # Ops of an action lie side by side, and actions follow each other.
    action = np.searchsorted(step.action_first, passes, side="right") - 1
    micro_batch = np.full(step.graph.n_ops, -1, np.int64)
    micro_batch[passes] = step.schedule.micro_batch[action]
    return micro_batch


def _draw_documents(
    lengths: Lengths, upto: NDArray[np.float64], tokens: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Documents that together have at least so many tokens. `upto`: share of documents up to each length."""
    parts: list[NDArray[np.int64]] = []
    have = 0
    while have < tokens:
        count = int((tokens - have) / lengths.mean_tokens * 1.05) + 16
        parts.append(lengths.tokens[np.searchsorted(upto, generator.random(count), side="right")])
        have += int(parts[-1].sum())
    return np.concatenate(parts)
