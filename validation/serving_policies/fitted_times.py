"""Step times from fitted lines: what an engine's authors published in place of kernels.

    prompts   (a + b sum(len) + c sum(len^2)) / PP + stage_ms x PP          one micro-batch on one stage, ms
    decoding  (a + b sum(context) + c batch) / PP;  other a, b, c above `batch_threshold`

The form and columns are those of DistServe's profile (simdistserve/estimators): `gpu, engine, model, tp, phase,
batch_threshold, a_ms, b_ms, c_ms`. A pipeline of PP stages works on PP micro-batches at once. A decode step of the
whole batch therefore takes the line at a PP-th of batch and contexts. With a `clock`,
prompts follow each other through the stages, each as slow as it is long, at most PP batches at once (as DistServe's
engine does); their tokens are there at `done_ticks`. `step_s` is host time.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.studies.serving.step_time.times import TICKS_PER_S, DecodeLine

COLUMNS = ("gpu", "engine", "model", "tp", "phase", "batch_threshold", "a_ms", "b_ms", "c_ms")
PHASES = ("prefill", "decoding_smallbs", "decoding_largebs")
Line = tuple[float, float, float]


@dataclass(eq=False)
class FittedTimes:
    """The shape of `times.StepTimes` that a replica asks for: `decode` and `mixed`."""

    prefill: Line
    small: Line
    large: Line
    threshold: int
    pp: int = 1
    step_s: float = 0.0  # host time of every step
    prompt_s: float = 0.0  # more, of a step with prompts
    stage_ms: float = 1.0  # of a prompt batch, per stage: hand-over between stages; only with PP > 1
    pads_prompts: bool = False  # all prompts of a step to the longest (vLLM before 0.2.7)
    clock: Callable[[], int] | None = None  # ticks; of an engine that starts prompts in a pipeline
    done_ticks: int = 0  # when the prompts that started last leave the last stage
    _lines: dict[int, DecodeLine] = field(default_factory=dict, repr=False)
    _free: list[int] = field(default_factory=list, repr=False)  # of each stage, ticks
    _ends: deque[int] = field(default_factory=deque, repr=False)  # of the last PP batches

    def __post_init__(self) -> None:
        self._free = [0] * self.pp
        self._ends = deque([0] * self.pp, self.pp)

    def decode(self, sequences: int) -> DecodeLine:
        """Step of `sequences` that all add one token."""
        line = self._lines.get(sequences)
        if line is None:
            a, b, c = self.small if sequences / self.pp <= self.threshold else self.large
            base = (a + c * sequences / self.pp) * 1e-3 + self.step_s
            ticks = (max(1, round(TICKS_PER_S * base)),)
            slope = (max(0, round(TICKS_PER_S * b / self.pp * 1e-3)),)
            line = self._lines[sequences] = DecodeLine((1 << 62,), ticks, slope)
        return line

    def mixed(self, decoding: int, context_sum: int, chunks: Sequence[tuple[int, int]], finishing: int) -> int:
        """Ticks of a step of prompts; of one that decodes too, the sum of both less one fixed part."""
        a, b, c = self.prefill
        if self.pads_prompts:
            longest = max(n for n, _ in chunks)
            chunks = [(longest, past) for _, past in chunks]
        tokens = sum(n for n, _ in chunks)
        squares = sum((n + past) ** 2 - past**2 for n, past in chunks)
        ms = (a + b * tokens + c * squares) / self.pp + (self.stage_ms * self.pp if self.pp > 1 else 0.0)
        length = max(1, round(TICKS_PER_S * (ms * 1e-3 + self.step_s + self.prompt_s)))
        if self.clock is not None:
            return self._through(length, self.clock())
        if decoding:
            line = self.decode(decoding)
            length += line.at(context_sum) - min(line.base[0], round(TICKS_PER_S * self.small[0] * 1e-3))
        return length

    def _through(self, stage: int, begun: int) -> int:
        """Ticks until the next batch of prompts may start, where this one takes `stage` on every stage."""
        at = begun
        for place, free in enumerate(self._free):
            at = self._free[place] = max(at, free) + stage
        self._ends.append(at)
        self.done_ticks = at
        return max(self._free[0], self._ends[0]) - begun


def read_fits(path: Path) -> dict[tuple[str, str, str, int], tuple[Line, Line, Line, int]]:
    """Lines by (gpu, engine, model, tp): prompts, small batches, large batches, and the batch that divides them.

    Raises InputFileError for missing columns, values that are no numbers, or a phase that is not given.
    """
    found: dict[tuple[str, str, str, int], dict[str, tuple[Line, int]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = set(COLUMNS) - set(reader.fieldnames or ())
            if missing:
                raise InputFileError(
                    path, f"lacks {', '.join(sorted(missing))}", f"its columns are {', '.join(COLUMNS)}"
                )
            for row in reader:
                key = (row["gpu"], row["engine"], row["model"], int(row["tp"]))
                line = (float(row["a_ms"]), float(row["b_ms"]), float(row["c_ms"]))
                found.setdefault(key, {})[row["phase"]] = (line, int(row["batch_threshold"]))
    except OSError as error:
        raise InputFileError(path, f"cannot be read ({error})", "give a CSV of fitted step times") from None
    except ValueError as error:
        raise InputFileError(path, f"holds what is no number ({error})", "mend the row") from None
    for key, phases in found.items():
        if set(phases) != set(PHASES):
            raise InputFileError(path, f"{key} has phases {sorted(phases)}", f"give {', '.join(PHASES)}")
    return {
        key: (p["prefill"][0], p["decoding_smallbs"][0], p["decoding_largebs"][0], p["prefill"][1])
        for key, p in found.items()
    }


def fitted_times(
    fits: dict[tuple[str, str, str, int], tuple[Line, Line, Line, int]],
    gpu: str,
    engine: str,
    model: str,
    tp: int,
    pp: int = 1,
    step_s: float = 0.0,
    pads_prompts: bool = False,
) -> FittedTimes:
    """Times of one engine. Raises SpecError where the table has no such row."""
    lines = fits.get((gpu, engine, model, tp))
    if lines is None:
        have = sorted({key[3] for key in fits if key[:3] == (gpu, engine, model)})
        raise SpecError("tp", tp, f"the table has tp {have} of {model} with {engine} on {gpu}")
    return FittedTimes(*lines, pp=pp, step_s=step_s, pads_prompts=pads_prompts)
