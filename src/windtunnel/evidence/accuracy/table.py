"""Tables of measured training runs: one CSV, one run per row, read strictly.

An empty cell means that the source does not say. Which columns there are, and in which unit, is in `COLUMNS`; columns
beyond those are carried by nobody and ignored, unless their name looks like a slip for one of ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.files.table import number_of, plain_number, short
from windtunnel.files.table import read_table as read_table_of

SWITCHES = (
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_tp_backward"),
    *("overlap_p2p", "overlap_ep"),
)
NUMBERS_FROM_ZERO = ("zero_stage", "sp", "gated_mlp", "mtp_layers", *SWITCHES)  # integers, zero included
REQUIRED = (
    *("id", "model", "hidden", "layers", "heads", "ffn", "vocab", "seq_len"),
    *("gpu", "n_gpus", "tp", "pp", "global_batch", "precision"),
)
MEASURES = ("step_time_s", "d_step_time_s", "tokens_per_s_per_gpu")
LARGEST = 10**12

# What must be known to run a plan as it was run; the fewer of these are missing, the better the level (A, B, C).
SPECIFIED = (
    *("hidden", "layers", "heads", "ffn", "vocab", "seq_len", "tp", "pp", "vpp", "cp", "zero_stage"),
    *("micro_batch", "global_batch", "precision", "recompute"),
)
DATE = re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}|[0-9]{4}-[0-9]{4}")  # a year, a month or a day; from a year to a year
REMEDY = "the columns are those of validation/measurements.csv, described in docs/validate.md"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run, a field for each column. None: the source does not say."""

    line: int  # of the file, for messages
    id: str
    source: str
    url_or_file: str
    date: str
    licence: str
    model: str
    model_family: str
    task: str
    gpu: str
    inter_link: str
    precision: str
    recompute: str
    offload: str
    attention_impl: str
    framework: str
    spec_level: str
    value_kind: str
    notes: str
    cp_kind: str
    schedule: str
    gradient_dtype: str
    grad_reduce_dtype: str
    param_gather_dtype: str
    optimizer: str
    cuda_graph: str
    pipeline_layout: str
    hidden: int | None
    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    ffn: int | None
    vocab: int | None
    seq_len: int | None
    experts: int | None
    topk: int | None
    n_gpus: int | None
    gpus_per_node: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    micro_batch: int | None
    grad_accum: int | None
    global_batch: int | None
    bucket_parameters: int | None
    shared_ffn: int | None
    etp: int | None
    mtp_layers: int | None
    zero_stage: int | None
    sp: int | None
    gated_mlp: int | None
    overlap_grad_reduce: int | None
    overlap_param_gather: int | None
    overlap_tp: int | None
    overlap_tp_backward: int | None
    overlap_p2p: int | None
    overlap_ep: int | None
    step_time_s: float | None
    step_time_p5_s: float | None
    step_time_p95_s: float | None
    tokens_per_s_per_gpu: float | None
    params_b: float | None
    peak_mem_gib: float | None
    d_step_time_s: float | None
    d_tokens_per_s_per_gpu: float | None

    @property
    def measured_s(self) -> float | None:
        """Measured step time, from tokens/s where only that is published; None where the run gave no time."""
        if self.step_time_s is not None:
            return self.step_time_s
        if self.d_step_time_s is not None:
            return self.d_step_time_s
        tokens = self.tokens_per_s_per_gpu
        if tokens and self.global_batch and self.seq_len and self.n_gpus:
            return self.global_batch * self.seq_len / (tokens * self.n_gpus)
        return None

    @property
    def crashed(self) -> bool:
        """The run did not come to its first step, for want of memory or otherwise."""
        kind = self.value_kind.lower()
        return "crash" in kind or "oom" in kind

    @property
    def moe(self) -> bool:
        """Whether the model is a mixture of experts."""
        return bool(self.experts and self.experts > 1)

    @property
    def level(self) -> str:
        """How completely the run is specified: as the table says, else by how many of `SPECIFIED` are missing."""
        if self.spec_level:
            return self.spec_level
        missing = sum(getattr(self, name) in (None, "") for name in SPECIFIED)
        return "A" if missing == 0 else "B" if missing <= 3 else "C"


TEXTS = tuple(field.name for field in fields(Row) if field.type == "str")
INTEGERS = tuple(
    field.name for field in fields(Row) if field.type == "int | None" and field.name not in NUMBERS_FROM_ZERO
)
NUMBERS = tuple(field.name for field in fields(Row) if field.type == "float | None")
COLUMNS = TEXTS + INTEGERS + NUMBERS_FROM_ZERO + NUMBERS


def read_tables(paths: Sequence[str | Path]) -> tuple[Row, ...]:
    """The rows of several files, one after the other; an id may occur once in all of them together."""
    rows, seen = [], dict[str, str]()
    for path in paths:
        for row in read_table(path):
            if row.id in seen:
                problem = f"line {row.line}, column id: {row.id!r} is already in {seen[row.id]}"
                raise InputFileError(path, problem, "give every run an id of its own")
            rows.append(row)
        seen.update(dict.fromkeys((row.id for row in rows), str(path)))
    return tuple(rows)


def read_table(path: str | Path) -> tuple[Row, ...]:
    """All rows of the file, in its order. Raises InputFileError that names file, line and column."""
    table = read_table_of(path, "give the path of a CSV of measured runs")
    _check_header(path, list(table.columns))
    rows, seen = [], dict[str, int]()
    for line, cells in table.rows():
        row = _row(path, line, cells)
        if row.id in seen:
            problem = f"line {row.line}, column id: {row.id!r} is already on line {seen[row.id]}"
            raise InputFileError(path, problem, "give every run an id of its own")
        seen[row.id] = row.line
        rows.append(row)
    if not rows:
        raise InputFileError(path, "has a header and no rows", REMEDY)
    return tuple(rows)


def unread_columns(paths: Sequence[str | Path]) -> tuple[str, ...]:
    """Columns of the files that hold something and that nothing reads, in order."""
    unread: dict[str, None] = {}
    for path in paths:
        table = read_table_of(path)
        unread |= dict.fromkeys(name for name in table.columns if name not in COLUMNS and any(table.texts(name)))
    return tuple(unread)


def _check_header(path: str | Path, header: list[str]) -> None:
    absent = [name for name in REQUIRED if name not in header]
    if absent:
        near = get_close_matches(absent[0], [name for name in header if name not in COLUMNS], n=1, cutoff=0.7)
        hint = f" (is {near[0]!r} meant?)" if near else ""
        raise InputFileError(path, f"line 1: required column {absent[0]!r} is missing{hint}", REMEDY)
    for name in header:
        if name not in COLUMNS:
            near = get_close_matches(name, [column for column in COLUMNS if column not in header], n=1, cutoff=0.85)
            if near:
                raise InputFileError(path, f"line 1: unknown column {name!r}", f"did you mean {near[0]!r}?")
    if not any(name in header for name in MEASURES):
        raise InputFileError(path, f"line 1: none of the columns {', '.join(MEASURES)} is there", REMEDY)


def _row(path: str | Path, line: int, entry: Mapping[str, str]) -> Row:
    values: dict[str, Any] = {name: entry.get(name, "") for name in TEXTS}
    if not values["id"]:
        raise InputFileError(path, f"line {line}, column id: is empty", "give every run an id of its own")
    for name, least, whole in _numeric():
        values[name] = _number(path, line, name, entry.get(name, ""), least, whole)
    if values["spec_level"] not in ("", "A", "B", "C"):
        problem = f"line {line}, column spec_level: {short(values['spec_level'])} is not A, B or C"
        raise InputFileError(path, problem, "leave it empty to have it counted")
    if values["date"] and not DATE.fullmatch(values["date"]):  # what a release had is told by it
        problem = f"line {line}, column date: {short(values['date'])} is no date"
        raise InputFileError(path, problem, "write YYYY-MM, or leave it empty if it is not known")
    return Row(line=line, **values)


def _numeric() -> Iterable[tuple[str, int, bool]]:
    yield from ((name, 1, True) for name in INTEGERS)
    yield from ((name, 0, True) for name in NUMBERS_FROM_ZERO)
    yield from ((name, 0, False) for name in NUMBERS)


NOT_SAID = frozenset(("-", "n/a", "na", "none", "null", "unknown", "?", "tbd"))
YES, NO = frozenset(("yes", "true", "on")), frozenset(("no", "false", "off"))
# Words for what a column counts; `experts`: none is a dense model.
WORDS = {
    "zero_stage": {
        "fsdp": "3",
        "fsdp2": "3",
        "fsdp1": "3",
        "distributed optimizer": "1",
        "distributed": "1",
        "ddp": "0",
    },
    "gated_mlp": {"swiglu": "1", "geglu": "1", "silu": "1", "gelu": "0", "relu": "0", "relu2": "0"},
    "experts": {"0": ""},
}


def _plain_number(name: str, text: str) -> str:
    """A cell as a number is written here: `1,024`, `8k` tokens, `yes`, `ZeRO-3`; empty for `-` and `n/a`."""
    word = text.strip().lower()
    if word in NOT_SAID:
        return ""
    if name in NUMBERS_FROM_ZERO and word in YES | NO:
        return str(int(word in YES))
    if word in WORDS.get(name, {}):
        return WORDS[name][word]
    if name == "zero_stage" and (stage := re.fullmatch(r"(?:zero|stage)[ _-]?(\d)", word)):
        return stage[1]
    return plain_number(text, tokens=name == "seq_len")


def _number(path: str | Path, line: int, name: str, text: str, least: int, whole: bool) -> int | float | None:
    text = _plain_number(name, text)
    if not text:
        return None
    value = number_of(text)
    if not math.isfinite(value):
        problem = f"line {line}, column {name}: {short(text)} is not a number"
    elif whole and not value.is_integer():
        problem = f"line {line}, column {name}: {short(text)} is not a whole number"
    elif not least <= value <= LARGEST or (not whole and value == 0):
        problem = f"line {line}, column {name}: {short(text)} is out of range"
    else:
        return int(value) if whole else value
    raise InputFileError(path, problem, "correct the cell, or leave it empty if it is not known")
