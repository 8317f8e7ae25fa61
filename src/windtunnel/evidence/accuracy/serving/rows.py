"""Rows of a table of measured deployments, and the questions they ask.

One row is one deployment under one load: `mode` agg (one kind of replica) or disagg (prefill and decode workers).
What a row leaves open is assumed, and said: numbers of workers (that match in rate), concurrency (16), the client
(10 prompts per slot, fixed lengths). Measured columns may be empty: `ttft_ms`, `tpot_ms`, `d_output_tokens_per_s` (at
full load, from the two) or `output_tokens_per_s` (as clients print it: of the whole run, until the last slot is empty).
`images` = 0: a server that was started without its vision tower. `warm_prompts`: so many of the run's first prompts
were sent before, and their cache may be there (clients that run several loads with one seed). `max_num_seqs`,
`max_num_batched_tokens` (of an attention rank) and `memory_fraction`: as the row's launch says; not of pools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.evidence.accuracy.serving.spelling import NUMBERS, as_spelled
from windtunnel.files.table import read_table
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.catalogue import stored_as
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.names import DYNAMO
from windtunnel.studies.serving.engines.profile import release_on

NEEDED = ("id", "model", "gpu", "engine", "isl", "osl", "concurrency")
DAY = re.compile(r"(?:nightly-?)?(20\d\d)-?(\d\d)-?(\d\d)$")
FORM = re.compile(r"-(sxm\d?|pcie|oam|\d+gb|nvl\d*|hbm\d\w?|blackwell)$")  # of a GPU's name: what is no other GPU
QUANTISED = {
    "fp8": "fp8",
    "fp8_static": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "int4": "int4",
    "int4_wo": "int4",
    "w4afp8": "int4",
    "int8": "int8",
    "int8_wo": "int8",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "bf16",
    "float16": "bf16",
}


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One line of the table."""

    fields: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's name."""
        return self.fields["id"]

    def text(self, name: str) -> str:
        """A column, empty where it is missing, or `nan`, as numpy writes what is missing."""
        text = (self.fields.get(name) or "").strip()
        return "" if text.lower() == "nan" else text

    def number(self, name: str) -> float | None:
        """A column as a finite number; None where it is empty or none."""
        try:
            number = float(self.text(name))
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    def whole_number(self, name: str, default: int) -> int:
        """A column as a whole number of at least one."""
        value = self.number(name)
        return default if value is None or value < 1 else round(value)

    @property
    def disaggregated(self) -> bool:
        """Whether prompts and answers have GPUs of their own."""
        return self.text("mode").lower().startswith("dis")


def read_rows(tables: Sequence[Path]) -> list[ServingRow]:
    """All rows of the tables, in their order. Raises InputFileError."""
    serving_rows = []
    for path in tables:
        for line, fields in read_table(path, "give a readable CSV", needs=NEEDED).rows():
            serving_rows.append(ServingRow(as_spelled(fields)))
            _check_numbers(serving_rows[-1], path, line)
    return serving_rows


def _check_numbers(row: ServingRow, path: Path, line: int) -> None:
    """What a row leaves open is empty, not unreadable. Raises InputFileError."""
    for name in NUMBERS:
        if row.text(name) and row.number(name) is None:
            raise InputFileError(path, f"line {line}: {name} = {row.text(name)!r}", "give a number, or leave it empty")


def is_serving_table(path: Path) -> bool:
    """Whether a CSV has the columns of measured deployments."""
    try:
        return read_table(path).has(*NEEDED)
    except InputFileError:
        return False  # whoever reads it says what is wrong with it


def gpu_of(name: str, count: int) -> Cluster:
    """A cluster of that GPU that holds `count`. Raises UserError."""
    plain = name.lower().replace("_", "-").replace("-server", "")
    plain = {"rtxpro6000": "rtx-pro-6000", "a100-sxm": "a100-80gb-sxm"}.get(plain, plain)
    shorter = FORM.sub("", plain)
    while shorter != plain and not _is_known_gpu(plain):
        plain, shorter = shorter, FORM.sub("", shorter)
    per_node = parse_cluster(f"{plain}:1").gpus_per_node
    whole = count if count <= per_node else -(-count // per_node) * per_node
    return parse_cluster(f"{plain}:{whole}")


def _is_known_gpu(gpu: str) -> bool:
    try:
        return parse_cluster(f"{gpu}:1").n_gpus > 0
    except UserError:
        return False


def engine_named(row: ServingRow) -> str:
    """Engine and release: a serving image with a release of its own means the engine inside; else that of the date."""
    engine, release = row.text("engine").lower(), row.text("engine_version")
    day = DAY.match(release)
    if day is not None:  # of that day's sources
        release = release_on(engine, "-".join(day.groups()))
    if not any(letter.isdigit() for letter in release):  # "", "main", "latest"
        release = release_on(engine, row.text("measured"))
    if "trt" in engine or "tensorrt" in engine:
        release = next(
            (inside for image, inside in DYNAMO["trtllm"].items() if release.startswith(image + ".")), release
        )
        engine = "trtllm"
    return f"{engine}-{release}" if release else engine


def weights_of(row: ServingRow) -> tuple[str, str]:
    """(dense, routed) number formats. Raises SpecError for one that is not known."""
    whole = row.text("precision").lower()
    dense, routed = row.text("gemm_quant").lower() or whole, row.text("moe_quant").lower() or whole
    if not dense and not routed:
        return _checkpoint(row.text("model"))
    if "gpt-oss" in row.text("model").lower():
        dense, routed = row.text("gemm_quant").lower() or "bf16", row.text("moe_quant").lower() or "mxfp4"
    elif "deepseek-v4" in row.text("model").lower() and whole == "fp8":  # its own checkpoint
        dense, routed = row.text("gemm_quant").lower() or "fp8_block", row.text("moe_quant").lower() or "mxfp4"
    formats = []
    for name in (dense or "bf16", routed or dense or "bf16"):
        if name not in QUANTISED:
            raise SpecError("gemm_quant", name, f"is not known; known: {', '.join(QUANTISED)}")
        formats.append(QUANTISED[name])
    return formats[0], formats[1]


def _checkpoint(model: str) -> tuple[str, str]:
    """Formats of a model's own checkpoint, 16 bits where it is not known."""
    try:
        stored = stored_as(model)
    except UserError:
        return "bf16", "bf16"
    return stored.weights, stored.expert_weights or stored.weights


def layout(row: ServingRow, prefix: str = "") -> dict[str, Any]:
    """Parallel sizes under `tp`, or `prefill_tp` and `decode_tp`."""
    tp, pp, dp = (row.whole_number(f"{prefix}{name}", 1) for name in ("tp", "pp", "attn_dp"))
    slices, groups = row.whole_number(f"{prefix}moe_tp", 1), row.whole_number(f"{prefix}moe_ep", 1)
    if slices * groups != tp * dp:  # dense models list ones
        return {"tp": tp, "pp": pp, "attn_dp": dp}
    return {"tp": tp, "pp": pp, "attn_dp": dp, "moe_tp": slices, "moe_ep": groups}


def _limit(row: ServingRow, name: str) -> int | None:
    """What a row says that its launch allows an attention rank; None where it says nothing."""
    return row.whole_number(name, 1) if row.number(name) else None


def deployment_of(row: ServingRow, prefix: str = "") -> Deployment:
    """The deployment of a row, or of one side of it. Raises UserError.

    Where the published workers do not fill a published pool, attention is repeated over a worker's GPUs and experts are
    spread over them, as wide deployments are.
    """
    dense, routed = weights_of(row)
    kv = {"fp8": "fp8", "bf16": "bf16"}.get(row.text("kv_dtype").lower()[:4].rstrip("_"))
    deployment = Deployment(
        engine=engine_named(row),
        weights=dense,
        expert_weights=routed,
        kv=kv,
        images=False if row.text("images") == "0" else None,
        max_num_seqs=None if prefix else _limit(row, "max_num_seqs"),
        max_num_batched_tokens=None if prefix else _limit(row, "max_num_batched_tokens"),
        gpu_memory_utilization=None if prefix else row.number("memory_fraction"),
        **layout(row, prefix),
    )
    pool, workers = row.whole_number(f"{prefix}gpus", 0), row.whole_number(f"{prefix}num_workers", 0)
    if not prefix or not row.number(f"{prefix}gpus") or not row.number(f"{prefix}num_workers"):
        return deployment
    each = pool // max(1, workers)
    if each <= deployment.gpus or pool % max(1, workers):
        return deployment
    return replace(deployment, tp=1, pp=1, attn_dp=each, moe_tp=1, moe_ep=each)
