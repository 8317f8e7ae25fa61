"""Laws of a predicted step: the same question gives the same bytes, in every process and on the command line."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_jobs import Job, jobs
from worse_hardware import WORSE

from windtunnel.faces.cli.app import main
from windtunnel.physics.hardware import cluster_with
from windtunnel.physics.model import load_model
from windtunnel.physics.step.result import Result
from windtunnel.studies.training import predict
from windtunnel.studies.training.lowering import passes

law = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


def answer(job: Job) -> Result:
    return predict(job.model, job.cluster, job.plan)


ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "h100-sxm:16", {"tp": 2, "pp": 2, "global_batch": 32, "seq_len": 2048}),
    ("mixtral-8x7b", "gb200:32", {"pp": 2, "ep": 8, "global_batch": 64, "seq_len": 1024, "precision": "mxfp8"}),
    ("deepseek-v2-lite", "a100-80gb-sxm:16", {"framework": "torchtitan", "global_batch": 32, "seq_len": 2048}),
    ("gpt2-xl", "mi300x:8", {"framework": "fsdp", "global_batch": 64, "seq_len": 1024, "recompute": "full"}),
]


def test_same_input_same_bytes_in_every_process():
    code = (
        "import hashlib, json, sys; from windtunnel.studies.training import predict\n"
        "for model, cluster, plan in json.load(sys.stdin):\n"
        "    print(hashlib.sha256(predict(model, cluster, plan).to_json().encode()).hexdigest())"
    )
    here = [hashlib.sha256(predict(*asked).to_json().encode()).hexdigest() for asked in ASKED]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], input=json.dumps(ASKED), capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.split() == here


@law
@given(jobs())
def test_asking_twice_gives_the_same_bytes(job):
    assert answer(job).to_json() == answer(job).to_json()


@law
@given(jobs(), st.sampled_from([1, 2, 4]))
def test_an_answer_does_not_depend_on_what_was_asked_before(job, replicas):
    """Passes are remembered between questions: with those of fewer replicas at hand, and with none."""
    n, batch = job.cluster.n_gpus, job.plan["global_batch"]
    cluster = cluster_with(job.cluster, n_gpus=n * replicas)
    job = replace(job, cluster=cluster).with_plan(global_batch=batch * replicas)
    after_others = answer(job).to_json()
    passes.forget_passes()
    assert answer(job).to_json() == after_others


def command_line(words: str) -> dict[str, Any]:
    """What the command prints as JSON."""
    name, *arguments = shlex.split(words)
    assert name == "windtunnel"
    out = StringIO()
    with redirect_stdout(out):
        assert main([*arguments, "--json", "--no-save", "--no-advice"]) in (0, 3)  # 3: does not fit
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@settings(law, max_examples=30)
@given(jobs(), st.sampled_from([0.0, 0.5, 1e-7]), st.sampled_from([None, "it's new -x", "-x", "mlperf-v4.1"]))
def test_reproduce_gives_the_same_result_on_the_command_line(job, offloaded, release):
    plan = {key: value for key, value in job.plan.items() if value is not None}
    plan |= {"offload_optimizer": offloaded} | ({"release": release} if release else {})
    model = "mixtral-8x7b" if job.shape["experts"] else "llama-3-8b"
    n, gpu = job.cluster.n_gpus, job.cluster.gpu.name
    result = predict(model, f"{gpu}:{n}", plan)
    again = command_line(result.reproduce)
    assert again["content_hash"] == result.content_hash
    assert again["reproduce"] == result.reproduce


@settings(law, max_examples=20)
@given(jobs(), st.sampled_from(sorted(WORSE)), st.integers(1, 3))
def test_reproduce_spells_out_a_changed_model_and_cluster(job, what, layers):
    model = load_model("llama-3-8b").with_changes(layers=8 * layers, tied_embeddings=layers == 2)
    plan = {key: value for key, value in job.plan.items() if key != "ep"}
    result = predict(model, WORSE[what](job.cluster, 1.5), plan)
    again = command_line(result.reproduce)
    assert again["step_time_ns"] == result.step_time_ns
    assert again["memory"] == json.loads(result.to_json())["memory"]
