"""The question from settling to reading: lengths, packing, habits, memory, what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windtunnel.errors import LayoutError, SpecError, UnknownNameError, UserError
from windtunnel.faces.cli.app import main
from windtunnel.questions.asked.rl import Rl, RlPlan
from windtunnel.questions.reading import read, read_part
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.rl.habits import framework_names, load_habits
from windtunnel.studies.rl.job import Job, batch_time_s, drafted
from windtunnel.studies.rl.learner import best_trainer, fitting, layouts, least_s, packed
from windtunnel.studies.rl.lengths import answers_of
from windtunnel.studies.rl.plan import search
from windtunnel.studies.rl.reading import assumptions_of
from windtunnel.studies.rl.result import RlResult
from windtunnel.studies.rl.study import answer

SMALL: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "cluster": "h100-sxm:8",
    "framework": "nemo-rl-0.7",
    "prompts": 16,
    "samples": 4,
    "lengths": "mean=200,cap=600",
    "learner": {"tp": 1, "pp": 1},
    "rollout": {"gen_tp": 1},
}


def asked(**changes: Any) -> RlResult:
    """The small job with changes."""
    return answer(read_part(Rl, SMALL | changes))


def test_phases_add_up_to_the_step_and_the_band_holds_it() -> None:
    found = asked()
    phases = found.phases
    parts = phases.exposed_generation_s + phases.logprob_s + phases.ref_logprob_s + phases.training_s
    assert parts + phases.weight_sync_s + phases.other_s == pytest.approx(found.step_time_s)
    assert found.p5_s < found.step_time_s < found.p95_s
    assert phases.exposed_generation_s == pytest.approx(phases.generation_s)  # in turn, nothing is hidden
    tokens = found.tokens
    assert tokens["begun"] == tokens["trained"] + tokens["dropped"] + tokens["open"]


def test_the_size_of_a_generator_is_the_one_that_ends_a_batch_first() -> None:
    sizes = [1, 2, 4, 8]
    alone = [drafted(read_part(Rl, SMALL | {"rollout": {"gen_tp": size}})) for size in sizes]
    seconds = [batch_time_s(job, job.engine, job.replicas) for job in alone]
    chosen = drafted(read_part(Rl, SMALL | {"rollout": {}}))
    assert chosen.engine.deployment.tp == sizes[seconds.index(min(seconds))]
    slowest = alone[seconds.index(max(seconds))]
    assert batch_time_s(slowest, slowest.engine, slowest.replicas, min(seconds)) == float("inf")
    assert batch_time_s(slowest, slowest.engine, slowest.replicas, max(seconds)) == max(seconds)


def test_pools_apart_overlap() -> None:
    found = asked(generate=4, train=4, async_steps=1)
    assert found.staleness["most"] == found.staleness["bound"] == 1
    assert found.phases.exposed_generation_s < found.phases.generation_s
    assert found.step_time_s <= asked(generate=4, train=4).step_time_s


def test_passes_follow_the_question_and_the_framework() -> None:
    plain = asked()
    assert plain.phases.logprob_s == 0.0  # one optimizer step: on policy in this release
    assert asked(framework="nemo-rl-0.5").phases.logprob_s > 0.0
    off_policy = SMALL["learner"] | {"train_batch": 16}
    assert asked(learner=off_policy).phases.logprob_s > 0.0
    assert asked(learner=SMALL["learner"] | {"reference": "no"}).phases.ref_logprob_s == 0.0


def test_a_measured_rate_of_weight_updates_is_taken() -> None:
    slow, fast = (asked(beside={"refit_rate": rate}).phases.weight_sync_s for rate in ("1GB/s", "10GB/s"))
    assert slow - 1.0 == pytest.approx(10 * (fast - 1.0))


def test_weights_in_8_bits_are_sent_as_they_are_trained_but_where_the_sender_casts() -> None:
    def update_s(framework: str, weights: str) -> float:
        rollout = {"gen_tp": 1, "weights": weights}
        return drafted(read_part(Rl, SMALL | {"framework": framework, "rollout": rollout})).times.refit_s

    assert update_s("nemo-rl-0.7", "fp8") == update_s("nemo-rl-0.7", "bf16")
    assert update_s("slime", "fp8") < update_s("slime", "bf16")


def test_a_recipe_drafts_where_nobody_says_otherwise() -> None:
    large = SMALL | {"model": "deepseek-v3", "cluster": "h100-sxm:64"}

    def words(framework: str, **rollout: object) -> tuple[int, float]:
        job = drafted(read_part(Rl, large | {"framework": framework, "rollout": {"gen_tp": 32, **rollout}}))
        return job.engine.deployment.speculative_tokens, job.engine.deployment.acceptance

    assert words("nemo-rl-0.7") == (1, 0.85)
    assert words("nemo-rl-0.7", speculative_tokens=0) == words("nemo-rl-0.6") == (0, 0.0)
    assert words("nemo-rl-0.6", speculative_tokens=3) == (3, 0.6)
    assert words("nemo-rl-0.6", speculative_tokens=3, acceptance=0.7) == (3, 0.7)


def test_an_engine_of_no_release_is_the_one_that_the_framework_pins() -> None:
    def engine(name: str | None) -> str:
        return drafted(read_part(Rl, SMALL | {"rollout": {"gen_tp": 1, "engine": name}})).engine.deployment.engine

    assert engine("vllm") == engine(None) == "vllm-0.20"
    assert engine("vllm-0.12") == "vllm-0.12"
    assert engine("sglang") == "sglang"


def test_what_is_drafted_is_said() -> None:
    drafting: dict[str, Any] = {"gen_tp": 1, "speculative_tokens": 2}
    assert any("0.6" in one for one in asked(rollout=drafting).assumptions)
    assert not any("drafted" in one for one in asked(rollout=drafting | {"acceptance": 0.7}).assumptions)
    assert asked(rollout=drafting).phases.generation_s < asked().phases.generation_s


def test_pools_apart_hold_the_prompts_that_the_framework_lets_under_way() -> None:
    def most(framework: str, ahead: float) -> int | None:
        apart = {"framework": framework, "generate": 4, "train": 4, "async_steps": ahead}
        return drafted(read_part(Rl, SMALL | apart)).rules.in_flight

    assert (most("nemo-rl", 1), most("nemo-rl", 3)) == (16, 48)
    job = drafted(read_part(Rl, SMALL | {"rollout": {"gen_tp": 1, "in_flight": 5}}))
    assert job.rules.in_flight == 5
    assert (most("areal", 3), most("verl", 3), most("skyrl", 3), most("nemo-rl", 0)) == (16, 64, None, None)


def test_judges_rewards_tools_and_filters_take_their_time() -> None:
    plain = asked().phases.generation_s
    assert asked(beside={"reward": 5.0}).phases.generation_s == pytest.approx(plain + 5.0, rel=0.01)
    queue = asked(beside={"reward": 0.5, "reward_workers": 2}).phases.generation_s
    assert queue >= 64 * 0.5 / 2
    tools = SMALL["rollout"] | {"turns": 4, "tool_wait": 2.0}
    assert asked(rollout=tools).phases.generation_s > plain + 4.0
    judged = asked(beside={"judge": "llama-3.1-8b", "judge_gpus": 1})
    assert judged.phases.generation_s > plain
    assert judged.spec["gpus"] == 9
    filtered = asked(beside={"useful": 0.5})
    assert filtered.tokens["dropped"] > 0
    assert filtered.phases.generation_s > plain


def test_hybrid_trainers_help_to_generate() -> None:
    apart: dict[str, Any] = {"generate": 1, "train": 4, "async_steps": 1, "partial": True, "prompts": 128, "samples": 8}
    apart |= {"lengths": "mean=550,cap=600", "beside": {"refit_rate": "100GB/s"}}
    assert asked(**apart, hybrid=True).step_time_s < asked(**apart).step_time_s


def test_memory_that_does_not_do_is_an_answer_with_its_reason() -> None:
    found = asked(model="llama-3.1-8b", cluster="h100-sxm:1", lengths="mean=200,cap=600")
    assert not found.feasible
    assert "training needs" in found.reason
    assert found.memory["training"].needed_bytes > found.memory["training"].capacity_bytes
    with pytest.raises(LayoutError, match="leaves no room for a cache"):
        asked(model="llama-3.1-70b")


def test_mistakes_are_named() -> None:
    with pytest.raises(SpecError, match="generate"):
        asked(generate=4)
    with pytest.raises(SpecError, match="async_steps"):
        asked(async_steps=1)
    with pytest.raises(SpecError, match="lengths"):
        asked(lengths="mean=900,cap=600")
    with pytest.raises(UnknownNameError):
        asked(framework="unheard-of")
    with pytest.raises(SpecError, match="config"):
        read({"question": "rl", "cluster": "h100-sxm:8"})


@pytest.mark.parametrize("name", framework_names())
def test_every_framework_has_habits_with_a_rate(name: str) -> None:
    habits = load_habits(name)
    assert 1e9 <= habits.refit_apart_bytes_per_s <= 1e12
    assert habits.engine.split("-")[0] in ("vllm", "sglang")


def test_capped_lengths_have_the_mean_that_was_asked_for(tmp_path: Path) -> None:
    lengths = answers_of("mean=3000,cap=4096,sd=0.8").batch(2000, 8, 1)
    assert lengths.mean() == pytest.approx(3000, rel=0.02)
    assert lengths.max() == 4096
    (tmp_path / "a.jsonl").write_text('{"response_length": 10}\n{"response_length": 30}\n')
    seen = answers_of(str(tmp_path / "a.jsonl"))
    assert (seen.mean, seen.cap) == (20.0, 30)
    assert set(seen.batch(10, 10, 0).tolist()) == {10, 30}
    (tmp_path / "a.csv").write_text("id,response_length\n1,5\n2,7\n")
    assert answers_of(str(tmp_path / "a.csv")).mean == 6.0


def test_rows_hold_all_tokens_and_no_rank_has_more_micro_batches() -> None:
    tokens = answers_of("mean=900,cap=2000").batch(64, 4, 3)
    for dp in (1, 4, 16):
        rows = packed(tokens, 2000, dp, 8)
        assert rows.row_tokens * rows.micro_batches * dp >= tokens.sum()
        assert rows.fill <= 1.0
        assert rows.row_tokens % 8 == 0
    alone = packed(np.array([100]), 2000, 8, 2)
    assert (alone.micro_batches, alone.document_tokens) == (1, 128)


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_is_what_trying_everything_finds(seed: int) -> None:
    changes = {"cluster": "h100-sxm:4", "prompts": 8, "async_steps": [0, 1, 2][seed], "seed": seed}
    question = read_part(RlPlan, SMALL | changes)
    proved, everything = search(question, prove=True), search(question, prove=False)
    assert proved.best.step_time_s == everything.best.step_time_s
    assert all(one.step_s is None or one.bound_s <= one.step_s for one in everything.tried)
    assert len(proved.tried) + proved.refused == len(everything.tried) + everything.refused
    assert "simulated" in proved.proof


def test_the_plan_says_what_was_searched_and_holds_the_other_kind_beside_the_best() -> None:
    from windtunnel.faces.report.rl.views import plan_document
    from windtunnel.views import Table

    question = read_part(RlPlan, SMALL | {"cluster": "h100-sxm:4", "prompts": 8})
    found = search(question, prove=True)
    kinds = {one.generate is None for one in found.tried if one.step_s is not None}
    assert kinds == {True, False}
    first, *others = found.tried
    rivals = [one for one in others if (one.generate is None) != (first.generate is None)]
    near = min(one.step_s or one.bound_s for one in rivals) <= found.best.p95_s
    assert ("not told apart" in found.verdicts[0]) is near
    assert ("wins" in found.verdicts[0]) is not near
    assert any("--async-steps 1" in one for one in found.verdicts)
    table = next(one for one in plan_document(found).views if isinstance(one, Table))
    assert {column.name.partition(", ")[2] for column in table.columns[1:]} <= {"s", "ms"}
    assert all(isinstance(cell, float) or cell is None for row in table.rows for cell in row[1:])


def test_a_colocated_step_says_what_share_each_phase_has() -> None:
    from windtunnel.faces.report.rl.views import rl_document
    from windtunnel.views import Figures, Headline

    found = asked()
    document = rl_document(found)
    headline = next(one for one in document.views if isinstance(one, Headline))
    assert "of which it generates" in headline.verdict
    assert "wait for samples" not in headline.verdict
    shares = [float(share) for share in re.findall(r"([\d.]+) ?%", headline.verdict)]
    assert len(shares) > 1
    assert sum(shares) == pytest.approx(100.0, abs=0.5 * len(shares))  # each rounded
    shown = next(one for one in document.views if isinstance(one, Figures)).figures
    assert not any("idles" in one.name for one in shown)
    apart = next(one for one in rl_document(asked(generate=4, train=4)).views if isinstance(one, Figures))
    assert any("idles" in one.name for one in apart.figures)


def test_a_number_alone_is_no_file_of_lengths() -> None:
    with pytest.raises(SpecError, match=r"write mean=6000,cap="):
        answers_of("6000")


def test_the_layout_of_a_trainer_is_what_pricing_everything_finds() -> None:
    """Bounds leave no layout out that is faster, and none of them is above what they bound."""
    large = {"model": "qwen3-30b-a3b", "cluster": "h100-sxm:16", "learner": {"ep": 8}, "rollout": {"gen_tp": 4}}
    draft = drafted(read_part(Rl, SMALL | large))
    tokens, given = draft.sample_tokens(), {"tp": None, "pp": None, "cp": None, "ep": 8, "recompute": None}
    found = best_trainer(draft.trainer, tokens, draft.train_batch, given)
    every: list[float] = []
    known: dict[tuple[int, int], Bounds] = {}
    for layout in layouts(draft.model, draft.trainer.cluster, given, "megatron"):
        able = replace(draft.trainer, fields={**draft.trainer.fields, **layout}, _known={})
        try:
            fitted = fitting(able, tokens, draft.train_batch, given)
            seconds = fitted.passes(tokens, draft.train_batch).total_s
        except UserError:
            continue
        bound_s, word = least_s(able, tokens, draft.train_batch, given, known)
        assert bound_s <= seconds
        assert word in ("none", fitted.fields["recompute"])
        assert able.peak_s(tokens) < seconds
        every.append(seconds)
    assert len(every) > 3
    assert found.passes(tokens, draft.train_batch).total_s == min(every)


def test_generators_with_gpus_of_their_own_take_more_of_the_memory() -> None:
    """As every asynchronous recipe of NeMo RL has it."""
    together, apart = drafted(read_part(Rl, SMALL)), drafted(read_part(Rl, SMALL | {"generate": 4, "train": 4}))
    assert (together.engine.deployment.gpu_memory_utilization, apart.engine.deployment.gpu_memory_utilization) == (
        together.habits.gpu_memory_utilization, together.habits.gpu_memory_utilization_apart,
    )  # fmt: skip
    assert (together.habits.gpu_memory_utilization_apart or 0.0) > together.habits.gpu_memory_utilization
    given = SMALL | {"generate": 4, "train": 4, "rollout": {"gen_tp": 1, "gpu_memory_utilization": 0.3}}
    assert drafted(read_part(Rl, given)).engine.deployment.gpu_memory_utilization == 0.3


def test_groups_of_ranks_lie_over_several_racks_where_nothing_aligns_them() -> None:
    racks = {"model": "qwen3-235b-a22b", "rollout": {"gen_tp": 8}, "learner": {"tp": 2, "pp": 4, "cp": 2, "ep": 16}}

    def found(release: str, gpus: int) -> Job:
        return drafted(read_part(Rl, SMALL | racks | {"cluster": f"gb200:{gpus}", "framework": f"nemo-rl-{release}"}))

    before, after = found("0.6", 128), found("0.7", 128)
    for side in (before.engine.cluster, before.trainer.cluster):
        assert side.gpus_in_domain == side.gpus_per_node == 4
    assert after.engine.cluster.gpus_in_domain == after.trainer.cluster.gpus_in_domain == 72
    assert found("0.6", 64).engine.cluster.gpus_in_domain == 64  # in one rack
    assert batch_time_s(before, before.engine, 16) > batch_time_s(before, after.engine, 16)  # of one release
    cluster = {"base": "gb200:128", "scale_up_domain": 64}
    own = drafted(read_part(Rl, SMALL | racks | {"cluster": cluster, "framework": "nemo-rl-0.6"}))
    assert own.engine.cluster.gpus_in_domain == 64  # as its nodes are aligned
    assert not any("over nodes of any" in text for text in assumptions_of(own))
    assert any("over nodes of any" in text for text in assumptions_of(before))


def test_the_commands_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["llama-3.2-1b", "--cluster", "h100-sxm:8", "--framework", "nemo-rl", "--prompts", "8", "--samples", "2"]
    words += ["--lengths", "mean=100,cap=200", "--gen-tp", "1", "--tp", "1", "--price", "2"]
    assert main(["rl", *words, "--report", str(tmp_path / "a.html")]) == 0
    assert "A step takes" in capsys.readouterr().out
    assert (tmp_path / "a.html").stat().st_size > 1000
    assert main(["rl", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for key in ("step_time_s", "p5_s", "p95_s", "phases", "idle_share", "staleness", "tokens_per_s_per_gpu", "memory"):
        assert key in document
    assert document["study"] == "rl"
    assert main(["rl", "plan", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["step_time_s"] > 0
    assert main(["rl", "llama-3.2-1b", "--cluster", "h100-sxm:8"]) == 2
    for flags, rest in ([], " --prompts N"), (["--prompts", "4", "--lengths", "cap=1000"], ""):
        capsys.readouterr()
        assert main(["rl", "--cluster", "h100-sxm:8", *flags]) == 2
        assert re.search(rf"is not given: add MODEL without a flag .*{rest}", capsys.readouterr().err)


def test_without_captured_graphs_an_answer_takes_at_least_its_launches() -> None:
    """1B on an H100: kernels of a step take a millisecond, launching 16 layers 5.6 (vLLM 0.2 on Hopper)."""
    one = SMALL | {"prompts": 8, "samples": 1, "lengths": "mean=400,cap=400"}
    spent = {}
    for eager in (False, True):
        job = drafted(read_part(Rl, one | {"rollout": {"gen_tp": 1, "eager": eager}}))
        spent[eager] = batch_time_s(job, job.engine, job.replicas) / job.habits.generation_factor
    steps, launched_s = 399, 16 * 3.5e-4
    assert spent[False] < steps * launched_s <= spent[True] < 1.1 * steps * launched_s
