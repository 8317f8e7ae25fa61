"""What `survive` and `survive spot` are asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import OpenPlan, open_plan


@part
class Survive:
    """What failures cost a job; without a model, step time and state are assumed."""

    verb: ClassVar[str] = "survive"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[
        ModelPart | None,
        About("Name or config.json of a model, as in predict. Without one, step time and state are assumed."),
    ] = None
    cluster: Annotated[ClusterPart, About("GPU and count, e.g. h100-sxm:16384, or a cluster file.")]
    plan: Annotated[OpenPlan, About("Plan file in YAML; flags override it.", inside=True)] = field(
        default_factory=open_plan
    )
    days: Annotated[float, About("Wall time of the run in days (54).")] = 54.0
    policy: Annotated[
        str,
        About(
            "Policies with commas between them: restart, standby, byterobust, shrink, ft-hsdp, oobleck, varuna,"
            " parcae (restart,standby,shrink,parcae)."
        ),
    ] = ""
    failures: Annotated[
        str,
        About(
            "llama3, rsc-1, rsc-2, production, none, TIME@GPUS (6h@512: one every 6 h on 512), a YAML file, or a CSV"
            " log with --log (llama3); or --mtbf 6h."
        ),
    ] = "llama3"
    mtbf: Annotated[
        float | None,
        About(
            "Mean time between failures of the job, e.g. 6h, in place of --failures.", unit="time", least=1.0, rare=True
        ),
    ] = None
    log: Annotated[
        str | None, About("GPUs and days that a CSV log was kept for, e.g. 1024:30 or 1024x8:30.", rare=True)
    ] = None
    checkpoint: Annotated[str, About("Work between checkpoints, e.g. 10min, or auto (auto).")] = "auto"
    standbys: Annotated[str, About("Machines kept warm, or auto (auto).", rare=True)] = "auto"
    recovery: Annotated[
        tuple[str, ...], About("A time of a recovery, e.g. schedule=2min or load=90s; repeatable.", rare=True)
    ] = ()
    planned_every: Annotated[
        str | None,
        About("Planned changes of one machine too, so far apart on average, e.g. 2h (none).", rare=True),
    ] = None
    storage: Annotated[
        str | None,
        About("Bandwidth of the file system, e.g. 2TB/s; loading is computed with it (0.25 GB/s a GPU).", rare=True),
    ] = None
    step_time: Annotated[str | None, About("Step time where no model is given (10s).", rare=True)] = None
    price: Annotated[float | None, About("Dollars for one GPU-hour; no money without it.")] = None
    seeds: Annotated[int, About("Runs to sample (200).", rare=True)] = 200
    seed: Annotated[int, About("Seed of what is drawn at random (0).", rare=True)] = 0


@part
class SurviveSpot:
    """What spot machines give a job that lives on them."""

    verb: ClassVar[str] = "survive spot"
    positional: ClassVar[tuple[str, ...]] = ("machines", "model")
    machines: Annotated[str, About("CSV of spot machines: time_s,event,node or minute,added,removed.")]
    model: Annotated[str | None, About("A model of the tables, e.g. bert; the trace's own without one.")] = None
    policy: Annotated[str, About("Policies with commas between them: parcae, varuna, on-demand (all).")] = ""
    tables: Annotated[
        str | None, About("Folder with parcae_throughput.csv and parcae_constants.csv (the trace's).")
    ] = None
    forecast: Annotated[
        Literal["known", "persistence"],
        About("What parcae knows: the future (known), or that nothing changes (persistence)."),
    ] = "known"
    look_ahead: Annotated[int | None, About("Minutes that parcae looks ahead (12).")] = None
    price: Annotated[float | None, About("Dollars for one GPU-hour, on-demand.", least=0)] = None
    spot_price: Annotated[float | None, About("Dollars for one GPU-hour of a spot machine.", least=0)] = None
    seed: Annotated[int, About("Seed of what is drawn at random (0).")] = 0
