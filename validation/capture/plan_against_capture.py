"""One model and layout, predicted twice: from a plan, and from a captured script of examples/distributed.

    python validation/capture/plan_against_capture.py                   # all cases
    python validation/capture/plan_against_capture.py "fsdp2 8" "tp 8"  # some
    python validation/capture/plan_against_capture.py --keep folder     # keeps what was captured, and takes it again

Compared, as means over ranks: FLOPs of forward, backward and recomputation; bytes of each kind of collective in each
group; allocated memory of the fullest rank; and, beside them, step time, reserved and device memory, under the same
settings of the allocator. FLOPs, bytes and memory are counted apart from each other by two parts of this program that
share no code, so what differs is wrong in one of them, or is done differently by the two: then the case says why and by
how much (`known`), and what is left must agree.

Two conventions are brought together first. Plans count the backward of attention as twice its forward, as model FLOPs
are counted; what runs, and is captured, makes the scores again: half a forward more. And a reduction of a few bytes
(gradient norm, the loss that is printed) is counted by the plan once: what is less than two kilobytes is left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.step.result import Result
from windtunnel.real.capture.arguments import parse_launch
from windtunnel.real.capture.launch import Options, capture_job
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.op_shapes import attention_of
from windtunnel.studies.programs.predict import load, predict_captured
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.simulated import simulate
from windtunnel.studies.training.memory.saved_tensors import keeping
from windtunnel.studies.training.plan import read_plan
from windtunnel.studies.training.predict import predict
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import schedule

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "distributed"
AGREES = 0.02
SCORES_AGAIN = 0.2  # of attention's backward as it runs: one product of five
SMALL = 2048  # bytes of one collective: norms, a loss, counts
MIB = 1 << 20
SEQ = 8192  # of the examples' models, but for "debug"


@dataclass(frozen=True)
class Known:
    """A difference with its cause: what is captured beyond what is planned."""

    why: str = ""
    amount: float = 0.0
    share: float = 0.0  # of what is planned


NONE = Known()


@dataclass(frozen=True)
class Case:
    """One pair. `groups`: what the captured families are called in the plan."""

    name: str
    line: str  # script and arguments
    gpus: int
    plan: Mapping[str, object]
    groups: Mapping[str, str] = field(default_factory=dict)
    experts: int = 0
    known: Mapping[str, Known] = field(default_factory=dict)  # quantity -> why the two differ
    own_memory: str = ""  # why the script's memory is not that of the plan


@dataclass(frozen=True)
class Row:
    """One quantity, counted both ways."""

    quantity: str
    plan: float
    captured: float
    known: Known = NONE

    @property
    def difference(self) -> float:
        """Captured over planned, less one."""
        return _over(self.captured, self.plan)

    @property
    def unexplained(self) -> float:
        """What is left of it when the known difference is taken away."""
        return _over(self.captured, self.plan * (1.0 + self.known.share) + self.known.amount)

    @property
    def agrees(self) -> bool:
        """Within two per cent, but for what is known."""
        return abs(self.unexplained) <= AGREES


def _over(one: float, other: float) -> float:
    return 0.0 if one == other else one / other - 1.0 if other else float("inf")


@cache
def shapes() -> dict[str, dict[str, float]]:
    """CONFIGS of the examples' model.py, read without importing it (that takes PyTorch)."""
    tree = ast.parse((EXAMPLES / "model.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CONFIGS":
            assert isinstance(node.value, ast.Dict)
            names = [ast.literal_eval(key) for key in node.value.keys if key is not None]
            calls = [call for call in node.value.values if isinstance(call, ast.Call)]
            return {
                name: {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
                for name, call in zip(names, calls, strict=True)
            }
    raise SystemExit("examples/distributed/model.py has no CONFIGS")


def config_of(shape: Mapping[str, float], experts: int = 0) -> dict[str, object]:
    """The same shape as a Hugging Face config.json."""
    common = {
        "hidden_size": shape["dim"],
        "intermediate_size": shape["ffn"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "num_hidden_layers": shape["layers"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    if experts:
        mixture = {"num_local_experts": experts, "num_experts_per_tok": 2}
        return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **common, **mixture}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **common}


def cases() -> dict[str, Case]:
    """All pairs, by name."""
    # What PyTorch's scaled_dot_product_attention takes on Hopper unless told otherwise.
    common: dict[str, object] = {"seq_len": SEQ, "attention_impl": "flash2"}
    titan = {**common, "framework": "torchtitan"}
    whole_or_again = [
        Case(
            f"fsdp2 {gpus}{' ac' if ac else ''}",
            f"train_fsdp2.py --config {config}{' --ac' if ac else ''}",
            gpus,
            {**titan, "global_batch": gpus, "recompute": "full" if ac else "none"},
            {"world": "dp"},
        )
        for config, gpus in (("1b", 8), ("8b", 64))
        for ac in (False, True)
    ]
    pipelines = [
        Case(
            f"3d 32 {name}",
            f"train_3d.py --config 1b --tp 4 --pp 4 --loss-parallel --schedule {name} --micro-batches 8",
            32,
            {**titan, "global_batch": 16, "tp": 4, "pp": 4, **changes},
        )
        for name, changes in (("1f1b", {}), ("interleaved", {"virtual_stages": 2}), ("zbv", {"schedule": "zb-v"}))
    ]
    table = [
        Case(
            "ddp 8",
            "train_ddp.py --config 1b",
            8,
            {**common, "framework": "pytorch", "global_batch": 8, "precision": "fp32", "zero_stage": 0},
            {"world": "dp"},
            known={"broadcast dp": _tables("1b")},
        ),
        *whole_or_again,
        Case(
            "fsdp2 8 fp32",
            "train_fsdp2.py --config 1b --precision fp32",
            8,
            {**titan, "global_batch": 8, "precision": "fp32"},
            {"world": "dp"},
        ),
        Case(
            "tp 8",
            "train_tp.py --config 8b --tp 8 --loss-parallel",
            8,
            {**titan, "global_batch": 1, "tp": 8},
            {"world": "tp"},
        ),
        Case(
            "tp 8 dp 8",
            "train_tp.py --config 8b --tp 8 --loss-parallel",
            64,
            {**titan, "global_batch": 8, "tp": 8},
        ),
        *pipelines,
        Case(
            "cp 2",
            "train_cp.py --config 1b --cp 2",
            8,
            {**titan, "global_batch": 4, "cp": 2},
            {"world": "dp"},
            known=_gathered_keys("1b", 2),
            own_memory="the script writes all scores",
        ),
        Case(
            "ep 4",
            "train_ep.py --config 1b --ep 4 --experts 8",
            8,
            {**titan, "global_batch": 8, "ep": 4},
            {"world": "dp", "dp": "edp"},
            experts=8,
        ),
        # Small, for a test.
        Case(
            "debug fsdp2 4 ac",
            "train_fsdp2.py --config debug --ac --batch 32 --micro-batches 2",
            4,
            {**titan, "seq_len": 64, "global_batch": 32, "micro_batch": 4, "recompute": "full"},
            {"world": "dp"},
            known={
                "reduce_scatter dp": Known("the script reduces behind the last of its two micro-batches", share=-0.5),
            },
            own_memory="the script keeps the gradients of its two micro-batches whole until they are reduced",
        ),
        Case(
            "debug tp 4",
            "train_tp.py --config debug --tp 4 --loss-parallel --batch 16",
            4,
            {**titan, "seq_len": 64, "global_batch": 16, "micro_batch": 16, "tp": 4},
            {"world": "tp"},
            known={"all_reduce tp": _too_small("debug")},
        ),
    ]
    return {case.name: case for case in table}


def _tables(config: str) -> Known:
    shape = shapes()[config]
    why = "DistributedDataParallel sends rank 0's buffers before each pass: cosines and sines of rotary positions"
    return Known(why, 2.0 * 4.0 * SEQ * shape["dim"] / shape["heads"])


def _too_small(config: str) -> Known:
    shape = shapes()[config]
    assert 2.0 * shape["dim"] < SMALL
    return Known(
        "gradients of norms, too few bytes each to be counted here", -(2.0 * shape["layers"] + 1.0) * 2.0 * shape["dim"]
    )


def _gathered_keys(config: str, cp: int) -> dict[str, Known]:
    """The script gathers keys and values; a plan passes them round in a ring."""
    shape = shapes()[config]
    moved = 2.0 * shape["layers"] * SEQ * 2.0 * shape["kv_heads"] * shape["dim"] / shape["heads"]
    scores = 4.0 * shape["layers"] * SEQ / cp * SEQ * shape["dim"]  # FLOPs if all are made
    unseen = 1.0 - (2.0 * cp + 1.0) / (4.0 * cp)
    why = "the script makes the scores of a chunk's queries with the keys up to its end only; a plan counts all"
    ring = "the script gathers keys and values, and scatters their gradients; a plan's ring sends them on"
    return {
        "forward FLOPs": Known(why, -unseen * scores),
        "backward FLOPs": Known(why, -2.0 * unseen * scores),
        "all_gather cp": Known(ring, moved),
        "reduce_scatter cp": Known(ring, moved),
        "send cp": Known(ring, share=-1.0),
    }


def compared(case: Case, folder: Path) -> tuple[list[Row], list[Row]]:
    """(what must agree, what is only shown) of one case. Takes what was captured in `folder` already."""
    cluster = f"h100-sxm:{case.gpus}"
    if not (folder / "captured.yaml").exists():
        script, *arguments = shlex.split(case.line)
        launch = parse_launch([str(EXAMPLES / script), *arguments, "--steps", "3"], world_size=case.gpus)
        capture_job(launch, Options(verify=1), folder)
    job = load(folder)
    framework = str(case.plan["framework"])
    # The plan follows the habit of its framework; the script ran without a setting.
    settings = "expandable_segments:True" if keeping(framework).expandable else ""
    measured = predict_captured(job, cluster, framework=framework, allocator=settings)
    config = case.line.partition("--config ")[2].split()[0]
    model = config_of(shapes()[config], case.experts)
    planned = predict(model, cluster, dict(case.plan))
    plan_flops, captured_flops = flops_of_plan(model, cluster, case.plan), flops_of_capture(job)
    pairs = [(name, plan_flops[name], captured_flops[name]) for name in plan_flops]
    plan_bytes, captured_bytes = bytes_of_plan(planned), bytes_of_capture(job, case.groups)
    names = sorted(plan_bytes.keys() | captured_bytes.keys())
    pairs += [(name, plan_bytes.get(name, 0.0), captured_bytes.get(name, 0.0)) for name in names]
    rows = [Row(name, one, other, case.known.get(name, NONE)) for name, one, other in pairs if one or other]
    peaks = [Row(f"{name} memory, MiB", *parts) for name, parts in _peaks(planned, measured)]
    rows += [] if case.own_memory else peaks[:1]
    shown = [
        Row("step, s", planned.step_time_s, measured.step_time_s),
        *(peaks if case.own_memory else peaks[1:]),
        *(Row(f"time in {name}, ms", *parts) for name, parts in _parts(planned, measured)),
        *(Row(f"memory of {name}, MiB", *parts) for name, parts in _memory(planned, measured)),
    ]
    return rows, shown


def _peaks(planned: Result, measured: Result) -> Iterator[tuple[str, tuple[float, float]]]:
    for name in ("allocated", "reserved"):
        field = f"peak_{name}_bytes"
        yield name, (getattr(planned.peak_memory, field) / MIB, getattr(measured.peak_memory, field) / MIB)
    yield "device", (planned.peak_memory.device_bytes / MIB, measured.peak_memory.device_bytes / MIB)


def _parts(planned: Result, measured: Result) -> Iterator[tuple[str, tuple[float, float]]]:
    for name in sorted(planned.breakdown_ns.keys() | measured.breakdown_ns.keys()):
        yield name, (planned.breakdown_ns.get(name, 0) / 1e6, measured.breakdown_ns.get(name, 0) / 1e6)


def _memory(planned: Result, measured: Result) -> Iterator[tuple[str, tuple[float, float]]]:
    one, other = planned.peak_memory.categories, measured.peak_memory.categories
    for name in sorted(one.keys() | other.keys()):
        yield name, (one.get(name, 0) / MIB, other.get(name, 0) / MIB)


def flops_of_plan(model: Mapping[str, object], cluster: str, plan: Mapping[str, object]) -> dict[str, float]:
    """Mean over ranks."""
    layout = resolve(load_model(dict(model)), parse_cluster(cluster), read_plan(dict(plan)))
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    step = simulate(layout, pieces_of(layout), chosen, Pricer(layout)).step
    counts = np.bincount(step.segment_of[chosen.stage_of, chosen.kind], minlength=len(step.segments))
    total = {"forward FLOPs": 0.0, "recomputed FLOPs": 0.0, "backward FLOPs": 0.0}
    for count, name, segment in zip(counts.tolist(), step.segment_names, step.segments, strict=True):
        again = np.array([label.startswith("recompute ") for label in segment.graph.labels], bool)[segment.graph.label]
        recomputed = float(segment.graph.flops[again].sum())
        phase = "forward FLOPs" if name == "forward" else "backward FLOPs"
        total[phase] += count / chosen.stages * (float(segment.graph.flops.sum()) - recomputed)
        total["recomputed FLOPs"] += count / chosen.stages * recomputed
    return total


def flops_of_capture(job: CapturedJob) -> dict[str, float]:
    """Mean over ranks."""
    total = {"forward FLOPs": 0.0, "recomputed FLOPs": 0.0, "backward FLOPs": 0.0}
    captured, counts = np.unique(job.runs, return_counts=True)
    for rank, count in zip(captured.tolist(), counts.tolist(), strict=True):
        for op in job.programs[rank].ops:
            if op.flops:
                attention = attention_of(op)
                once = op.flops * (1.0 - SCORES_AGAIN if attention is not None and attention.backward else 1.0)
                phase = "recomputed" if op.recompute else "forward" if op.phase == "forward" else "backward"
                total[f"{phase} FLOPs"] += once * count / job.world_size
    return total


def bytes_of_plan(result: Result) -> dict[str, float]:
    """By kind and group; mean over ranks."""
    total: dict[str, float] = {}
    for key, value in result.traffic_bytes.items():
        name = key.partition(" (")[0].replace("send_recv", "send")
        total[name] = total.get(name, 0.0) + value
    return {name: value for name, value in total.items() if value >= SMALL}


def bytes_of_capture(job: CapturedJob, groups: Mapping[str, str]) -> dict[str, float]:
    """By kind and group; mean over ranks. A message is counted where it is sent."""
    total: dict[str, float] = {}
    captured, counts = np.unique(job.runs, return_counts=True)
    for rank, count in zip(captured.tolist(), counts.tolist(), strict=True):
        for op in job.programs[rank].ops:
            call = op.communication
            if call is None or call.kind == "recv" or call.bytes < SMALL or len(call.members) == 1:
                continue
            family = job.families[job.family_of(call)].name
            name = f"{call.kind} {groups.get(family, family)}"
            total[name] = total.get(name, 0.0) + call.bytes * count / job.world_size
    return total


def printed(name: str, rows: list[Row], shown: list[Row]) -> None:
    """A table in Markdown."""
    print(f"\n## {name}\n\n| | plan | captured | captured / plan - 1 | left | |\n|---|---|---|---|---|---|")
    for row in rows:
        mark = row.known.why if row.agrees else f"**differs** {row.known.why}"
        figures = f"{row.plan:.5g} | {row.captured:.5g} | {row.difference:+.2%} | {row.unexplained:+.2%}"
        print(f"| {row.quantity} | {figures} | {mark} |")
    for row in shown:
        print(f"| {row.quantity} | {row.plan:.4g} | {row.captured:.4g} | {row.difference:+.1%} | | shown only |")
    sys.stdout.flush()


def main() -> None:
    """Print a table for each case; the exit status is 1 where something differs and no case says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep captured folders there, and take them again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    args = parser.parse_args()
    known = cases()
    for name in args.names:
        if name not in known:
            raise SystemExit(f"no case {name!r}; there are {', '.join(map(repr, known))}")
    found: dict[str, Any] = {}
    unexplained = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.names or [name for name in known if not name.startswith("debug")]:
            rows, shown = compared(known[name], (args.keep or Path(temporary)) / name.replace(" ", "_"))
            printed(name, rows, shown)
            unexplained += sum(not row.agrees for row in rows)
            found[name] = {row.quantity: [row.plan, row.captured] for row in (*rows, *shown)}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
