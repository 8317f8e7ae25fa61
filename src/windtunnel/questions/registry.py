"""The registry of questions: verb -> what asks it, what answers it, a line of help, the version of its plain form.

It holds words, not classes: `--help` of one verb imports that verb's question alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Protocol, TypeVar

from windtunnel.errors import SpecError


class Question(Protocol):
    """What a study is asked: a frozen dataclass, by the verb and the fields that need no flag."""

    verb: ClassVar[str]
    positional: ClassVar[tuple[str, ...]]


Asked = TypeVar("Asked", bound=Question)


@dataclass(frozen=True, slots=True)
class Verb:
    """What asks and answers a verb, both as `module:name`; a line of help; the version of its plain form.

    `example`: the words behind it of a question that people ask, with which a page's form begins. A `pure` one only
    answers: it writes no file, runs no program and looks at no clock, so it may stand in a file.
    """

    question: str
    answer: str
    text: str
    version: int = 1
    pure: bool = True
    example: str = ""
    spells: str = ""


STARTED = "windtunnel.studies.serving.launch.question:spelled_out"
QUESTIONS: Mapping[str, Verb] = {
    "predict": Verb(
        "windtunnel.questions.asked.predict:Predict",
        "windtunnel.studies.predict:answer",
        "Predict one training step: how long, where the time goes, whether it fits, and how sure that is.\n\n"
        "The exit status is 3 for a job that does not fit in memory.",
        example="llama-3-70b --cluster h100-sxm:512 --tp 8 --pp 4 --global-batch 512 --seq 8192",
    ),
    "plan": Verb(
        "windtunnel.questions.asked.search:Search",
        "windtunnel.studies.plan:answer",
        "Find the best plan for a model on a cluster, and prove it.\n\n"
        "Every field of a plan that is not given is searched over its legal values.",
        example="llama-3-70b --cluster h100-sxm:512 --global-batch 512 --seq 8192",
    ),
    "survive": Verb(
        "windtunnel.questions.asked.survive:Survive",
        "windtunnel.studies.survive:answer",
        "Say what failures cost a job at its scale, policy by policy: effective training time, where the rest goes,"
        " money.",
        example="llama-3.1-405b --cluster h100-sxm:16384 --tp 8 --pp 16 --global-batch 2048 --seq 8192 --days 54",
    ),
    "survive spot": Verb(
        "windtunnel.questions.asked.survive:SurviveSpot",
        "windtunnel.studies.survive:answer_spot",
        "Say what spot machines give a job that lives on them, policy by policy.",
        example="minutes.csv --model gpt-1.5b --policy parcae,varuna,on-demand",
    ),
    "serve": Verb(
        "windtunnel.questions.asked.serve.study:Serve",
        "windtunnel.studies.serving.study:answer",
        "Predict latency, throughput and attainment of a served model.",
        example="llama-3.1-70b --cluster h100-sxm:8 --tp 4 --prompt 2000 --output 300 --rate 2 --ttft 1s --tpot 50ms",
        spells=STARTED,
    ),
    "serve plan": Verb(
        "windtunnel.questions.asked.serve.plan:ServePlan",
        "windtunnel.studies.serving.study:answer_plan",
        "Find the fewest GPUs, and their layout, that keep the limits at a rate; of a given layout, the highest rate.",
        example="llama-3.1-70b --cluster h100-sxm:16 --rate 4 --prompt 2000 --output 300 --ttft 1s --tpot 50ms",
        spells=STARTED,
    ),
    "serve policies": Verb(
        "windtunnel.questions.asked.serve.policies:ServePolicies",
        "windtunnel.studies.serving.policies:answer",
        "Compare batching policies and routers on the same requests.",
        example="llama-2-13b --cluster a100-80gb:1 --rate 2 --prompt 500 --output 200 --policy fcfs,skip-join",
        spells=STARTED,
    ),
    "serve spot": Verb(
        "windtunnel.questions.asked.serve.spot:ServeSpot",
        "windtunnel.studies.serving.study:answer_spot",
        "Serve on machines that come and go, under each policy.",
        example="llama-2-13b --cluster a100-80gb:48 --rate 2 --prompt 500 --output 100 --machines minutes.csv",
        spells=STARTED,
    ),
    "serve scale": Verb(
        "windtunnel.questions.asked.serve.scale:ServeScale",
        "windtunnel.studies.serving.stateful.study:answer",
        "Let replicas come and go with the sessions they hold, by draining, recomputing or moving them.",
        example="llama-3.1-8b --cluster h100-sxm:8 --rate 20 --prompt 2000 --output 2000 --tpot 30ms",
        spells=STARTED,
    ),
    "serve pool": Verb(
        "windtunnel.questions.asked.serve.pool:ServePool",
        "windtunnel.studies.serving.study:answer_pool",
        "Serve several models on groups of machines, or from a pool of weights, as a file says.",
        example="pool.yaml",
    ),
    "serve real": Verb(
        "windtunnel.questions.asked.serve.real:ServeReal",
        "windtunnel.real.serving.compare:answer",
        "Serve a small real model on this machine under each policy, measured beside predicted.",
        pure=False,
    ),
    "serve listen": Verb(
        "windtunnel.questions.asked.serve.listen:ServeListen",
        "",
        "Answer requests of OpenAI's API in simulated time.",
        pure=False,
    ),
    "rl": Verb(
        "windtunnel.questions.asked.rl:Rl",
        "windtunnel.studies.rl.study:answer",
        "Predict a step of RL post-training (GRPO and its kin): how long, who waits for whom, what fits.",
        example="qwen3-32b --cluster h100-sxm:128 --framework nemo-rl --prompts 64 --samples 16"
        " --lengths mean=9000,cap=32768",
    ),
    "fabric": Verb(
        "windtunnel.questions.asked.fabric:Fabric",
        "windtunnel.studies.fabric:answer",
        "Say how long a collective takes on a cluster, size by size, and hold nccl-tests against it.",
        example="--cluster gb200:576 --collective all-reduce --bytes 64MiB..8GiB",
    ),
    "nic": Verb(
        "windtunnel.questions.asked.nic:Nic",
        "windtunnel.studies.nic:answer",
        "Say how many host cores a data path takes, and what a NIC with cores of its own takes over.",
        example="graph.yaml --nic bluefield-2 --target 100Gb/s",
    ),
    "rl plan": Verb(
        "windtunnel.questions.asked.rl:RlPlan",
        "windtunnel.studies.rl.plan:answer",
        "Find the split of a cluster between generation and training that makes an RL step shortest, and prove it.",
        example="qwen3-32b --cluster h100-sxm:128 --framework nemo-rl --prompts 64 --samples 16"
        " --lengths mean=9000,cap=32768",
    ),
    "fleet": Verb(
        "windtunnel.questions.asked.fleet.study:Fleet",
        "windtunnel.studies.fleet.study:answer",
        "Run a trace of jobs under one policy or several.",
        example="jobs.csv --cluster h100-sxm:1024 --policy fifo,tiresias",
    ),
    "fleet when": Verb(
        "windtunnel.questions.asked.fleet.further:FleetWhen",
        "windtunnel.studies.fleet.when:answer_when",
        "Say when one job will start and end, how sure that is, and why it waits.",
        example="jobs.csv --cluster h100-sxm:1024 --job 4711",
    ),
    "fleet pack": Verb(
        "windtunnel.questions.asked.fleet.further:FleetPack",
        "windtunnel.studies.fleet.packing.study:answer_pack",
        "Pack pods on unlike nodes under each policy.",
        example="pods.csv --cluster nodes.csv --policy fgd,bestfit",
    ),
    "fleet flows": Verb(
        "windtunnel.questions.asked.fleet.further:FleetFlows",
        "windtunnel.studies.fleet.flows.study:answer_flows",
        "Coflows that share the ports of one switch: when each ends under a policy.",
        example="coflows.txt --policy sebf",
    ),
    "fleet lint": Verb(
        "windtunnel.questions.asked.fleet.further:FleetLint",
        "windtunnel.studies.fleet.jobs.lint:answer_lint",
        "Say what is wrong with a trace; status 3 where something cannot be right.",
        example="jobs.csv",
    ),
    "fleet usage": Verb(
        "windtunnel.questions.asked.fleet.further:FleetUsage",
        "windtunnel.studies.fleet.jobs.usage:answer_usage",
        "Say what jobs did with the GPUs that they held: utilisation and energy, from Prometheus.",
        example="jobs.csv usage.json",
    ),
    "fleet share": Verb(
        "windtunnel.questions.asked.fleet.further:FleetShare",
        "windtunnel.studies.fleet.sharing.study:answer",
        "Say which jobs fit on one link, by when each sends, and by how much to shift them.",
        example="traffic.yaml --links 2",
    ),
    "fleet live": Verb(
        "windtunnel.questions.asked.fleet.further:FleetLive",
        "",
        "Run the commands of a trace here under one policy, beside their simulation.",
        pure=False,
    ),
    "fleet beside": Verb(
        "windtunnel.questions.asked.fleet.further:FleetBeside",
        "",
        "Run batch jobs here beside a service, held back by control groups so that it stays in time.",
        pure=False,
    ),
    "explain": Verb(
        "windtunnel.questions.asked.explain:Explain",
        "windtunnel.studies.traces.explain:answer",
        "Say why a real job is slower than it should be: which worker, stage or kind of op, and what mending it gives.",
        example="rank0.json.gz",
    ),
    "diagnose": Verb(
        "windtunnel.questions.asked.diagnose:Diagnose",
        "windtunnel.studies.diagnose:answer",
        "Say whether a step that you measured is what it should be, where it is lost if not, and what to change.\n\n"
        "Works with a number (--measured 11.0s), better with a log, best with traces.",
        example="train.sh --cluster h100-sxm:512 --log slurm-123.out",
    ),
    "check": Verb(
        "windtunnel.questions.asked.check:Check",
        "windtunnel.studies.check:answer",
        "Say whether a launch file may be submitted: the exit status is 1 where a rule of --fail-if is broken.",
        example="train.sh --cluster h100-sxm:512 --fail-if slower=5% --baseline before.sh",
    ),
    "decide": Verb(
        "windtunnel.questions.asked.decide:Decide",
        "windtunnel.studies.decide:answer",
        "Hold clusters and models against each other: step, days, cost with failures, energy, head-room, risk and"
        " break-even price in one table.",
        example="llama-3-70b --clusters h100-sxm:512,b200:256 --tokens 2T --price h100-sxm=2.5,b200=4 --mtbf 6h",
    ),
    "watch": Verb(
        "windtunnel.questions.asked.explain:Watch",
        "windtunnel.real.survive.watch.verdict:answer",
        "Name the rank that makes all others wait, or that is slow, from the logs that ranks write while they run.",
        pure=False,
    ),
    "compare": Verb(
        "windtunnel.questions.asked.saved:Compare",
        "windtunnel.faces.report.comparison.compare:answer",
        "Show where two runs differ, and what explains it.",
    ),
    "whatif": Verb(
        "windtunnel.questions.asked.saved:WhatIf",
        "windtunnel.faces.report.comparison.compare:answer_whatif",
        "Ask a saved run again with something changed, and show what that does.",
    ),
    "sweep": Verb(
        "windtunnel.questions.asked.sweep:Sweep",
        "windtunnel.studies.sweeps.sweep:answer",
        "Run any question over many points: one row each in one Parquet file; a killed sweep goes on where it was.",
        pure=False,
        example="study.yaml",
    ),
    "sweep table": Verb(
        "windtunnel.questions.asked.sweep:SweepTable",
        "windtunnel.studies.sweeps.table:answer",
        "Show the best rows of a table that a sweep wrote.",
        example="points.parquet",
    ),
    "techniques": Verb(
        "windtunnel.questions.asked.sweep:Techniques",
        "windtunnel.studies.helping:answer",
        "List the techniques: what each does and needs, its parameters, and what runs it in PyTorch.",
    ),
    "model": Verb(
        "windtunnel.questions.asked.sweep:ModelFacts",
        "windtunnel.faces.cli.model:answer",
        "Say what a model is made of: parameters, layers, and what a decoder keeps of a token and of a sequence.",
        example="llama-3.1-8b",
    ),
    "launch": Verb(
        "windtunnel.questions.asked.saved:Launch",
        "windtunnel.faces.cli.launch:answer",
        "Print what a framework is launched with for the plan of a run.",
    ),
    "capture": Verb(
        "windtunnel.questions.asked.capture:Capture",
        "windtunnel.real.capture.question:answer",
        "Run an unmodified training script at its full scale on this machine, without GPUs, and keep what it executes."
        "\n\nThe launch line stays as it was for torchrun, but for its first word: windtunnel capture --nproc-per-node"
        " 8 train.py --config x. A few ranks are run on tensors without data, one after another; they stand for all"
        " others, which is checked with ranks drawn at random. Then: windtunnel predict captured/ --cluster SPEC.",
        pure=False,
    ),
    "run": Verb(
        "windtunnel.questions.asked.capture:Run",
        "windtunnel.real.emulate.question:answer",
        "Run a training script as one real rank of a large job, or as a few; all other ranks are virtual.\n\n"
        "A real rank has real tensors, a real data loader and optimizer; each communication takes the time that it"
        " would with all its members, and leaves data of the right size and scale. The launch line changes in its first"
        " word: windtunnel run --world-size 1024 --rank 0 --cluster h100-sxm:1024 train.py --config x.",
        pure=False,
    ),
    "calibrate device": Verb(
        "windtunnel.questions.asked.calibrate:CalibrateDevice",
        "windtunnel.real.calibrate.run:answer",
        "Measure the device at hand, and write a cluster for --cluster my-device.yaml:1.\n\n"
        "Interrupted, it goes on where it was when run again.",
        pure=False,
    ),
    "calibrate collectives": Verb(
        "windtunnel.questions.asked.calibrate:CalibrateCollectives",
        "windtunnel.real.calibrate.collectives:answer",
        "Measure collectives between processes, and add them to a calibrated file.",
        pure=False,
    ),
    "calibrate show": Verb(
        "windtunnel.questions.asked.calibrate:CalibrateShow",
        "windtunnel.real.calibrate.curves:answer",
        "Show a calibrated file: measured points against the curves that predictions use.",
        example="my-device.yaml",
    ),
    "runs list": Verb(
        "windtunnel.questions.asked.saved:RunsList",
        "windtunnel.faces.report.run_list:answer",
        "List saved runs, newest first, or search them.",
    ),
    "runs tag": Verb(
        "windtunnel.questions.asked.saved:RunsTag",
        "windtunnel.faces.report.run_list:answer_tag",
        "Give runs tags in place of those that they have.",
        pure=False,
    ),
    "runs delete": Verb(
        "windtunnel.questions.asked.saved:RunsDelete",
        "windtunnel.faces.report.run_list:answer_delete",
        "Delete run folders.",
        pure=False,
    ),
    "validate": Verb(
        "windtunnel.questions.asked.validate:Validate",
        "windtunnel.evidence.accuracy.study:answer",
        "Predict every run of a table of measured runs, and show how far off that is, source by source.",
        example="runs.csv",
    ),
}


def object_at(reference: str) -> Any:
    """What `module:name` names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def question_class(verb: str) -> type[Question]:
    """The question of a verb. Raises SpecError for a verb that has none."""
    if verb not in QUESTIONS:
        remedy = f"use one of {', '.join(QUESTIONS)}"
        raise SpecError(
            "question", verb or None, remedy if verb else f"say what is asked, as `question: predict`; {remedy}"
        )
    kind: type[Question] = object_at(QUESTIONS[verb].question)
    return kind
