"""Models, clusters and plans that a prediction takes a few milliseconds for, and a step taken apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from random import Random
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from windtunnel.physics.engine import Slowdown, Timeline, replay
from windtunnel.physics.hardware import Cluster, Gpu, Host, Link, parse_cluster
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.step.result import Result
from windtunnel.studies.training import predict, read_plan
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import NAMES, schedule

FRAMEWORKS = ("megatron", "torchtitan", "fsdp", "nanotron")
GPUS = ("h100-sxm", "a100-80gb-sxm", "b200-sxm", "mi300x")
VOCABULARY = 4096  # a multiple of 128 tp: no padding


@lru_cache(maxsize=256)
def model_of(hidden: int = 256, feed_forward: int = 512, layers: int = 4, kv_heads: int = 8, experts: int = 0,
             vocabulary: int = VOCABULARY) -> Model:  # fmt: skip
    """A Llama with 8 heads, or a Mixtral. Below 40 M parameters a piece is one bucket, however it is cut."""
    config: dict[str, Any] = {
        "model_type": "mixtral" if experts else "llama",
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_attention_heads": 8,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    if experts:
        config |= {"num_local_experts": experts, "num_experts_per_tok": 2, "sliding_window": None}
    return load_model(config)


@dataclass(frozen=True, repr=False)
class Job:
    """What one prediction is asked for."""

    shape: dict[str, int]  # of `model_of`
    cluster: Cluster
    plan: dict[str, Any]

    def __repr__(self) -> str:
        plan = {key: value for key, value in self.plan.items() if value is not None}
        domain = self.cluster.scale_up_domain
        return f"<{self.shape} on {self.cluster.gpu.name}:{self.cluster.n_gpus}, domain {domain}, {plan}>"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every number of the cluster

    @property
    def model(self) -> Model:
        return model_of(**self.shape)

    def with_plan(self, **changes: Any) -> Job:
        return replace(self, plan=self.plan | changes)

    def with_shape(self, **changes: int) -> Job:
        return replace(self, shape=self.shape | changes)


Pick = Callable[[Sequence[Any]], Any]  # one of several


def degrees(pick: Pick, schedule: str | None, layers: int) -> tuple[int, int, int, int]:
    """tp, pp, cp, dp that a model of so many layers can be cut into."""
    chunks = {"interleaved": 2, "zb-v": 2, "dualpipe-v": 2}.get(schedule or "", 1)
    pp = pick([p for p in (1, 2, 4) if p * chunks <= layers and (p > 1 or schedule is None)] or [1])
    return pick([1, 2, 4]), pp, pick([1, 1, 2]), pick([1, 2, 4])


def pick_job(
    pick: Pick,
    *,
    experts: bool = True,
    spread: bool = False,
    low_precision: bool = True,
    recompute: bool = True,
) -> Job:
    """Legal jobs of every framework and schedule. `spread`: experts, on two ranks or more."""
    layers = pick([2, 4, 8])
    shape = {
        "hidden": pick([128, 256, 512]),
        "feed_forward": pick([256, 512, 1024]),
        "layers": layers,
        "kv_heads": pick([4, 8]),
        "experts": 4 if spread else pick([0, 0, 4]) if experts else 0,
    }
    named = pick([None, None, *NAMES])
    tp, pp, cp, dp = degrees(pick, named, layers)
    named = named if pp > 1 else None
    dp = max(dp, 2) if spread else dp
    micro_batch = pick([1, 2])
    plan: dict[str, Any] = {
        "framework": pick(FRAMEWORKS),
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "micro_batch": micro_batch,
        "global_batch": micro_batch * dp * pp * pick([2, 4]),
        "seq_len": pick([256, 512, 1024]),
        "cp_kind": pick(["ring", "ulysses"]),
        "recompute": pick(["none", "full", "selective:core_attention"]) if recompute else "none",
        "zero_stage": pick([None, 0, 1, 2, 3]),
        "cuda_graphs": pick([None, True]),
    }
    plan |= {name: pick([None, True, False]) for name in (
        "overlap_tp", "overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "sequence_parallel",
    )}  # fmt: skip
    if low_precision:
        plan["precision"] = pick(["bf16", "fp16", "fp8"])
    if named:
        plan |= {"schedule": named, "virtual_stages": 2 if named == "interleaved" else 1}
    if shape["experts"]:
        plan["ep"] = 2 if tp * cp * dp % (2 * tp) == 0 else 1
    gpu = pick([name for name in GPUS if plan.get("precision") != "fp8" or name != "a100-80gb-sxm"])
    return Job(shape, parse_cluster(f"{gpu}:{tp * pp * cp * dp}"), plan)


@st.composite
def jobs(draw: st.DrawFn, **which: bool) -> Job:
    """One of all `pick_job(**which)` can pick."""
    return pick_job(lambda options: draw(st.sampled_from(options)), **which)


DRAWN = settings().max_examples  # of the profile: tests/conftest.py
ANSWERS: dict[str, tuple[Job, Result]] = {}


@cache
def drawn(**which: bool) -> tuple[Job, ...]:
    """As many, the same for all laws of a process, which so share what was predicted for them."""
    pick = Random(0 if settings().derandomize else None).choice
    return tuple(pick_job(pick, **which) for _ in range(DRAWN))


def shared_jobs(**which: bool) -> st.SearchStrategy[Job]:
    """One of those: a law with `max_examples=DRAWN` sees each."""
    return st.deferred(lambda: st.sampled_from(drawn(**which)))


def predicted(job: Job) -> Result:
    """Its prediction, made once."""
    before = ANSWERS.get(repr(job))  # which leaves out details of the cluster
    if before is None or before[0] != job:
        before = ANSWERS[repr(job)] = job, predict(job.model, job.cluster, job.plan)
    return before[1]


@dataclass(frozen=True)
class Taken:
    """A step taken apart."""

    layout: Layout
    pieces: tuple[Piece, ...]
    step: LoweredStep
    timeline: Timeline

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """How often all ranks together run each segment."""
        table = self.step.schedule
        used = self.step.segment_of[table.stage_of, table.kind]
        return np.bincount(used, minlength=len(self.step.segments))

    def executed_flops(self) -> float:
        """Matrix FLOPs of the whole job."""
        one = sum(int(n) * segment.flops for n, segment in zip(self.counts, self.step.segments, strict=True))
        return one * self.layout.cluster.n_gpus / self.step.schedule.stages


def take(
    model: Model, cluster: Cluster, plan: dict[str, Any], *, pricer: type[Pricer] = Pricer, same_pieces: bool = False
) -> Taken:
    """Lower and replay. `same_pieces`: every stage holds what the middle one holds, as no embedding or head."""
    # Passes are remembered by the model's identity: a copy keeps odd prices out of everybody else's.
    layout = resolve(replace(model), cluster, read_plan(plan))
    pieces = pieces_of(layout)
    if same_pieces:
        pieces = (pieces[len(pieces) // 2],) * len(pieces)
    prices = pricer(layout)
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    step = lower(layout, pieces, chosen, prices)
    slowdown = Slowdown(step.interference, np.array(prices.training.slowdown_factors()))
    return Taken(layout, pieces, step, replay(step.graph, step.duration_ns, slowdown))


def slow_cluster(n_gpus: int, times: float = 1.0, name: str = "slow") -> Cluster:
    """Round numbers, no measured tables, nothing instant: every rate `times` as high, every latency that much lower.

    GPUs are so slow that a nanosecond of rounding is nothing.
    """
    gpu = Gpu(
        name=f"{name}-gpu",
        vendor="none",
        generation="other",
        memory_bytes=10**12,
        usable_memory_bytes=10**12,
        memory_bandwidth_bytes_per_s=1e10 * times,
        flops_per_s={"bf16": 1e12 * times},
        sm_count=100,
        tdp_w=100.0,
    )
    return Cluster(
        name=name,
        gpu=gpu,
        n_gpus=n_gpus,
        gpus_per_node=math.gcd(4, n_gpus),
        scale_up_domain=math.gcd(4, n_gpus),
        scale_up=Link("up", 1e9 * times, 1e-5 / times, "nvlink"),
        scale_out=Link("out", 1e8 * times, 1e-4 / times, "infiniband"),
        host=Host(1e9 * times, 10**12, cpu_speed=times),
    )
