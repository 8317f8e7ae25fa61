"""How long answers are: a file of them, or a capped lognormal with a published mean.

    L = min(cap, exp(mu + sd (sqrt(h) z_prompt + sqrt(1 - h) z_sample))),   mu such that the mean is the given one

`sd` where none is given: 0.66. Two published runs give mean, cap and the share at the cap together, and so their sd:
GSM8K with a 7 to 8B model (424, 1,024, 7.4 %: 0.75) and DAPO-Math-17k with Qwen3-8B (4,003, 4,096, 89.7 %: 0.58); 0.66
lies between them. `h`, the part of the variance that the samples of one prompt share, is assumed to be half.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.files.bytes import read_text
from windtunnel.files.document import value_of
from windtunnel.units import parse_count

Ints = NDArray[np.int64]
SD, SHARED = 0.66, 0.5
MEAN_OF_CAP = 0.5  # where only the cap is known: published ones are 0.26 to 0.77 of it, but for runs that hit it
MOST = 100_000_000
COLUMNS = ("response_length", "response_len", "output_tokens", "completion_tokens", "tokens", "length")


@dataclass(frozen=True)
class Answers:
    """The distribution of answers' lengths."""

    mean: float
    cap: int
    sd: float  # of the logarithm
    assumed: bool  # whether nothing said how they spread
    guessed: bool = False  # nor what their mean is
    seen: tuple[int, ...] = ()  # lengths of a file, drawn from as they are
    source: str = ""

    def batch(self, groups: int, samples: int, seed: int) -> Ints:
        """Lengths of a batch, the samples of each prompt together: int64[groups * samples]."""
        random = np.random.default_rng(seed)
        n = groups * samples
        if self.seen:
            return random.choice(np.array(self.seen, np.int64), n)
        if self.sd == 0.0:
            return np.full(n, max(1, min(self.cap, round(self.mean))), np.int64)
        prompt = np.repeat(random.normal(size=groups), samples)
        z = sqrt(SHARED) * prompt + sqrt(1.0 - SHARED) * random.normal(size=n)
        lengths = np.exp(np.minimum(_mu(self.mean, self.cap, self.sd) + self.sd * z, 40.0))
        return np.clip(np.round(lengths), 1, self.cap).astype(np.int64)


def answers_of(text: str) -> Answers:
    """What `mean=9000,cap=32768,sd=0.7` or a file says. Raises SpecError, InputFileError."""
    if "=" not in text:
        if re.fullmatch(r"[0-9][0-9_.]*[kK]?", text.strip()):
            raise SpecError("lengths", text, f"write mean={text.strip()},cap=..., or name a file of lengths")
        return _of_file(Path(text))
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        key = key.strip()
        if key not in ("mean", "cap", "sd"):
            raise SpecError("lengths", text, "use mean=, cap= and sd=, with commas between them")
        try:
            values[key] = float(value.strip().replace("_", ""))
        except ValueError:
            raise SpecError("lengths", part, "give a number") from None
    cap, mean = values.get("cap"), values.get("mean")
    guessed = mean is None
    if mean is None:
        if cap is None:
            raise SpecError("lengths", text, "say the mean: mean=3000,cap=8192")
        mean = max(1.0, MEAN_OF_CAP * cap)
    cap = mean * 8.0 if cap is None else cap
    sd = values.get("sd", SD)
    if not 1 <= mean <= cap <= MOST or not 0.0 <= sd <= 5.0:
        raise SpecError("lengths", text, f"needs 1 <= mean <= cap <= {MOST:,} and sd of 0 to 5")
    return Answers(mean, round(cap), sd if mean < cap else 0.0, "sd" not in values, guessed)


def _of_file(path: Path) -> Answers:
    """Lengths of a CSV with a column of them, or of a JSONL of rollouts: numbers, or lists of tokens."""
    lines = [line for line in read_text(path, "give a CSV or JSONL of answers").splitlines() if line.strip()]
    lengths = []
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        for line in lines:
            row = value_of(line)
            if not isinstance(row, dict):
                raise SpecError("lengths", line[:60], "give one JSON object per line", str(path))
            key = next((key for key in (*COLUMNS, "response_ids", "token_ids") if key in row), None)
            if key is None:
                raise SpecError("lengths", line[:60], f"give one of {', '.join(COLUMNS)}", str(path))
            value = row[key]
            lengths.append(parse_count(len(value) if isinstance(value, list) else value, key, str(path)))
    else:
        head = [cell.strip() for cell in lines[0].split(",")] if lines else []
        key = next((key for key in COLUMNS if key in head), None)
        if key is None:
            raise SpecError("lengths", lines[0][:60] if lines else "", f"give a column {', '.join(COLUMNS)}", str(path))
        lengths = [parse_count(line.split(",")[head.index(key)].strip(), key, str(path)) for line in lines[1:]]
    if not lengths:
        raise SpecError("lengths", str(path), "holds no answer")
    logs = np.log(np.array(lengths, np.float64))
    return Answers(float(np.mean(lengths)), max(lengths), float(logs.std()), False, False, tuple(lengths), str(path))


@lru_cache(maxsize=256)
def _mu(mean: float, cap: int, sd: float) -> float:
    """The location at which the capped mean is the given one, by halving."""
    low, high = -20.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _capped_mean(middle, cap, sd) < mean else (low, middle)
    return low


def _capped_mean(mu: float, cap: int, sd: float) -> float:
    """E[min(cap, L)] of a lognormal."""
    normal = NormalDist()
    k = (float(np.log(cap)) - mu) / sd
    tail = 1.0 - normal.cdf(k)
    body = normal.cdf(k - sd)
    exponent = mu + sd * sd / 2.0
    return (float(np.exp(exponent)) * body if body > 0.0 and exponent < 700.0 else 0.0) + cap * tail
