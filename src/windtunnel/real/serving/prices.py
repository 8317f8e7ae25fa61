"""What steps of the real engine cost, measured one by one on this machine, as a price list of the serving study.

    dense(T)             straight between measured numbers of tokens
    prefill(n, past)     c + a n (past + n / 2)
    decode attention     s + b batch (c + context)

All are fitted together to the measured steps, by least squares of the error over the price, with no value below zero.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.real.serving.llama import Llama, Piece
from windtunnel.studies.serving.engines.profile import Profile
from windtunnel.studies.serving.step_time.times import Prices, StepTimes

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # tokens
CONTEXTS = (16, 64, 256, 512)
PASTS = (0, 64, 256)
REPEATS = 7
REWEIGHTED = 4
ROUNDS = 40  # of the fit, in which values below zero are set to zero one after the other


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step: prompt chunks as (tokens, past), contexts of decodes."""

    chunks: tuple[tuple[int, int], ...]
    contexts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class MeasuredPrices(Prices):
    """Fitted values, without experts or ranks. `at_nodes`: seconds of a step of NODES tokens, the head in them."""

    at_nodes: tuple[float, ...]
    chunk_s: float
    chunk_pair_s: float
    decode_s: float
    decode_sequence_s: float
    decode_token_s: float

    def dense(self, tokens: float) -> float:
        """All that sees the tokens."""
        return float(np.dot(_hats(tokens), self.at_nodes))

    def slower(self, times: float) -> MeasuredPrices:
        """The same on a machine that is so many times as slow."""
        at_nodes, *others = astuple(self)
        return MeasuredPrices(tuple(times * value for value in at_nodes), *(times * value for value in others))

    def decode_surface(self, queries: int = 1) -> Callable[[float, float], float]:
        """Decode attention over (sequences, mean context)."""
        return lambda n, context: self.decode_s + n * (self.decode_sequence_s + self.decode_token_s * context)

    def decode_nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Bends of the decode price: it is straight everywhere."""
        return (1.0, 64.0), (1.0, 512.0, 1024.0)

    def prefill(self, chunk: int, past: int) -> float:
        """Attention of one chunk."""
        return self.chunk_s + self.chunk_pair_s * chunk * (past + chunk / 2)


def times_of(prices: MeasuredPrices, layers: int) -> StepTimes:
    """Step times without any engine's own constants: they are in what was measured."""
    return StepTimes(prices, Profile(engine="real", release="here", graph_limit=0), layers)


def measure(
    model: Llama, now_ns: Callable[[], int], blocks: int, batch: int, longest: int, look: Callable[[], None]
) -> list[Step]:
    """Seconds of steps of many shapes: means of a few, as the sum of a run's steps is what counts."""
    size = model.block_size
    mixes: list[tuple[tuple[tuple[int, int], ...], tuple[int, ...]]] = []
    for n in NODES:
        if n <= longest:
            mixes += [(((n, past),), ()) for past in PASTS if n + past <= longest]
    batches = sorted({*(b for b in NODES if b < batch), batch})
    mixes += [((), (context,) * b) for b in batches for context in CONTEXTS if context <= longest]
    mixes += [(((n, 0),), (128,) * (batch - 1)) for n in (16, 64, 256) if n <= longest and batch > 1]
    mixes += [(((n, 0), (n, 0)), ()) for n in (16, 64, 128) if 2 * n <= longest]

    block_numbers = itertools.cycle(range(blocks))  # every piece in blocks of its own, as in a real pool

    def piece(n: int, past: int) -> Piece:
        return Piece([1] * n, past, list(itertools.islice(block_numbers, -(-(past + n) // size))))

    steps = []
    for chunks, contexts in mixes:
        chunk_pieces = [piece(n, past) for n, past in chunks]
        decode_pieces = [piece(1, context - 1) for context in contexts]
        took = []
        look()
        for _ in range(REPEATS + 1):
            begin = now_ns()
            model.step(chunk_pieces, decode_pieces)
            took.append((now_ns() - begin) * 1e-9)
        steps.append(Step(chunks, contexts, float(np.mean(took[1:]))))
    return steps


class Yardstick:
    """One fixed step on a model of its own: how fast the machine is now."""

    def __init__(self, model: Llama, now_ns: Callable[[], int], batch: int) -> None:
        self._model, self._now_ns = model, now_ns
        per = 128 // model.block_size
        self._pieces = [Piece([1], 127, list(range(place * per, (place + 1) * per))) for place in range(batch)]
        self.seconds: list[float] = []

    def look(self) -> None:
        """Time it once more, as cold as a step in service is."""
        begin = self._now_ns()
        self._model.step([], self._pieces)
        self.seconds.append((self._now_ns() - begin) * 1e-9)

    def mean(self) -> float:
        """Seconds since the last `mean`."""
        mean = float(np.mean(self.seconds))
        self.seconds.clear()
        return mean


def fit_prices(steps: Sequence[Step]) -> tuple[MeasuredPrices, float]:
    """Prices, and the mean relative error of the steps they were fitted to."""
    rows = []
    for step in steps:
        tokens = sum(n for n, _ in step.chunks) + len(step.contexts)
        pairs = sum(n * (past + n / 2) for n, past in step.chunks)
        decode = (float(bool(step.contexts)), float(len(step.contexts)), float(sum(step.contexts)))
        rows.append([*_hats(tokens), float(len(step.chunks)), pairs, *decode])
    seconds, matrix = np.array([step.seconds for step in steps]), np.array(rows)
    usual = seconds
    for _ in range(REWEIGHTED):  # relative to what is usual: relative to what was measured, the slow ones count less
        values = _not_negative(matrix / usual[:, None], seconds / usual)
        usual = matrix @ values
    n = len(NODES)
    prices = MeasuredPrices(tuple(values[:n].tolist()), *values[n:].tolist())
    return prices, float(np.abs(usual / seconds - 1.0).mean())


def _not_negative(matrix: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares in which the most negative value is taken out until none is."""
    open_ = np.ones(matrix.shape[1], dtype=bool)
    values = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        solution, *_ = np.linalg.lstsq(matrix[:, open_], wanted, rcond=None)
        values[:] = 0.0
        values[open_] = solution
        if solution.min() >= 0.0:
            break
        open_[int(np.argmin(values))] = False
    return np.maximum(values, 0.0)


def _hats(tokens: float) -> list[float]:
    """Weights of the nodes around a number of tokens; beyond the last, in proportion to it."""
    weights = [0.0] * len(NODES)
    if tokens <= NODES[0]:
        weights[0] = 1.0
    elif tokens >= NODES[-1]:
        weights[-1] = tokens / NODES[-1]
    else:
        place = bisect_left(NODES, tokens)
        low, high = NODES[place - 1], NODES[place]
        weights[place] = (tokens - low) / (high - low)
        weights[place - 1] = 1.0 - weights[place]
    return weights
