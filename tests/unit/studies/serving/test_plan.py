"""The fewest GPUs for a rate: the search against brute force, its bounds, and what is written and read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.report.serving.placement import plans_document
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.questions.former import current
from windtunnel.studies.serving import Deployment, load_engine
from windtunnel.studies.serving.launch.lines import is_started, parts_of
from windtunnel.studies.serving.launch.manifests import FORMS, Side, files_of
from windtunnel.studies.serving.placement.fewest import Plan, PlanRun, Shape, fewest, plans_of
from windtunnel.studies.serving.placement.plan import PlanQuestion, _engine, deployments_of, plan_for, ran
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.views import Headline, Notes


def _space(seed: int) -> tuple[list[Shape], dict[Plan, bool]]:
    """Shapes with bounds that are true but loose, and which plans on eight GPUs hold: more is not always better."""
    draw = np.random.default_rng(seed)
    free = [Shape(f"s{i}", int(draw.integers(1, 4)), 1, 1, 1) for i in range(int(draw.integers(1, 4)))]
    every = [plan for gpus in range(1, 9) for plan in plans_of(free, gpus, True)]
    holds = {plan: bool(draw.random() < 0.15) for plan in every}
    shapes = []
    for one in free:
        alone = [plan.n for plan in every if plan.shape == one and plan.prefill is None and holds[plan]]
        least = int(draw.integers(1, min(alone) + 1)) if alone else None
        shapes.append(Shape(one.name, one.gpus, least, 1, 1))
    names = {one.name: one for one in shapes}
    renamed = {
        Plan(names[p.shape.name], p.n, names[p.prefill.name] if p.prefill else None, p.n_prefill): held
        for p, held in holds.items()
    }
    return shapes, renamed


@pytest.mark.parametrize("seed", range(100))
def test_the_search_is_brute_force_on_small_spaces(seed: int) -> None:
    shapes, holds = _space(seed)
    ran: list[Plan] = []

    def run(plan: Plan) -> PlanRun[None]:
        ran.append(plan)
        return PlanRun(plan, holds[plan], (float(plan.n),), None)

    found = fewest(shapes, 8, run, apart=True, runs=10_000)
    best = min((plan.gpus for plan, held in holds.items() if held), default=None)
    assert len(ran) == len(set(ran))
    if best is None:
        assert found is None
        return
    assert found is not None
    assert (found.plans[0].plan.gpus, found.gap, found.ruled_out_below) == (best, 0.0, best)
    known = {one.plan for one in found.plans if one.plan.gpus == best}
    assert known == {plan for plan, held in holds.items() if held and plan.gpus == best}


def test_without_enough_runs_the_gap_is_no_less_than_the_truth() -> None:
    for seed in range(60):
        shapes, holds = _space(seed)
        found = fewest(shapes, 8, lambda plan, holds=holds: PlanRun(plan, holds[plan], (), None), apart=True, runs=6)
        if found is None:
            continue
        best, truth = found.plans[0].plan.gpus, min(plan.gpus for plan, held in holds.items() if held)
        assert found.ruled_out_below <= truth <= best
        assert found.gap >= (best - truth) / best


def _sought(rate: float, gpus: int = 4, requests: int = 60) -> PlanQuestion:
    prompts, answers = lengths(requests, 1500, 120, 0.8, 0)
    load = Workload(prompts, answers, arrivals(requests, rate, 1.0, 0))
    limits = {"ttft_s": 0.3, "tpot_s": 0.012}
    model, cluster = load_model("llama-3.1-8b"), parse_cluster(f"h100-sxm:{gpus}")
    return PlanQuestion(model, cluster, Deployment(kv="bf16"), load, limits, 0.95, 2.0, 400)


@pytest.mark.parametrize("rate", [4.0, 25.0])
def test_simulated_plans_are_those_of_brute_force(rate: float) -> None:
    asked = _sought(rate)
    answer = plan_for(asked)
    engines = {f"{i}": _engine(asked, one) for i, one in enumerate(deployments_of(asked))}
    able = {name: engine for name, engine in engines.items() if engine is not None}
    shapes = [Shape(name, engine.gpus, 1, 1, 1) for name, engine in able.items()]
    most = answer.search.plans[0].plan.gpus
    held = [
        plan
        for gpus in range(1, most + 1)
        for plan in plans_of(shapes, gpus, True)
        if (gpus < most or plan.prefill is None) and ran(asked, able, plan).holds
    ]
    assert answer.search.gap == 0.0
    assert {plan.gpus for plan in held} <= {most}
    told = answer.to_dict()["plans"][0]
    assert told["gpus"] == most
    assert told["attainment"] >= 0.95
    assert told["cost_per_million_tokens"] == pytest.approx(2.0 * most / 3600 / told["output_tokens_per_s"] * 1e6)


def test_limits_that_nothing_holds_are_said_so() -> None:
    with pytest.raises(UserError, match=r"no layout can hold the limits on \d+ GPUs: use more"):
        plan_for(PlanQuestion(**{**vars(_sought(1.0)), "limits": {"tpot_s": 1e-6}}))
    with pytest.raises(UserError, match="limits"):
        plan_for(PlanQuestion(**{**vars(_sought(1.0)), "limits": {}}))


def test_what_is_said_of_plans_is_whole_sentences() -> None:
    answer = plan_for(_sought(4.0))
    document = plans_document(answer)
    best = answer.to_dict()["plans"][0]
    verdict = next(view.verdict for view in document.views if isinstance(view, Headline))
    holds = "1 GPU as {} holds" if best["gpus"] == 1 else f"{best['gpus']} GPUs as {{}} hold"
    assert verdict == f"{holds.format(best['layout'])} the limits, and no fewer do."
    notes = [line for view in document.views if isinstance(view, Notes) for line in view.lines]
    assert any("tp tensor" in line and "@ tokens of a step" in line for line in notes)
    assert not any("fewer than 1 GPUs" in line for line in notes)
    with pytest.raises(UserError, match=r"none of the plans that were run, from \d+ to 4 GPUs, holds the limits: use"):
        plan_for(PlanQuestion(**{**vars(_sought(60.0)), "limits": {"ttft_s": 0.08, "tpot_s": 0.008}, "runs": 30}))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("apart", [False, True])
def test_what_is_written_reads_back(form: str, apart: bool, tmp_path: Path) -> None:
    own = Deployment(engine="vllm-0.22", tp=4, attn_dp=2, moe_ep=8, kv="fp8", max_model_len=9000, max_num_seqs=64)
    sides = [Side("", own, 3)]
    if apart:
        first = Deployment(engine="vllm-0.22", tp=2, kv="fp8", max_model_len=9000, max_num_seqs=64)
        sides = [Side("prefill", first, 2), Side("decode", own, 1)]
    for name, text in files_of(form, "deepseek-v3", sides).items():  # type: ignore[arg-type]
        (tmp_path / name).write_text(text)
    assert is_started(str(tmp_path))
    parts = parts_of(str(tmp_path))
    assert parts.model == "deepseek-ai/DeepSeek-V3"
    told = {"kv": "fp8", "max_model_len": 9000, "max_num_seqs": 64}
    assert told.items() <= parts.engine.items()
    started = load_engine(parts.engine["engine"])  # Dynamo's image does not say vLLM's release
    assert (started.engine, started.release.removesuffix(".0")) == ("vllm", "0.22")
    if apart:
        assert parts.replicas == {"kind": "apart", "prefill": "2xtp2", "decode": "1xtp4dp2ep8"}
    else:
        assert parts.replicas == {"kind": "together", "tp": 4, "pp": 1, "dp": 2, "ep": 8, "replicas": 3}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_without_an_id_of_the_hub_asks_for_it(form: str, tmp_path: Path) -> None:
    sides = [Side("", Deployment(engine="vllm-0.22", tp=2), 1)]
    for name, text in files_of(form, "llama-3.3-70b", sides).items():  # type: ignore[arg-type]
        assert "# llama-3.3-70b is no id" in text
        assert text.startswith("#!/bin/sh\n" if form == "vllm" else "# ")
        (tmp_path / name).write_text(text)
    assert parts_of(str(tmp_path)).model == "llama-3.3-70b"


def test_a_line_of_an_engine_is_read() -> None:
    line = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32768 --no-enable-prefix-caching -O3"
    parts = parts_of(line)
    assert (parts.model, parts.replicas["tp"]) == ("Qwen/Qwen3-32B", 4)
    assert parts.engine == {"engine": "vllm", "max_model_len": 32768, "prefix_caching": False}
    parts = parts_of("python -m sglang.launch_server --model-path m --tp 8 --ep 8 --kv-cache-dtype fp8_e4m3")
    assert (parts.engine["engine"], parts.engine["kv"], parts.replicas["ep"]) == ("sglang", "fp8", 8)
    assert not is_started("llama-3.1-8b")
    for bad in (
        "vllm serve m --tensor-parallel-size four",
        "vllm serve --max-num-seqs 3",
        "vllm serve m --gpu-memory-utilization most",
        "vllm serve m --cpu-offload-gb 8",
        "vllm serve 'm",
        "vllm serve $MODEL",
    ):
        with pytest.raises(SpecError):
            parts_of(bad)


def test_what_is_not_modelled_of_a_line_is_named_once() -> None:
    quiet = "vllm serve --trust-remote-code m -tp 4 --port 8000 --served-model-name x --dtype auto --swap-space=16"
    parts = parts_of(quiet)
    assert (parts.model, parts.replicas["tp"]) == ("m", 4)
    assert parts.notes == ("not modelled and ignored: --swap-space 16",)
    assert not parts_of("vllm serve m -O3 --disable-log-requests --cpu-offload-gb 0").notes
    graphs = "take longer without"
    for flag in ("--enforce-eager", "-O0", "-O 0", "--cudagraph-mode NONE", "--disable-cuda-graph"):
        (said,) = parts_of(f"vllm serve {flag} m").notes
        assert flag.split()[0][:2] in said
        assert graphs in said
    (said,) = parts_of('vllm serve m --enable-foo 3 --bar --compilation-config \'{"cudagraph_mode": "NONE"}\'').notes
    assert said.startswith("not modelled and ignored: --enable-foo 3, --bar, --compilation-config")
    assert graphs in parts_of('vllm serve m --compilation-config \'{"cudagraph_mode": "NONE"}\'').notes[0]


def test_modules_variables_and_arrays_are_read(tmp_path: Path) -> None:
    parts = parts_of("python -m vllm.entrypoints.openai.api_server --cuda-graph-sizes 1 2 --model Qwen/Qwen3-32B -tp 4")
    assert (parts.model, parts.engine["engine"], parts.replicas["tp"]) == ("Qwen/Qwen3-32B", "vllm", 4)
    script = tmp_path / "start.sh"
    script.write_text(
        "#!/bin/bash\nexport MODEL='Qwen/Qwen3-32B'  # which\nTP=4; LEN=$((1024 * 8))\n"
        "ARGS=(\n  --tensor-parallel-size $TP\n"
        '  --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\'\n)\n'
        'for PORT in 1 2; do\n  VLLM_USE_V1=1 /opt/bin/vllm serve "$MODEL" \\\n    --max-num-seqs ${SEQS:-64} '
        '"${ARGS[@]}" > log.$PORT 2>&1 &\ndone\n'
    )
    parts = parts_of(str(script))
    assert (parts.model, parts.replicas["tp"], parts.engine["max_num_seqs"]) == ("Qwen/Qwen3-32B", 4, 64)
    assert parts.engine["drafting"] == {"kind": "drafted", "speculative_tokens": 3}
    assert not parts.notes
    script.write_text("vllm serve $MODEL --tensor-parallel-size 2\n")
    with pytest.raises(SpecError, match=r"\$MODEL has no value"):
        parts_of(str(script))
    shell = ["sh", "-c", "M=a/b && exec vllm serve $M --tensor-parallel-size 2"]
    graph = {"kind": "Deployment", "metadata": {"name": "decode"}}
    pod = {"containers": [{"name": "modelserver", "command": shell}]}
    (tmp_path / "pod.yaml").write_text(json.dumps({**graph, "spec": {"template": {"spec": pod}}}))
    assert parts_of(str(tmp_path / "pod.yaml")).model == "a/b"


def test_ranks_of_attention_in_sglang_are_among_those_of_tp() -> None:
    parts = parts_of("python -m sglang.launch_server --model-path m --tp 8 --dp 8 --enable-dp-attention")
    assert (parts.replicas["tp"], parts.replicas["dp"]) == (1, 8)


def test_older_manifests_of_dynamo_are_read(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n"
        "    Frontend: {componentType: frontend, replicas: 1}\n"
        "    Prefill:\n      componentType: worker\n      subComponentType: prefill\n      replicas: 2\n"
        "      extraPodSpec: {mainContainer: {image: 'nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.0',"
        " command: [python3, -m, dynamo.vllm], args: ['--model m --tensor-parallel-size 2']}}\n"
        "    Decode:\n      componentType: worker\n      subComponentType: decode\n      replicas: 1\n"
        "      extraPodSpec: {mainContainer: {image: x, command: [python3, -m, dynamo.vllm], args: [--model, m]}}\n"
    )
    parts = parts_of(str(file))
    assert parts.engine["engine"] == "vllm-0.12"
    assert parts.replicas == {"kind": "apart", "prefill": "2xtp2", "decode": "1xtp1"}


def test_a_manifest_of_dynamo_starts_what_has_dynamo_in_it_and_is_read_back(tmp_path: Path) -> None:
    deployment = Deployment(tp=2)
    sides = [Side("prefill", deployment, 2), Side("decode", deployment, 1)]
    text = files_of("dynamo", "llama-3.1-8b", sides)["dynamo.yaml"]
    assert "vllm-openai" not in text  # the engine's own image cannot run `python3 -m dynamo.vllm`
    assert text.count("nvcr.io/nvidia/ai-dynamo/vllm-runtime:") == 3  # the front end as well
    for role in ("prefill", "decode"):
        assert f"--disaggregation-mode={role}" in text
    (tmp_path / "dynamo.yaml").write_text(text)
    line = ["serve", str(tmp_path / "dynamo.yaml"), "--cluster", "h100-sxm:8"]
    assert current(line) == line  # no pool
    (tmp_path / "serve.sh").write_text(files_of("vllm", "llama-3.1-8b", [Side("", deployment, 1)])["serve.sh"])
    with pytest.raises(SpecError, match=r"several deployments \(serve.sh, dynamo.yaml\)"):
        parts_of(str(tmp_path))  # written one after another: the workers of both were added up
    assert parts_of(line[1]).replicas == {"kind": "apart", "prefill": "2xtp2", "decode": "1xtp2"}
    assert "vllm/vllm-openai:v0.22.0" in files_of("llm-d", "llama-3.1-8b", sides)["modelserver.yaml"]
