"""Launch lines of Megatron-Bridge's performance scripts: the recipe that they name, and what they override."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import SpecError
from windtunnel.studies.training.launch import Native, read_native
from windtunnel.studies.training.launch.patch import patch

LINE = "python scripts/performance/setup_experiment.py -a me -p batch -m llama -mr llama3_70b -g h100 -c fp8_cs"
RECIPE = """
from megatron.bridge import AutoBridge
from megatron.bridge.perf_recipes._common import ConfigContainer, _perf_precision, set_cuda_graph_modules

def llama3_70b_pretrain_64gpu_h100_fp8cs_config():
    cfg = ConfigContainer(train=TrainingConfig(), ddp=DDP(use_distributed_optimizer=True))
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").to_megatron_provider()
    cfg.mixed_precision = _perf_precision("fp8_cs")
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.pipeline_model_parallel_layout = "Et*2|(t*2|)*38,t*2L"
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    set_cuda_graph_modules(cfg.model, ["attn"])
    return cfg

def llama3_70b_pretrain_32gpu_h100_fp8cs_config():
    cfg = llama3_70b_pretrain_64gpu_h100_fp8cs_config()
    cfg.model.pipeline_model_parallel_size = 4
    return cfg
"""
COMMON = """
def _perf_precision(dtype):
    if dtype == "fp8_cs":
        return bf16_with_fp8_current_scaling_mixed(grad_reduce_in_fp32=False, first_last_layers_bf16=False)
    return bf16_mixed()
"""


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe's imports are looked for up to the working directory."""
    monkeypatch.chdir(tmp_path)


def job_of(folder: Path, line: str, n_gpus: int = 64, *, checkout: bool = True) -> Native:
    """The job of a line in a folder, with or without a checkout."""
    if checkout:
        package = folder / "src/megatron/bridge/perf_recipes"
        (package / "llama/h100").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "_common.py").write_text(COMMON)
        (package / "llama/h100/llama3.py").write_text(RECIPE)
    (folder / "run.sh").write_text(f"#!/bin/bash\n{line}\n")
    return read_native(folder / "run.sh", n_gpus)


def test_a_line_is_the_recipe_that_it_names(tmp_path: Path) -> None:
    job = job_of(tmp_path, f"{LINE} -ng 64")
    assert job.model == "llama-3-70b"
    assert job.unknown == ()
    expected = {"tp": 4, "pp": 8, "virtual_stages": 5, "global_batch": 128, "seq_len": 8192, "zero_stage": 1}
    assert expected.items() <= job.fields.items()
    assert job.fields["layers_per_stage"] == (2,) * 40
    assert job.fields["precision"] == "fp8-current"
    assert job.fields["gradient_dtype"] == "bf16"


@pytest.mark.parametrize(("n_gpus", "pp", "batch"), [(32, 4, 128), (256, 8, 512), (48, 8, 96)])
def test_the_recipe_of_so_many_gpus_or_that_of_the_most_with_its_batch_by_replicas(
    tmp_path: Path, n_gpus: int, pp: int, batch: int
) -> None:
    """128 sequences on 64 GPUs are 512 on 256; a recipe of 32 GPUs keeps the 128 that it states."""
    fields = job_of(tmp_path, LINE, n_gpus).fields
    assert (fields["pp"], fields["global_batch"]) == (pp, batch)


def test_what_the_line_says_wins(tmp_path: Path) -> None:
    line = (
        f"{LINE} -tp 2 --pipeline_model_parallel_size 4 -vp None -gb 256 --recompute_num_layers 3 --nccl_ub true "
        "-i nvcr.io/nvidia/nemo:26.04 model.context_parallel_size=2 --some_new_switch 7"
    )
    job = job_of(tmp_path, line)
    expected = {"tp": 2, "pp": 4, "cp": 2, "global_batch": 256, "recompute": "full:3", "release": "bridge-26.04"}
    assert expected.items() <= job.fields.items()
    assert not {"layers_per_stage", "virtual_stages"} & job.fields.keys()  # those of the recipe were for 8 stages
    layout = "pipeline_model_parallel_layout of the recipe, which is for other stages (taken as even)"
    assert job.unknown == (layout, "--some-new-switch 7")


@pytest.mark.parametrize(
    ("words", "n_gpus", "batch"),
    [
        ("-tp 8", 64, 128),  # a recipe of so many GPUs: its batch stays
        ("-tp 8", 256, 256),  # 4 x the GPUs, twice as many of them for a replica
        ("-gb 128", 256, 128),
        ("train.global_batch_size=96", 256, 96),
        ("train.global_batch_size=96 -gb 64", 256, 64),  # options win
    ],
)
def test_a_batch_follows_the_replicas_that_the_line_leaves(tmp_path: Path, words: str, n_gpus: int, batch: int) -> None:
    assert job_of(tmp_path, f"{LINE} {words}", n_gpus).fields["global_batch"] == batch


def test_of_some_models_the_recipe_of_the_fewest_gpus_stands_for_others(tmp_path: Path) -> None:
    package = tmp_path / "src/megatron/bridge/perf_recipes/small"
    package.mkdir(parents=True)
    (package / "llama3.py").write_text(RECIPE.replace("llama3_70b", "llama3_8b"))
    assert job_of(tmp_path, LINE.replace("llama3_70b", "llama3_8b"), 256).fields["pp"] == 4


def test_virtual_stages_of_the_line_leave_the_layout_of_the_recipe(tmp_path: Path) -> None:
    fields = job_of(tmp_path, f"{LINE} -vp 2").fields
    assert fields["virtual_stages"] == 2
    assert "layers_per_stage" not in fields


@pytest.mark.parametrize(("words", "dispatcher"), [("", "hybridep"), ("None", "alltoall"), ("deepep", "deepep")])
def test_a_dispatcher_of_the_line_is_nccls_where_it_says_none(tmp_path: Path, words: str, dispatcher: str) -> None:
    package = tmp_path / "src/megatron/bridge/perf_recipes/qwen"
    package.mkdir(parents=True)
    text = RECIPE.replace("llama3_70b", "qwen3_30b_a3b").replace("meta-llama/Meta-Llama-3-70B", "Qwen/Qwen3-30B-A3B")
    fine = '    cfg.model.moe_token_dispatcher_type, cfg.model.moe_flex_dispatcher_backend = "flex", "hybridep"\n'
    (package / "qwen3.py").write_text(text.replace("    set_cuda", f"{fine}    set_cuda"))
    line = LINE.replace("llama3_70b", "qwen3_30b_a3b") + (f" --moe_flex_dispatcher_backend {words}" if words else "")
    assert job_of(tmp_path, line).fields["dispatcher"] == dispatcher


@pytest.mark.parametrize(("word", "stage"), [("0", 1), ("no", 1), ("false", 1), ("1", 3), ("yes", 3), ("", 3)])
def test_switches_take_the_words_that_these_scripts_take(tmp_path: Path, word: str, stage: int) -> None:
    assert job_of(tmp_path, f"{LINE} --use_megatron_fsdp {word}").fields["zero_stage"] == stage


def test_words_of_hydra_set_lists_and_formats_and_what_they_cannot_set_is_named(tmp_path: Path) -> None:
    recompute = "model.recompute_granularity=selective model.recompute_modules=[mlp,layernorm]"
    job = job_of(tmp_path, f"{LINE} {recompute} dataset.seq_length=4096 peft.dim=8 logger.log_interval=1")
    assert job.fields["recompute"] == "selective:mlp,norms"
    assert job.unknown == ("peft.dim=8",)


def test_a_format_that_a_recipe_names_is_changed_by_a_word(tmp_path: Path) -> None:
    package = tmp_path / "src/megatron/bridge/recipes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    text = RECIPE.replace('_perf_precision("fp8_cs")', '"bf16_mixed"').replace("llama3_70b_pretrain_64gpu", "own")
    (package / "own.py").write_text(text)
    line = "scripts/training/train.sh --recipe own_h100_fp8cs_config mixed_precision.grad_reduce_in_fp32=false"
    assert job_of(tmp_path, line).fields["gradient_dtype"] == "bf16"


def test_modules_are_one_word_whatever_follows_in_the_script(tmp_path: Path) -> None:
    job = job_of(tmp_path, f"cat > w.sh << EOM\n{LINE} --recompute_modules mlp,layernorm\nEOM\nchmod 777 w.sh")
    assert (job.fields["recompute"], job.unknown) == ("selective:mlp,norms", ())


def test_adapters_are_of_a_recipe_and_of_no_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"llama3_70b_peft_64gpu.*checkout"):
        job_of(tmp_path, f"{LINE} --task lora -tp 2 -pp 1 -gb 32", checkout=False)


def test_without_a_checkout_the_line_counts_and_has_to_state_its_layout(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"checkout of Megatron-Bridge .* --tensor_model_parallel_size"):
        job_of(tmp_path, LINE, checkout=False)
    job = job_of(tmp_path, f"{LINE} -tp 2 -pp 1 -mb 2 && python -c 'import sys'", checkout=False)
    assert job.model == "llama-3-70b"
    expected = {"tp": 2, "micro_batch": 2, "precision": "fp8-current", "zero_stage": 1, "sequence_parallel": True}
    assert expected.items() <= job.fields.items()
    assert "global_batch" not in job.fields  # asked for: nobody has stated it
    assert any("no checkout" in word for word in job.unknown)


@pytest.mark.parametrize("spelling", ["--model_name llama3 --model_size 70b", "--model_recipe_name=llama3_70b"])
def test_older_and_longer_spellings_name_the_same(tmp_path: Path, spelling: str) -> None:
    line = LINE.replace("-mr llama3_70b", spelling).replace("-c fp8_cs", "--compute_dtype fp8 --fp8_recipe cs")
    assert job_of(tmp_path, line).fields["pp"] == 8


@pytest.mark.parametrize(
    ("words", "pp"),
    [
        ("--recipe llama3_70b_pretrain_32gpu_h100_fp8cs_config", 4),
        ("--recipe llama3_70b_pretrain_config --mode pretrain", 8),
        ("--model llama3_70b --mode pretrain --nodes 8", 8),
    ],
)
def test_a_recipe_by_its_own_or_its_exported_name(tmp_path: Path, words: str, pp: int) -> None:
    package = tmp_path / "src/megatron/bridge/recipes/llama"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    exported = "    llama3_70b_pretrain_64gpu_h100_fp8cs_config as llama3_70b_pretrain_config,\n"
    (package / "llama3.py").write_text(f"from megatron.bridge.perf_recipes.llama.h100.llama3 import (\n{exported})\n")
    assert job_of(tmp_path, f"./scripts/training/train.sh {words}").fields["pp"] == pp


def test_a_recipe_that_no_checkout_has(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"recipe = 'gpt9_config'.*checkout"):
        job_of(tmp_path, "scripts/training/train.sh --recipe gpt9_config -tp 2 -pp 2")


@pytest.mark.parametrize(
    ("change", "added"),
    [
        ({"cp": 2, "dp": 1}, "--context_parallel_size 2"),
        ({"virtual_stages": 10}, "--virtual_pipeline_model_parallel_size 10"),
        ({"recompute": "full:3"}, "--recompute_num_layers 3"),
        ({"recompute": "selective:norms"}, ""),  # modules go by commas there
        ({"overlap_ep": True}, ""),
    ],
)
def test_a_patch_is_in_the_options_of_these_scripts(tmp_path: Path, change: dict[str, object], added: str) -> None:
    line = "python run_script.py -mr llama3_70b -g h100 --tensor_model_parallel_size 4 -pp 8 -gb 128 -sl 8192"
    fields = dict(job_of(tmp_path, line, checkout=False).fields)
    sides = ((fields, 2), ({**fields, **change}, int(str(change.get("dp", 2)))))
    patched = patch(str(tmp_path / "run.sh"), *sides, 64, "llama-3-70b")
    assert added in patched
    assert bool(patched) == bool(added)
    assert "--context-parallel" not in patched


def test_names_that_stand_for_each_other_are_no_recipe(tmp_path: Path) -> None:
    package = tmp_path / "src/megatron/bridge/recipes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .a import a_config as b_config\nfrom .b import b_config as a_config\n")
    with pytest.raises(SpecError, match="recipe = 'a_config'"):
        job_of(tmp_path, "scripts/training/train.sh --recipe a_config")


def test_a_script_of_another_project_is_not_taken_for_one(tmp_path: Path) -> None:
    line = "torchrun run_script.py -s 7 --tensor-model-parallel-size 2 --global-batch-size 8"
    assert job_of(tmp_path, line, checkout=False).fields["tp"] == 2


def test_a_number_format_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--compute_dtype = 'fp6'.*fp8_mx"):
        job_of(tmp_path, LINE.replace("fp8_cs", "fp6"))
