"""A real GRPO loop on this CPU, and the same loop as `rl` simulates it from its first three steps.

    python validation/rl/real_loop.py

In turn and one step ahead, with one generator each: the first three steps predict the next 20, and those with two and
four generators. A trainer and its generators are processes joined by gloo; the model is a small transformer with a
cache. A batch before the first step warms up.
Each process counts its own CPU seconds, against a fixed piece of work (`Yardstick`) again and again within each phase:
a core that shares its caches with others is slower at both. Messages carry the sender's time, and a receiver waits
until then. So what is measured is a machine with a core for each process, however busy this one is. Of the first three
steps come the price of a decode step (a + b x sequences), of a scored and a trained batch, and of a weight update.
`studies/rl/clock.py` does the rest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional

from windtunnel.studies.rl.clock import NS, Rules, Run, Times
from windtunnel.studies.rl.learner import Passes
from windtunnel.studies.rl.lengths import answers_of
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence

VOCAB, WIDTH, LAYERS, HEADS, PROMPT = 512, 64, 2, 4, 8
GROUPS, SAMPLES, CAP = 8, 4, 96
ANSWERS = answers_of(f"mean=40,cap={CAP},sd=0.7")
FIRST, NEXT = 3, 20
PIECES = 4  # of the yardstick before, between and behind the passes of the trainer


class Yardstick:
    """How much slower this core is than one that does a fixed piece of work in `SECONDS` of its CPU time."""

    SECONDS, EVERY = 0.001, 8  # decode steps from one piece to the next

    def __init__(self) -> None:
        self._weight = torch.eye(4 * WIDTH)
        self._pieces: list[float] = []

    def piece(self) -> None:
        """Do the work, products and softmax of the policy's sizes, and keep its CPU seconds."""
        x = torch.ones(GROUPS * SAMPLES, 4 * WIDTH)
        begin = time.process_time()
        for _ in range(10):
            x = functional.softmax(x @ self._weight, -1)
        self._pieces.append(time.process_time() - begin)

    def factor(self) -> float:
        """By what the times of the pieces since the last call, and of all beside them, are to be multiplied."""
        mean, self._pieces = statistics.fmean(self._pieces), []
        return self.SECONDS / mean


class Policy(nn.Module):
    """A decoder with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(PROMPT + CAP, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: torch.Tensor, cache: list[list[torch.Tensor]] | None = None) -> torch.Tensor:
        """Logits; with a cache, of tokens behind those that are in it."""
        past = cache[0][0].shape[2] if cache and cache[0] else 0
        n, length = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(past, past + length))
        for layer, (project, mlp) in enumerate(zip(self.qkv, self.mlp, strict=True)):
            q, k, v = project(x).view(n, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            if cache is not None:
                if cache[layer]:
                    k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
                cache[layer] = [k, v]
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=past == 0)
            x = x + mixed.transpose(1, 2).reshape(n, length, WIDTH)
            x = x + mlp(x)
        logits: torch.Tensor = self.head(x)
        return logits


def generate(policy: Policy, lengths: np.ndarray, yardstick: Yardstick) -> tuple[torch.Tensor, list[tuple[int, float]]]:
    """Answers of these lengths, padded; sequences and seconds of each decode step."""
    records: list[tuple[int, float]] = []
    out = torch.zeros(len(lengths), PROMPT + CAP, dtype=torch.long)
    out[:, :PROMPT] = torch.randint(VOCAB, (len(lengths), PROMPT))
    alive = np.arange(len(lengths))
    cache: list[list[torch.Tensor]] = [[] for _ in range(LAYERS)]
    ids = out[:, :PROMPT]
    with torch.no_grad():
        for place in range(int(lengths.max())):
            if place % Yardstick.EVERY == 0:
                yardstick.piece()
            begin = time.process_time()
            drawn = torch.multinomial(functional.softmax(policy(ids, cache)[:, -1], -1), 1)
            out[alive, PROMPT + place] = drawn[:, 0]
            stay = np.flatnonzero(lengths[alive] > place + 1)
            if len(stay) < len(alive):
                cache = [[one[stay] for one in layer] for layer in cache]
            ids, count = drawn[stay], len(alive)
            alive = alive[stay]
            records.append((count, time.process_time() - begin))
    factor = yardstick.factor()
    return out, [(count, factor * seconds) for count, seconds in records]


def mine(batch: int, rank: int, generators: int) -> np.ndarray:
    """Lengths of a generator's part of a batch."""
    lengths = ANSWERS.batch(GROUPS, SAMPLES, 1000 + batch)
    part = len(lengths) // generators
    return lengths[(rank - 1) * part : rank * part]


def worker(rank: int, generators: int, ahead: int, steps: int, place: str, result: str) -> None:
    """Rank 0 trains; the others generate. Clocks are virtual: own CPU seconds, and the times on messages."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=generators + 1)
    torch.manual_seed(rank)
    policy = Policy()
    now = torch.zeros(1, dtype=torch.float64)
    records: list[tuple[int, float]] = []
    rows: list[dict[str, float]] = []
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    part = GROUPS * SAMPLES // generators
    yardstick = Yardstick()

    def weights() -> float:
        """From the trainer to all; everybody goes on when the last has them. Returns its seconds."""
        begin = time.process_time()
        vector = nn.utils.parameters_to_vector(policy.parameters()).detach().clone()
        dist.broadcast(vector, 0)
        nn.utils.vector_to_parameters(vector, policy.parameters())
        spent = torch.tensor([time.process_time() - begin], dtype=torch.float64)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        dist.all_reduce(now, dist.ReduceOp.MAX)
        now.add_(spent)
        return float(spent)

    def rollout(batch: int) -> None:
        answers, steps = generate(policy, mine(batch, rank, generators), yardstick)
        records.extend(steps)
        now.add_(sum(seconds for _, seconds in steps))
        dist.send(answers, 0)
        dist.send(now, 0)

    def collect() -> tuple[torch.Tensor, float]:
        held, latest = [], torch.zeros(1, dtype=torch.float64)
        for source in range(1, generators + 1):
            answers, there = torch.zeros(part, PROMPT + CAP, dtype=torch.long), torch.zeros(1, dtype=torch.float64)
            dist.recv(answers, source)
            dist.recv(there, source)
            held.append(answers)
            latest = torch.maximum(latest, there)
        return torch.cat(held), float(latest)

    def learn(ids: torch.Tensor) -> tuple[float, float]:
        pieces = range(PIECES)
        for _ in pieces:
            yardstick.piece()
        begin = time.process_time()
        mask = ids[:, 1:] > 0
        with torch.no_grad():
            old = -functional.cross_entropy(policy(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
        scoring = time.process_time() - begin
        for _ in pieces:
            yardstick.piece()
        begin = time.process_time()
        advantage = torch.randn(len(ids), 1)
        new = -functional.cross_entropy(policy(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
        loss = -((new - old).exp() * advantage * mask).sum() / mask.sum()
        forward = time.process_time() - begin
        for _ in pieces:
            yardstick.piece()
        begin = time.process_time()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        backward = time.process_time() - begin
        for _ in pieces:
            yardstick.piece()
        factor = yardstick.factor()
        return factor * scoring, factor * (forward + backward)

    if rank:
        generate(policy, mine(0, rank, generators), yardstick)
    else:
        learn(torch.ones(GROUPS * SAMPLES, PROMPT + CAP, dtype=torch.long))
    refit = weights()
    if rank and ahead:
        rollout(0)
    held = collect() if not rank and ahead else None
    if ahead:
        refit = weights()
    for step in range(steps):
        begin = float(now)
        if rank:
            if step + ahead < steps:
                rollout(step + ahead)
        else:
            ids, there = held if held is not None else collect()
            now.fill_(max(float(now), there))
            waited = float(now) - begin
            scoring, training = learn(ids)
            now.add_(scoring + training)
            held = collect() if ahead and step + ahead < steps else None
            rows.append({"wait": waited, "logprob": scoring, "train": training})
        refit = weights()
        if not rank:
            rows[-1] |= {"refit": refit, "step": float(now) - begin}
    torch.save(rows if not rank else records, f"{result}.{rank}")
    dist.destroy_process_group()


def measure(generators: int, ahead: int, steps: int) -> tuple[list[dict[str, float]], list[tuple[int, float]]]:
    """The loop, run: its steps, and the decode steps of its first generator."""
    with tempfile.TemporaryDirectory() as folder:
        place, result = os.path.join(folder, "meet"), os.path.join(folder, "result")
        mp.spawn(worker, (generators, ahead, steps, place, result), nprocs=generators + 1)
        return torch.load(f"{result}.0"), torch.load(f"{result}.1")


@dataclass(eq=False)
class LinearGenerator:
    """A generator whose decode step takes a + b x sequences: a `Server` of the clock."""

    a_s: float
    b_s: float
    block_size: int = 1 << 20
    next_ns: int = NEVER
    busy_ticks: int = 0

    def __post_init__(self) -> None:
        self._here: dict[int, tuple[Sequence, int]] = {}

    @property
    def load(self) -> int:
        """Answers here."""
        return len(self._here)

    def submit(self, one: Sequence, now_ns: int) -> None:
        """An answer begins."""
        self._here[one.index] = (one, one.output)
        if self.next_ns == NEVER:
            self._next(now_ns)

    def _next(self, now_ns: int) -> None:
        count = len(self._here)
        self.next_ns = NEVER if not count else now_ns + round(NS * (self.a_s + self.b_s * count))

    def advance(self) -> list[Sequence]:
        """A decode step ends."""
        ended = [one for one, left in self._here.values() if left == 1]
        self._here = {index: (one, left - 1) for index, (one, left) in self._here.items() if left > 1}
        self._next(self.next_ns)
        return ended

    def pause(self, now_ns: int, length_ns: int) -> None:
        """Weights change."""
        if self.next_ns != NEVER:
            self.next_ns += length_ns


def predict(first: list[dict[str, float]], records: list[tuple[int, float]], generators: int, ahead: int) -> float:
    """Mean step of the next ones, from the first three steps of a run."""
    counts, seconds = (np.array(column, float) for column in zip(*records, strict=True))
    slope, constant = np.polyfit(counts, seconds, 1)
    mean = {name: statistics.fmean(row[name] for row in first) for name in ("logprob", "train", "refit")}
    rules = Rules(GROUPS, SAMPLES, float(ahead), partial=False, chunks=True, prompt_tokens=PROMPT)
    run = Run(
        rules,
        Times(mean["refit"]),
        lambda batch: ANSWERS.batch(GROUPS, SAMPLES, 5000 + batch),
        lambda tokens: Passes(mean["logprob"], 0.0, mean["train"]),  # padded to the cap, whatever the lengths
        [LinearGenerator(max(constant, 0.0), max(slope, 0.0)) for _ in range(generators)],  # type: ignore[misc]
    )
    run.until(NEXT + 2)
    return (run.steps[-1].end_s - run.steps[1].end_s) / NEXT


def main() -> None:
    """Measure, predict, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=float, default=0.15, help="error from which the exit status is 1 (0.15)")
    asked = parser.parse_args()
    worst = 0.0
    for generators, ahead in ((1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (4, 1)):
        rows, records = measure(generators, ahead, FIRST + NEXT)
        rest = rows[FIRST : len(rows) - ahead]  # beside the last step nothing is generated
        if generators == 1:
            seen = sum(int(mine(batch, 1, 1).max()) for batch in range(FIRST + ahead))
            anchor = rows[:FIRST], records[:seen]
        measured = statistics.fmean(row["step"] for row in rest)
        predicted = predict(*anchor, generators, ahead)
        off = predicted / measured - 1.0
        worst = max(worst, abs(off))
        mode = "one step ahead" if ahead else "in turn"
        parts = ", ".join(f"{name} {1e3 * statistics.fmean(row[name] for row in rest):.1f}" for name in rest[0])
        both = f"measured {1e3 * measured:.1f} ms, predicted {1e3 * predicted:.1f}, {off:+.1%}"
        print(f"{generators} generators, {mode}: {both}", flush=True)
        print(f"    measured phases in ms: {parts}")
    raise SystemExit(int(worst > asked.within))


if __name__ == "__main__":
    main()
