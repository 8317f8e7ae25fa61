"""Lengths of ShareGPT as DistServe's authors made them from conversations (evaluation: 0-prepare-dataset.py).

A conversation of at least three turns; a random number of its first turns joined is the prompt, the next turn, of
either speaker, the answer; prompt and answer under 2,048 tokens. Their tokenizer was OPT's, and the paper states means
of 756 and 200; lengths here are scaled to them. Input: `input_tokens, output_tokens, d_turn`, the turns of a
conversation in a row.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

PAPER_MEANS = (756.0, 200.0)
LONGEST = 2048


def conversations(path: Path) -> list[list[int]]:
    """Tokens of every turn, conversation by conversation."""
    found: list[list[int]] = []
    with path.open() as file:
        for row in csv.DictReader(file):
            prompt, answer = int(row["input_tokens"]), int(row["output_tokens"])
            said = prompt - sum(found[-1]) if found and int(row["d_turn"]) else 0
            if said > 0:
                found[-1] += [said, answer]
            else:
                found.append([prompt, answer])
    return found


def lengths(path: Path, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(prompts, answers)."""
    rng = np.random.default_rng(seed)
    pairs = []
    for turns in conversations(path):
        if len(turns) < 3:
            continue
        cut = int(rng.integers(1, len(turns)))
        prompt, answer = sum(turns[:cut]), turns[cut]
        if prompt + answer < LONGEST and prompt >= 4 and answer >= 4:
            pairs.append((prompt, answer))
    values = np.array(pairs, float)
    scaled = np.maximum(1, np.round(values * (np.array(PAPER_MEANS) / values.mean(axis=0)))).astype(int)
    scaled = scaled[scaled.sum(axis=1) < LONGEST]
    return scaled[:, 0], scaled[:, 1]
