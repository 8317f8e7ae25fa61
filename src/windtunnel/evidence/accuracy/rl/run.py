"""The study: every row of a table of RL steps predicted, and how far off that is by source, in all and by phase.

A row is asked about where it names a model, a GPU, a batch and how long its samples are. What it leaves open follows
the framework's habits: recomputation only where it does not fit without, a layout that is the fastest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path

from windtunnel.errors import InputFileError, UserError
from windtunnel.evidence.accuracy import words
from windtunnel.evidence.accuracy.in_order import in_order
from windtunnel.files.table import read_table
from windtunnel.files.write import write_csv
from windtunnel.questions.asked.parts.frameworks import FRAMEWORKS
from windtunnel.questions.asked.rl import Rl
from windtunnel.questions.header import Answer
from windtunnel.questions.reading import read_part
from windtunnel.studies.rl.job import job_of
from windtunnel.studies.rl.study import answered

NEEDED = ("id", "framework", "model", "gpu", "n_gpus", "rollouts_per_step", "total_step_s")
PHASES = ("generation_s", "training_s", "logprob_s", "ref_logprob_s", "weight_sync_s")
PROMPT = 150  # tokens, where a row does not say: DAPO-Math-17k 155, GSM8K 111
ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt": "trtllm", "trt-llm": "trtllm"}  # by a word in the cell


@dataclass(frozen=True, slots=True)
class RlRow:
    """One line of the table."""

    fields: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's name."""
        return self.fields["id"]

    def text(self, name: str) -> str:
        """A column; empty where it is missing."""
        return (self.fields.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        """A column as a number; None where it is none."""
        try:
            number = float(self.text(name).replace(",", ""))
        except ValueError:
            return None
        return number if isfinite(number) else None

    def whole(self, name: str) -> int | None:
        """A column as a whole number of at least one."""
        number = self.number(name)
        return None if number is None or number < 1 else round(number)

    @property
    def framework(self) -> str:
        """Name and release as habits are named: what stands in brackets is the trainer."""
        words = self.text("framework").partition("(")[0].split()
        release = self.text("framework_version") or (words[-1] if words and words[-1][0].isdigit() else "")
        name = "-".join(word for word in words if not word[0].isdigit()).lower()
        return f"{name}-{release}" if release else name


def missing(row: RlRow) -> str:
    """What a row lacks to be asked about; empty where it lacks nothing."""
    lacking = [name for name in ("model", "gpu", "n_gpus", "rollouts_per_step") if not row.text(name)]
    if row.text("model").startswith("not ") or row.text("gpu").startswith("not "):
        lacking.append("model")
    if row.number("mean_total_len") is None and row.number("mean_output_len") is None:
        lacking.append("lengths of samples")
    return f"the row has no {', '.join(dict.fromkeys(lacking))}" if lacking else ""


def question_of(row: RlRow) -> Rl:
    """The question of a row that lacks nothing. Raises UserError."""
    rollouts = row.whole("rollouts_per_step") or 1
    each = row.whole("generations_per_prompt") or (16 if rollouts % 16 == 0 else 1)
    prompts = row.whole("prompts_per_step") or max(1, rollouts // each)
    samples = max(1, rollouts // prompts)
    prompt = row.whole("mean_prompt_len") or PROMPT
    mean = row.number("mean_output_len") or max(1.0, (row.number("mean_total_len") or 0.0) - prompt)
    cap = row.whole("max_response_len") or max(1, (row.whole("max_seq_len") or round(8 * mean)) - prompt)
    fp8_rollout, fp8 = ("fp8" in words.plain(row.text(f"{side}_precision")) for side in ("gen", "train"))
    trainer = row.text("train_backend").lower()
    engine = row.text("gen_engine").lower()
    data: dict[str, object] = {
        "model": row.text("model"),
        "cluster": f"{row.text('gpu').lower()}:{row.whole('n_gpus')}",
        "framework": row.framework,
        "prompts": prompts,
        "samples": samples,
        "lengths": f"mean={min(mean, cap):g},cap={cap}",
        "prompt_tokens": prompt,
        "rollout": {
            "gen_tp": row.whole("gen_tp"),
            "gen_pp": row.whole("gen_pp") or 1,
            "weights": "fp8" if fp8_rollout else "bf16",
            "engine": next((name for word, name in ENGINES.items() if word in engine), None),
        },
        "learner": {
            "trainer": next((name for word, name in FRAMEWORKS if word in trainer), None),
            "train_batch": row.whole("train_global_batch"),
            "precision": "fp8" if fp8 else "bf16",
            "recompute": words.recompute(row.text("recompute"), None, False)[0] if row.text("recompute") else None,
            **{name: row.whole(f"train_{name}") for name in ("tp", "cp", "ep", "pp")},
        },
    }
    apart = row.text("colocated").lower() in words.NOTHING - {""} and row.whole("gen_gpus") and row.whole("train_gpus")
    if apart:
        data |= {"generate": row.whole("gen_gpus"), "train": row.whole("train_gpus")}
        lag = row.number("max_lag_steps")
        behind = any(word in row.text("mode").lower() for word in ("async", "off")) and lag is None
        data["async_steps"] = 1.0 if behind else lag or 0.0
    return read_part(Rl, _stated(data))


def _stated(data: Mapping[str, object]) -> dict[str, object]:
    inner = {key: _stated(value) if isinstance(value, dict) else value for key, value in data.items()}
    return {key: value for key, value in inner.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Predicted:
    """One row. Empty fields: not predicted. status: ok, skipped or refused."""

    id: str
    total_step_s: float | None = None
    p5_s: float | None = None
    p95_s: float | None = None
    generation_s: float | None = None
    training_s: float | None = None
    weight_sync_s: float | None = None
    status: str = "ok"
    reason: str = ""
    logprob_s: float | None = None
    ref_logprob_s: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a group of rows: predicted / measured - 1."""

    name: str
    rows: int
    answered: int
    mean: float | None  # of the absolute
    bias: float | None
    worst: float | None
    in_band: float | None


@dataclass(frozen=True, slots=True)
class RlReport(Answer):
    """Predictions beside measurements."""

    source: str
    rows: tuple[RlRow, ...]
    predictions: tuple[Predicted, ...]

    @property
    def provenance(self) -> Mapping[str, object]:
        """Which table."""
        return {"measured": self.source}

    def scores(self) -> list[Score]:
        """By source, by mode, and all."""
        pairs = list(zip(self.rows, self.predictions, strict=True))
        scores = []
        for column in ("source", "mode"):
            for name in sorted({row.text(column) for row in self.rows}):
                scores.append(_score(name or "not said", [pair for pair in pairs if pair[0].text(column) == name]))
        return [*[score for score in scores if score.answered], _score("all", pairs)]

    def phases(self) -> list[Score]:
        """By phase, of the rows that publish it."""
        pairs = list(zip(self.rows, self.predictions, strict=True))
        return [score for name in PHASES if (score := _score(name, pairs, name)).answered]

    def write_rows(self, path: Path) -> None:
        """A line for each row of the table."""
        names = [item.name for item in fields(Predicted)]
        values = ([getattr(prediction, name) for name in names] for prediction in self.predictions)
        write_csv(path, names, ([_short(value) for value in row] for row in values))

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "table": self.source,
            "rows": len(self.rows),
            "scores": [asdict(score) for score in self.scores()],
            "phases": [asdict(score) for score in self.phases()],
            "not_predicted": [asdict(prediction) for prediction in self.predictions if prediction.status != "ok"],
        }


def is_rl_table(path: Path) -> bool:
    """Whether a CSV has the columns of measured RL steps."""
    try:
        return read_table(path).has(*NEEDED)
    except InputFileError:
        return False  # whoever reads it says what is wrong with it


def run_rl_validation(
    tables: Sequence[Path], *, progress: Callable[[int, int], None] | None = None, workers: int = 1
) -> RlReport:
    """Predict every row of `tables`; the answers do not depend on `workers`. Raises InputFileError."""
    rows = [RlRow(line) for path in tables for _, line in read_table(path, "give a CSV", needs=NEEDED).rows()]
    return RlReport(", ".join(map(str, tables)), tuple(rows), tuple(in_order(predicted, rows, progress, workers)))


def predicted(row: RlRow) -> Predicted:
    """One row."""
    lacking = missing(row)
    if lacking:
        return Predicted(row.id, status="skipped", reason=lacking)
    try:
        rl_result = answered(job_of(question_of(row)), it_ran=True)
    except UserError as error:
        return Predicted(row.id, status="refused", reason=" ".join(str(error).split()))
    phases = rl_result.phases
    return Predicted(
        row.id, rl_result.step_time_s, rl_result.p5_s, rl_result.p95_s,
        phases.generation_s, phases.training_s, phases.weight_sync_s,
        logprob_s=phases.logprob_s, ref_logprob_s=phases.ref_logprob_s,
    )  # fmt: skip


def _score(name: str, pairs: Sequence[tuple[RlRow, Predicted]], measure: str = "total_step_s") -> Score:
    both = [
        (prediction, measured, value)
        for row, prediction in pairs
        if (measured := row.number(measure)) and (value := getattr(prediction, measure)) is not None
    ]
    errors = [value / measured - 1.0 for _, measured, value in both]
    inside = [
        prediction.p5_s <= measured <= prediction.p95_s
        for prediction, measured, _ in both
        if prediction.p5_s and prediction.p95_s
    ]
    return Score(
        name,
        sum(1 for row, _ in pairs if row.number(measure)),
        len(errors),
        _mean(abs(error) for error in errors),
        _mean(errors),
        max(errors, key=abs) if errors else None,
        _mean(map(float, inside)) if measure == "total_step_s" else None,
    )


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else None


def _short(value: object) -> object:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
