"""Short excerpts in the words of nine frameworks: the settings are theirs, the files are ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.questions import read
from windtunnel.questions.asked.rl import Rl
from windtunnel.questions.reading import read_part
from windtunnel.studies.rl.configs.question import catalogued, read_config
from windtunnel.studies.rl.configs.settings import read_settings
from windtunnel.studies.rl.habits import load_habits
from windtunnel.studies.rl.job import with_config

VERL = """
n_resp=8
max_response_length=$((1024 * 4))
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=${BSZ:-96} \\
    data.max_response_length=${max_response_length} \\
    actor_rollout_ref.model.path=/models/Qwen2-7B-Instruct \\
    actor_rollout_ref.rollout.n=$n_resp \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((max_response_length + 1024) * 2)) \\
    +actor_rollout_ref.rollout.surprise=7 \\
    trainer.project_name=ours $@
"""
NEMO_BASE = """
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  async_grpo: {enabled: false, max_trajectory_age_steps: 1}
policy:
  model_name: Qwen/Qwen3-32B
  train_global_batch_size: 512
  train_micro_batch_size: 2
  max_total_sequence_length: 4096
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2}
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  generation: {backend: vllm, colocated: {enabled: true}, vllm_cfg: {tensor_parallel_size: 4}}
loss_fn: {reference_policy_kl_penalty: 0.01}
cluster: {num_nodes: 4, gpus_per_node: 8}
"""
NEMO = """
defaults: base.yaml
grpo: {async_grpo: {enabled: true}}
policy: {generation: {colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 8}}}}
"""
SLIME = """
ARGS=(
   --hf-checkpoint /root/Qwen3-30B-A3B
   --rollout-batch-size 32   # prompts
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192
   --global-batch-size 256
   --use-dynamic-batch-size
   --max-tokens-per-gpu 20480
   --expert-model-parallel-size 8
   --rollout-num-gpus-per-engine 4
   --use-kl-loss
   --colocate
   --our-own-flag 3
)
"""
OPENRLHF = """
python3 -m openrlhf.cli.train_ppo_ray \\
   --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture --rollout.batch_size 128 --train.batch_size 256 \\
   --rollout.n_samples_per_prompt 8 --rollout.max_new_tokens 1024 --vllm.num_engines 4 --vllm.tensor_parallel_size 2 \\
   --actor.num_nodes 1 --actor.num_gpus_per_node 8 --algo.kl.init_coef 1e-3
"""
AREAL = """
rollout: {backend: "sglang:d4p1t2", max_head_offpolicyness: 2, max_concurrent_rollouts: 48}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor: {backend: "fsdp:d8", path: meta-llama/Llama-3.1-8B, ppo_n_minibatches: 4, kl_ctl: 0.0}
train_dataset: {batch_size: 64}
"""
SKYRL = """
: "${MAX_STALENESS_STEPS:=4}"
uv run -m main trainer.policy.model.path="Qwen/Qwen2.5-32B-Instruct" trainer.train_batch_size=32 \\
  trainer.policy_mini_batch_size=16 generator.n_samples_per_prompt=5 \\
  generator.sampling_params.max_generate_length=1024 \\
  trainer.placement.colocate_all=false trainer.placement.policy_num_gpus_per_node=8 \\
  generator.inference_engine.num_engines=2 generator.inference_engine.tensor_parallel_size=4 \\
  trainer.fully_async.max_staleness_steps=${MAX_STALENESS_STEPS} trainer.fully_async.num_parallel_generation_workers=96
"""
PRIME = """
seq_len = 32768
[model]
name = "Qwen/Qwen3-30B-A3B-Thinking-2507"
[deployment]
num_train_nodes = 2
num_infer_nodes = 1
[trainer.model]
ep = 8
[orchestrator]
batch_size = 512
group_size = 16
max_off_policy_steps = 8
[orchestrator.train.sampling]
max_completion_tokens = 16384
[inference.vllm]
tensor_parallel_size = 8
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-7B
num_generations: 8
max_completion_length: 512
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
beta: 0.0
"""

TRL_COMMAND = """
trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name HuggingFaceH4/Polaris-Dataset-53K \\
  --reward_funcs accuracy_reward --generation_batch_size 128 --save_steps 0.1
"""


ROLL_ENVS = """
max_actions_per_traj: 10
"""
ROLL = """
defaults:
  - ../config/traj_envs@_here_
  - ../config/nothing@_here_
rollout_batch_size: 64
response_length: 4096
num_return_sequences_in_group: 8
use_kl_loss: false
adv_estimator: reinforce
init_kl_coef: 0.0
async_generation_ratio: 1
pretrain: /data/models/Qwen2.5-7B
our_own: 3
actor_train:
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 16}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1}
  device_mapping: list(range(0,8))+[12, 13]
actor_infer:
  strategy_args: {strategy_name: sglang}
  device_mapping: list(range(14,18))
  num_gpus_per_worker: 2
"""


def _data(tmp_path: Path, name: str, text: str) -> dict[str, object]:
    (tmp_path / name).write_text(text)
    return dict(read_config(str(tmp_path / name)).data)


def test_verl_multiplies_its_mini_batch_by_the_samples_and_names_what_it_does_not_know(tmp_path: Path) -> None:
    data = _data(tmp_path, "run.sh", VERL)
    assert data["framework"] == "verl"
    assert (data["model"], data["prompts"], data["samples"], data["lengths"]) == ("qwen2-7b", 96, 8, "cap=4096")
    assert data["learner"] == {"train_batch": 256, "row_tokens": 10240}
    assert data["rollout"] == {"engine": "vllm", "gen_tp": 2}
    assert read_config(str(tmp_path / "run.sh")).unknown == ("actor_rollout_ref.rollout.surprise",)


def test_a_fully_asynchronous_run_of_verl_has_the_prompts_between_two_weight_updates(tmp_path: Path) -> None:
    settings = "async_training.require_batches=4 async_training.trigger_parameter_sync_step=2 rollout.n_gpus_per_node=4"
    script = VERL.replace("${BSZ:-96}", "0").replace(
        "trainer.project_name=ours", f"{settings} trainer.n_gpus_per_node=4"
    )
    data = _data(tmp_path, "run.sh", script)
    assert (data["prompts"], data["learner"]["train_batch"]) == (32 * 4 * 2, 32 * 8)  # type: ignore[index]


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    assert _data(tmp_path, "run.sh", VERL.replace("\nn_resp=8", "\nn_resp=\nn_resp=${n_resp:-8}"))["samples"] == 8


def test_verl_without_an_estimator_trains_a_critic_which_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(VERL.replace("algorithm.adv_estimator=grpo", "algorithm.gamma=1"))
    assert read_config(str(tmp_path / "run.sh")).unknown[0] == "algorithm.adv_estimator (its critic is not priced)"


def test_values_over_several_lines_a_path_of_unknown_folders_and_a_variable_before_the_command(tmp_path: Path) -> None:
    start, rest = VERL.split("python3 -m verl.trainer.main_ppo", 1)
    config, end = rest.split("    actor_rollout_ref.rollout.n=", 1)
    config = config.replace("/models/Qwen2", "${MODEL_DIR:-$HOME/models}/Qwen2").rstrip(" \\\n")
    command = 'RAY_LOG="quiet" python3 -m verl.trainer.main_ppo $CONFIG actor_rollout_ref.rollout.n='
    script = f'{start}CONFIG="{config}"\n{command}{end}'
    data = _data(tmp_path, "run.sh", script)
    assert (data["model"], data["prompts"], data["samples"], data["lengths"]) == ("qwen2-7b", 96, 8, "cap=4096")


def test_a_script_that_starts_another_one_changes_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    _data(tmp_path, "run.sh", VERL)
    data = _data(tmp_path, "a/b/mine.sh", 'cd "$ROOT"\nbash "$DIR/run.sh" data.train_batch_size=16 "$@"\n')
    assert (data["prompts"], data["samples"]) == (16, 8)
    (tmp_path / "nemo.yaml").write_text(NEMO_BASE)
    data = _data(tmp_path, "a/nemo.sh", "uv run grpo.py --config nemo.yaml grpo.num_prompts_per_step=8\n")
    assert (data["framework"], data["prompts"], data["samples"]) == ("nemo-rl", 8, 16)


def test_a_script_inside_of_a_command_and_of_a_job_file_is_read(tmp_path: Path) -> None:
    ppo = "-- python3 -m openrlhf.cli.train_ppo_ray --rollout.n_samples_per_prompt 4 --vllm.num_engines 4"
    data = _data(tmp_path, "run.sh", f"srun bash -c 'ray job submit {ppo}'\n")
    assert (data["framework"], data["samples"]) == ("openrlhf", 4)
    indented = VERL.replace("\n", "\n  ")
    assert _data(tmp_path, "job.yaml", f"num_nodes: 2\nrun: |\n  set -e\n{indented}\n")["prompts"] == 96


def test_nemo_inherits_and_works_out_references(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(NEMO_BASE)
    assert read_settings(tmp_path / "base.yaml")["policy.sequence_packing.train_mb_tokens"] == 8192
    data = _data(tmp_path, "async.yaml", NEMO)
    assert (data["generate"], data["train"], data["async_steps"]) == (8, 24, 1)
    learner = data["learner"]
    assert isinstance(learner, dict)
    assert (learner["tp"], learner["pp"], learner["row_tokens"], learner["reference"]) == (4, 2, 8192, "yes")
    assert data["rollout"] == {"engine": "vllm", "gen_tp": 4, "speculative_tokens": 0}
    assert "generate" not in _data(tmp_path, "base.yaml", NEMO_BASE)
    drafting = "    vllm_kwargs: {max_num_seqs: 32, speculative_config: {method: mtp, num_speculative_tokens: 2}}\n"
    data = _data(tmp_path, "mtp.yaml", "defaults: base.yaml\npolicy:\n  generation:\n" + drafting)
    assert data["rollout"] == {"engine": "vllm", "gen_tp": 4, "max_num_seqs": 32, "speculative_tokens": 2}


def test_a_file_for_other_gpus_is_noted(tmp_path: Path) -> None:
    from windtunnel.studies.rl.study import answer

    path = tmp_path / "run.sh"
    path.write_text(
        VERL.replace("trainer.project_name", "trainer.nnodes=16 trainer.n_gpus_per_node=8 trainer.project_name")
    )
    assert read_config(str(path)).gpus == 128
    found = answer(read_part(Rl, {"config": str(path), "cluster": "h100-sxm:16", "rollout": {"gen_tp": 2}}))
    assert any("is for 128 GPUs; answered for the cluster's 16" in one for one in found.assumptions)


def test_flags_of_slime(tmp_path: Path) -> None:
    data = _data(tmp_path, "run.sh", SLIME)
    assert (data["model"], data["prompts"], data["samples"]) == ("qwen3-30b-a3b", 32, 8)
    assert data["learner"] == {"train_batch": 256, "row_tokens": 20480, "ep": 8, "reference": "yes"}
    assert read_config(str(tmp_path / "run.sh")).unknown == ("our_own_flag",)


def test_flags_of_openrlhf(tmp_path: Path) -> None:
    data = _data(tmp_path, "run.sh", OPENRLHF)
    assert (data["model"], data["prompts"], data["generate"], data["train"]) == ("llama-3-8b", 128, 8, 8)
    assert data["learner"] == {"train_batch": 256, "reference": "yes"}


def test_a_file_in_the_place_of_the_model_is_the_config(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(OPENRLHF)
    found = [
        with_config(read({"question": "rl", "cluster": "h100-sxm:16", **said}))[0]
        for said in ({"config": str(path)}, {"model": str(path)})
    ]
    assert found[0] == found[1]


def test_backends_of_areal(tmp_path: Path) -> None:
    data = _data(tmp_path, "grpo.yaml", AREAL)
    assert (data["generate"], data["train"], data["async_steps"]) == (8, 8, 2)
    rollout, learner = data["rollout"], data["learner"]
    assert isinstance(rollout, dict)
    assert isinstance(learner, dict)
    assert rollout["in_flight"] == 48
    assert (rollout["gen_tp"], rollout["engine"], learner["trainer"], learner["train_batch"]) == (
        2,
        "sglang",
        "fsdp",
        64,
    )


def test_settings_of_skyrl(tmp_path: Path) -> None:
    data = _data(tmp_path, "run.sh", SKYRL)
    assert (data["model"], data["generate"], data["train"], data["async_steps"]) == ("qwen2.5-32b", 8, 8, 4)
    assert data["learner"] == {"train_batch": 80}
    assert data["rollout"] == {"gen_tp": 4, "in_flight": 96}


def test_batches_of_prime_rl_count_samples(tmp_path: Path) -> None:
    data = _data(tmp_path, "rl.toml", PRIME)
    assert (data["prompts"], data["samples"], data["generate"], data["train"]) == (32, 16, 8, 16)
    assert (data["lengths"], data["async_steps"]) == ("cap=16384", 8)


def test_pools_of_roll_are_lists_of_gpus_and_its_batch_is_of_a_rank(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "traj_envs.yaml").write_text(ROLL_ENVS)
    (tmp_path / "config" / "nothing.yaml").write_text("# nothing yet\n\n  # nor here")
    (tmp_path / "run").mkdir()
    data = _data(tmp_path / "run", "rlvr.yaml", ROLL)
    assert (data["model"], data["prompts"], data["samples"], data["lengths"]) == ("qwen2.5-7b", 64, 8, "cap=4096")
    assert (data["generate"], data["train"], data["async_steps"]) == (4, 10, 1)
    assert data["rollout"] == {"engine": "sglang", "gen_tp": 2, "turns": 10}
    # 2 x 16 samples of each of 10 / 2 ranks; no reference, and old log-probs as the habits have them.
    assert data["learner"] == {"trainer": "megatron", "tp": 2, "pp": 1, "reference": "no", "train_batch": 160}
    assert read_config(str(tmp_path / "run" / "rlvr.yaml")).unknown == ("our_own",)
    assert load_habits("roll").old_logprob == "unless-on-policy"


def test_pools_of_roll_that_overlap_are_one_and_a_penalty_by_default_needs_both_passes(tmp_path: Path) -> None:
    text = ROLL.replace("list(range(14,18))", "list(range(0,4))").replace("init_kl_coef: 0.0", "reward_clip: 10")
    text = text.replace("num_return_sequences_in_group", "train_env_manager: {group_size: 16}\nour_group")
    (tmp_path / "roll.yaml").write_text(text)
    imported = read_config(str(tmp_path / "roll.yaml"))
    assert not {"generate", "train", "async_steps"} & set(imported.data)
    assert imported.gpus == 10
    assert (imported.data["prompts"], imported.data["samples"]) == (4, 16)  # an agentic batch counts samples
    assert (imported.data["learner"]["reference"], imported.data["learner"]["old_logprob"]) == ("yes", "yes")


@pytest.mark.parametrize("text", ["list(range(__import__('os')))", "list(range(18,14,-1))", "[0, x]", "all"])
def test_gpus_of_roll_that_are_no_list_are_not_understood(tmp_path: Path, text: str) -> None:
    (tmp_path / "roll.yaml").write_text(ROLL.replace("list(range(14,18))", f'"{text}"'))
    imported = read_config(str(tmp_path / "roll.yaml"))
    assert "generate" not in imported.data
    assert "actor_infer.device_mapping" in imported.unknown


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("list(range(14,22,2))", 4),
        ("list( range(14, 17, 1) )", 3),
        ("list(range(14,16))+list(range(20,30,5))", 4),
        ("[14, 15,]", 2),
    ],
)
def test_gpus_of_roll_by_a_step(tmp_path: Path, text: str, gpus: int) -> None:
    data = _data(tmp_path, "roll.yaml", ROLL.replace("list(range(14,18))", text))
    assert (data["generate"], data["train"]) == (gpus, 10)


@pytest.mark.parametrize(
    "text",
    [
        *("[ ]", "[1,,2]", "[1 2]", "list(range(8,4))", "list(range())", "list(range(0,8,0))", "list(range(0,1,2,3))"),
        *("list(range(0,9999999))", "list(range(0,99999999))"),
    ],
)
def test_a_list_of_roll_without_gpus_is_one_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "roll.yaml").write_text(ROLL.replace("list(range(0,8))+[12, 13]", f'"{text}"'))
    with pytest.raises(UserError) as caught:
        read_config(str(tmp_path / "roll.yaml"))
    message = str(caught.value)
    assert f"actor_train.device_mapping = {text!r}: " in message
    assert "roll.yaml" in message
    assert message.endswith("give them as list(range(0,8)) or [0, 1]")


def test_a_batch_of_trl_follows_from_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text(TRL)
    question = read_part(Rl, {"config": str(tmp_path / "grpo.yaml"), "cluster": "h100-sxm:8"})
    found, imported = with_config(question)
    assert imported is not None
    assert (found.prompts, found.samples, found.framework) == (8, 8, "trl")
    assert found.learner.train_batch == 64
    # Of `trl grpo`, whose defaults say the rest: two optimizer steps over 128 samples that were generated together.
    (tmp_path / "run.sh").write_text(TRL_COMMAND)
    found, imported = with_config(replace(question, config=str(tmp_path / "run.sh")))
    assert imported is not None
    assert (imported.unknown, imported.path) == ((), str(tmp_path / "run.sh"))
    assert (found.prompts, found.samples, found.learner.train_batch) == (16, 8, 64)
    assert found.beside.checkpoint_every == 0  # a share of the run, of whose length nothing is known


def test_a_script_of_trl_is_read(tmp_path: Path) -> None:
    script = tmp_path / "grpo.py"
    script.write_text(
        "args = GRPOConfig(per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=16,\n"
        "    max_completion_length=4096, use_vllm=True)\n"
        'GRPOTrainer(model="Qwen/Qwen3-4B", reward_funcs=reward, args=args).train()\n'
    )
    found = read_config(str(script))
    assert (found.framework, found.data["model"], found.data["samples"]) == ("trl", "qwen3-4b", 16)
    assert found.data["lengths"] == "cap=4096"
    question = read({"question": "rl", "model": str(script), "cluster": "h100-sxm:8"})
    assert isinstance(question, Rl)
    assert question.own_file == str(script)


def test_openrlhf_s_models_that_share_gpus_take_one_set_of_them_and_an_estimator_without_critic_is_known(
    tmp_path: Path,
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-14B --rollout_batch_size 128 \\\n"
        "  --n_samples_per_prompt 8 --generate_max_len 8000 --vllm_num_engines 4 --vllm_tensor_parallel_size 2 \\\n"
        "  --actor_num_nodes 1 --actor_num_gpus_per_node 8 --advantage_estimator reinforce_baseline \\\n"
        "  --colocate_all_models\n"
    )
    assert (read_config(str(script)).gpus, read_config(str(script)).unknown) == (8, ())
    script.write_text(script.read_text().replace("reinforce_baseline", "gae"))
    assert read_config(str(script)).unknown == ("advantage_estimator (its critic is not priced)",)


def test_what_is_said_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(VERL)
    asked = {"config": str(tmp_path / "run.sh"), "cluster": "h100-sxm:8", "prompts": 64, "rollout": {"gen_tp": 4}}
    found, _ = with_config(read_part(Rl, asked))
    assert (found.prompts, found.samples, found.rollout.gen_tp, found.rollout.engine) == (64, 8, 4, "vllm")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("some: thing\n")
    with pytest.raises(InputFileError, match="no framework"):
        read_config(str(tmp_path / "a.yaml"))
    (tmp_path / "b.sh").write_text("echo hello\n")
    with pytest.raises(InputFileError, match="no setting"):
        read_config(str(tmp_path / "b.sh"))
    (tmp_path / "c.sh").write_text(SLIME.replace("Qwen3-30B-A3B", "our-model"))
    with pytest.raises(SpecError, match="not in the catalogue"):
        with_config(read_part(Rl, {"config": str(tmp_path / "c.sh"), "cluster": "h100-sxm:8"}))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("/root/Qwen3-8B/", "qwen3-8b"),
        ("none/such", ""),
        ("PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT", "qwen3-0.6b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super"),
        ("some/Qwen3-8B-VL-2B", ""),
        ("some/DeepSeek-V3-5layer", ""),
    ],
)
def test_models_by_their_paths(path: str, name: str) -> None:
    assert catalogued(path) == name


@pytest.mark.parametrize(
    "words",
    [
        "actor_rollout_ref.rollout.enforce_eager=True",
        "grpo.num_prompts_per_step=8 policy.generation.vllm_cfg.enforce_eager=true",
        "trainer.policy.model.path=a generator.inference_engine.enforce_eager=true",
        "--rollout.n_samples_per_prompt 2 --vllm.enforce_eager",
    ],
)
def test_generators_without_captured_graphs_are_read(words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"python3 run.py {words}\n")
    assert read_config(str(path)).data["rollout"]["eager"] is True
