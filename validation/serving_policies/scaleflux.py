"""Sessions that move with their state: published against ours, and really moved between two processes.

    python validation/serving_policies/scaleflux.py [--real]

ScaleFlux (TPDS 2022, abstract): flow completion time at least 8.7 x lower than without, CPU use near the least. Ours:
bursty streams of conversations under `serve scale`'s policies. `--real`: two processes serve a small Llama; half of the
sessions of the first go to the second in the middle, with their cache over a pipe. Their tokens must be those of a run
that never moved, and the stops are held against state bytes / measured rate + round trip. Needs torch.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection

STREAMS = {
    "bursts of 8,000 in, up to 4,000 out": "--prompt 8000 --output 4000 --rate 8 --cv 4 --requests 2000 --tpot 15ms",
    "bursts of 2,000 in, up to 8,000 out": "--prompt 2000 --output 8000 --rate 4 --cv 6 --requests 1500 --tpot 12ms",
}
SESSIONS, PROMPT, BEFORE, AFTER, BLOCK = 8, 96, 20, 20, 16
BLOCKS = -(-(PROMPT + BEFORE + AFTER) // BLOCK)


def streams() -> None:
    for name, words in STREAMS.items():
        command = ["windtunnel", "serve", "scale", "llama-3.1-8b", "--cluster", "h100-sxm:16", *words.split()]
        command = [sys.executable, "-m", *command, "--length-ratio", "0.1", "--json"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["policies"]
        print(name)
        for policy, one in found.items():
            print(
                f"  {policy:10} mean {one['mean_s']:7.1f} s, {found['fixed']['mean_s'] / one['mean_s']:5.1f} x sooner"
                f" than fixed (published: at least 8.7), late {one['late']:6.1%}, replicas {one['over_ideal']:.2f} x"
                f" the ideal, {one['moves']} moved"
            )


class Engine:
    """A small Llama with a place in its cache for each session."""

    def __init__(self) -> None:
        import torch

        from windtunnel.real.serving.llama import Llama, Shape

        torch.set_num_threads(1)
        self.model = Llama(Shape(), SESSIONS * BLOCKS, BLOCK)
        self.texts: dict[int, list[int]] = {}
        self.blocks = {n: list(range(n * BLOCKS, (n + 1) * BLOCKS)) for n in range(SESSIONS)}

    def begin(self) -> None:
        import torch

        from windtunnel.real.serving.llama import Piece

        draw = torch.Generator().manual_seed(1)
        for n in range(SESSIONS):
            text = torch.randint(0, 2048, (PROMPT,), generator=draw).tolist()
            self.texts[n] = text + self.model.step([Piece(text, 0, self.blocks[n])], [])

    def decode(self, count: int) -> dict[int, list[int]]:
        from windtunnel.real.serving.llama import Piece

        for _ in range(count):
            pieces = [Piece(text[-1:], len(text) - 1, self.blocks[n]) for n, text in self.texts.items()]
            for text, token in zip(self.texts.values(), self.model.step([], pieces), strict=True):
                text.append(token)
        return self.texts


def second(link: Connection) -> None:
    """The process that sessions move to. A raw payload is a measurement of the pipe."""
    import torch

    engine = Engine()
    while (item := link.recv()) is not None:
        if not isinstance(item, bytes):
            n, engine.texts[n], shape, raw = item
            engine.model.copy_in(engine.blocks[n], torch.frombuffer(bytearray(raw), dtype=torch.float32).view(shape))
        link.send(True)
    link.send(engine.decode(AFTER))


def real() -> None:
    context = multiprocessing.get_context("spawn")
    link, theirs = context.Pipe()
    other = context.Process(target=second, args=(theirs,))
    other.start()

    def taken(item: object) -> float:
        """Seconds until the other one has it."""
        began = time.perf_counter()
        link.send(item)
        link.recv()
        return time.perf_counter() - began

    taken(b"")  # it is there
    small, large = (statistics.median(taken(bytes(size)) for _ in range(9)) for size in (64, 8 << 20))
    engine = Engine()
    engine.begin()
    engine.decode(BEFORE)
    stops, state = [], 0
    for n in range(0, SESSIONS, 2):
        began = time.perf_counter()
        kept = engine.model.copy_out(engine.blocks[n])
        state = kept.numel() * 4
        taken((n, engine.texts.pop(n), tuple(kept.shape), kept.numpy().tobytes()))
        stops.append(time.perf_counter() - began)
    link.send(None)
    found = dict(engine.decode(AFTER))
    found |= link.recv()
    other.join()
    whole = Engine()
    whole.begin()
    wanted = whole.decode(BEFORE + AFTER)
    same = sum(found[n] == wanted[n] for n in range(SESSIONS))
    predicted = small + (large - small) * state / (8 << 20)
    print(
        f"two processes: {same} of {SESSIONS} sessions have the tokens of a run that never moved; stop"
        f" {1e3 * statistics.median(stops):.2f} ms for {state / 2**20:.2f} MiB, by the pipe alone {1e3 * predicted:.2f}"
    )


if __name__ == "__main__":
    streams()
    if "--real" in sys.argv:
        real()
