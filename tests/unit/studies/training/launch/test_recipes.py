"""Recipes of NeMo 2 and Megatron-Bridge and configurations of xtuner v1: what they set is read, nothing is run."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, SpecError
from windtunnel.studies.training.launch import Native, is_native, read_native
from windtunnel.studies.training.question import plan_file, states_model

BRIDGE = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.mixed_precision import bf16_with_fp8_current_scaling_mixed

def llama3_70b_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").get_model_config()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 2 * 2
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 256
    cfg.ddp.use_distributed_optimizer = True
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    return cfg

def llama3_70b_fp8_config():
    cfg = llama3_70b_pretrain_config()
    cfg.mixed_precision = bf16_with_fp8_current_scaling_mixed()
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "block"
    cfg.model.recompute_num_layers = 3
    cfg.model.some_new_switch = True
    return cfg

def _helper_config():
    return None
"""
COMMON = """
from megatron.bridge.training.config import ConfigContainer, TrainingConfig, DistributedDataParallelConfig

def _pretrain_common():
    opt_cfg, scheduler_cfg = distributed_fused_adam_with_cosine_annealing(max_lr=3e-4)
    return ConfigContainer(
        model=None,
        train=TrainingConfig(global_batch_size=32, micro_batch_size=1),
        optimizer=opt_cfg,
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False),
        mixed_precision="bf16_mixed",
    )
"""
NEMO = """
import nemo_run as run
from nemo import lightning as nl
from nemo.collections.llm.gpt.model.llama import Llama31Config70B, LlamaModel
from nemo.collections.llm.peft import PEFT_STR2CLS

def model():
    return run.Config(LlamaModel, config=run.Config(Llama31Config70B))

def trainer(tensor_parallelism: int = 4, num_nodes: int = 4):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tensor_parallelism, context_parallel_size=2,
        sequence_parallel=True, ddp=run.Config(DistributedDataParallelConfig, overlap_grad_reduce=True))
    return run.Config(nl.Trainer, strategy=strategy, plugins=bf16_mixed(), num_nodes=num_nodes)

def pretrain_recipe(performance_mode: bool = False):
    recipe = run.Partial(
        pretrain, model=model(), trainer=trainer(num_nodes=2),
        data=run.Config(MockDataModule, seq_length=4096, global_batch_size=64, micro_batch_size=2),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
    if performance_mode:
        recipe.trainer.strategy.tensor_model_parallel_size = 1
    return recipe

def finetune_recipe(peft_scheme="lora"):
    recipe = pretrain_recipe()
    if peft_scheme is None or peft_scheme.lower() == "none":
        recipe.trainer.strategy.tensor_model_parallel_size = 8
    elif peft_scheme.lower() in ["lora", "dora"]:
        recipe.peft = run.Config(PEFT_STR2CLS[peft_scheme.lower()])
        recipe.peft.dim = 16
        recipe.peft.target_modules = ["linear_qkv"]
    return recipe
"""
XTUNER = """
import os
from xtuner.v1.config import AdamWConfig, FSDPConfig
from xtuner.v1.datasets.config import DataloaderConfig
from xtuner.v1.model.moe.qwen3 import Qwen3MoE30BA3Config
from xtuner.v1.train import TrainerConfig

moe_cfg = Qwen3MoE30BA3Config(ep_size=8)
trainer = TrainerConfig(
    model_cfg=moe_cfg, load_from=os.environ["PLACE"], optim_cfg=AdamWConfig(lr=6e-05),
    fsdp_cfg=FSDPConfig(ep_size=moe_cfg.ep_size, recompute_ratio=0.5, torch_compile=False),
    dataloader_cfg=DataloaderConfig(pack_max_length=16384),
    global_batch_size=16, sp_size=int(os.environ.get("SP_SIZE", "2")),
)
"""


@pytest.fixture
def bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe where it lies in a checkout."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "src" / "megatron" / "bridge" / "recipes"
    (folder / "llama").mkdir(parents=True)
    (folder / "common.py").write_text(COMMON)
    path = folder / "llama" / "llama3.py"
    path.write_text(BRIDGE)
    return path


def test_a_recipe_is_read_with_what_it_rests_on(bridge: Path) -> None:
    native = read_native(f"{bridge}:llama3_70b_pretrain_config", 64)
    assert native.model == "llama-3-70b"
    wanted = {"tp": 4, "pp": 4, "virtual_stages": 5, "cp": 2, "global_batch": 256, "micro_batch": 1, "seq_len": 8192}
    wanted |= {"zero_stage": 1, "overlap_grad_reduce": True, "overlap_tp": True, "sequence_parallel": True}
    wanted |= {"precision": "bf16", "gradient_dtype": "fp32", "recompute": "none", "framework": "megatron"}
    assert {name: native.fields[name] for name in wanted} == wanted
    assert native.unknown == ()


def test_a_recipe_that_changes_another_one(bridge: Path) -> None:
    native = read_native(f"{bridge}:llama3_70b_fp8_config", 64)
    wanted = {"precision": "fp8-current", "gradient_dtype": "bf16", "recompute": "full:3", "tp": 4}
    assert {name: native.fields[name] for name in wanted} == wanted
    assert native.unknown == ("num_layers_at_start_in_bf16 1", "num_layers_at_end_in_bf16 1", "--some-new-switch")


def test_which_recipe_is_asked_where_a_file_has_several(bridge: Path) -> None:
    for word in (str(bridge), f"{bridge}:other"):
        with pytest.raises(SpecError, match=r"NAME, of llama3_70b_pretrain_config, llama3_70b_fp8_config$"):
            read_native(word, 64)


def test_a_recipe_away_from_what_it_rests_on_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(BRIDGE)
    with pytest.raises(InputFileError, match=r"rests on megatron\.bridge\.recipes\.common\._pretrain_common"):
        read_native(f"{path}:llama3_70b_pretrain_config", 64)


def test_functions_arguments_and_branches_of_nemo(tmp_path: Path) -> None:
    path = tmp_path / "llama31_70b.py"
    path.write_text(NEMO)
    first = read_native(f"{path}:pretrain_recipe", 64)
    assert first.model == "llama-3.1-70b"
    wanted = {"tp": 4, "cp": 2, "global_batch": 64, "micro_batch": 2, "zero_stage": 1, "seq_len": 4096}
    assert {name: first.fields[name] for name in wanted} == wanted
    tuned = read_native(f"{path}:finetune_recipe", 64)
    assert (tuned.fields["lora_rank"], tuned.fields["lora_targets"], tuned.fields["tp"]) == (16, "q,k,v", 4)
    assert first.unknown == tuned.unknown == ()


def test_a_configuration_of_xtuner(tmp_path: Path) -> None:
    path = tmp_path / "sft.py"
    path.write_text(XTUNER)
    native = read_native(path, 32)
    assert native.model == "qwen3-30b-a3b"
    wanted = {"ep": 8, "cp": 2, "cp_kind": "ulysses", "global_batch": 16, "seq_len": 16384, "zero_stage": 3}
    wanted |= {"recompute": "full:24", "compile": False, "framework": "fsdp"}
    assert {name: native.fields[name] for name in wanted} == wanted
    assert native.unknown == ("SP_SIZE of the environment (taken as its default, 2)",)


def test_a_recipe_names_a_model_wherever_a_model_is_named(bridge: Path) -> None:
    assert states_model(f"{bridge}:llama3_70b_fp8_config")
    assert is_native(f"{bridge}:llama3_70b_fp8_config")
    assert not states_model(f"{bridge.parent / 'absent.py'}:llama3_70b_fp8_config")


HOSTILE = """
from xtuner.v1.train import TrainerConfig
open(MARK, "w").write("run")
__import__("os").system("touch " + MARK)
exec("x = 1"); eval("1")
big = 10 ** 10 ** 10
text = "a" * 10
wide = [0] * 1000000000
shifted = 1 << 100000
def again(n): return again(n) + again(n)
x = again(1)
while True:
    y = 1
"""


@pytest.mark.parametrize("end", ["", "trainer = TrainerConfig(global_batch_size=8, model_cfg=again(3))"])
def test_nothing_is_run_and_nothing_takes_long(tmp_path: Path, end: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(f"MARK = {str(tmp_path / 'mark')!r}\n{HOSTILE}{end}\n")
    with pytest.raises((InputFileError, SpecError)):
        read_native(path, 8)
    assert not (tmp_path / "mark").exists()


def test_what_depends_on_more_than_the_text_is_not_guessed(bridge: Path) -> None:
    text = BRIDGE.replace(
        "cfg.model.context_parallel_size = 2", "for n in sizes():\n        cfg.model.context_parallel_size = n"
    )
    bridge.write_text(text)
    native = read_native(f"{bridge}:llama3_70b_pretrain_config", 64)
    assert native.fields["cp"] == 1
    assert native.unknown == ("context_parallel_size n if a loop",)


@pytest.mark.parametrize("text", ["x = " + "+".join("a" * 20_000), "x = " + "(" * 150 + "1" + ")" * 150])
def test_what_is_nested_too_deep_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.py"
    path.write_text(f"from xtuner.v1.train import TrainerConfig\n{text}\n")
    with pytest.raises(InputFileError):
        read_native(path, 8)


def test_yaml_of_something_else_is_no_job(tmp_path: Path) -> None:
    path = tmp_path / "ci.yaml"
    path.write_text("jobs: {build: {steps: [make]}}\n")
    with pytest.raises(InputFileError, match="is YAML of no framework"):
        read_native(path, 8)


SMALL = """
import copy
from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, LoRA, TrainingConfig
from elsewhere import apply_parallelism, make_train, pp_of

def small_config():
    cfg = ConfigContainer(
        model=AutoBridge.from_hf_pretrained("{model}").to_megatron_provider(),
        train=TrainingConfig(global_batch_size=64, micro_batch_size=1),
    )
    cfg.model.seq_length = 4096
    cfg.model.tensor_model_parallel_size = 2
{lines}
    return cfg
"""


def small(tmp_path: Path, lines: str, model: str = "meta-llama/Llama-3.1-8B") -> Native:
    """What a recipe of these lines is read as."""
    path = tmp_path / "small.py"
    path.write_text(SMALL.format(model=model, lines=textwrap.indent(lines, "    ")))
    return read_native(path, 64)


@pytest.mark.parametrize(
    ("lines", "tp", "unknown"),
    [
        ("cfg.model.tensor_model_parallel_size = max(2, 4)", 4, ()),
        ('setattr(cfg.model, "tensor_model_parallel_size", 4)', 4, ()),
        ('p = {"tp": 1}\np.update(tp=8)\np |= {"tp": 4}\ncfg.model.tensor_model_parallel_size = p.pop("tp")', 4, ()),
        ("copy.deepcopy(cfg).model.tensor_model_parallel_size = 8", 2, ()),
        ("mine = copy.deepcopy(cfg)\nmine.model.tensor_model_parallel_size = 8\nmine.train = 1", 2, ()),
        ("if isinstance(cfg.model, str):\n    cfg.model.tensor_model_parallel_size = 8", 2, ()),
        ('x = {}\ny = x.get(cfg)\nif cfg in {"a": 1}:\n    pass', 2, ()),
        (f"cfg.model.num_sms = 0x{'f' * 5000}", 2, ()),
        ("cfg.ddp.overlap_grad_reduce = True", 2, ()),
    ],
)
def test_what_can_be_followed_is(tmp_path: Path, lines: str, tp: int, unknown: tuple[str, ...]) -> None:
    native = small(tmp_path, lines)
    assert (native.fields["tp"], native.unknown) == (tp, unknown)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ('cfg.model.pipeline_model_parallel_size = pp_of("8b")', "pipeline_model_parallel_size pp_of(...)"),
        ("cfg.model.pipeline_model_parallel_size = pp_of('8b') or 4", "pipeline_model_parallel_size pp_of(...)"),
        (
            "if not has_nvlink():\n    cfg.model.tensor_model_parallel_size = 1",
            "tensor_model_parallel_size 1 if not has_nvlink()",
        ),
        ("if has_nvlink() == 3:\n    cfg.model.tensor_model_parallel_size += 1", "tensor_model_parallel_size 1 if has"),
        ("if has_nvlink():\n    return cfg", "return cfg if has_nvlink()"),
        ("for n in range(2):\n    cfg.model.tensor_model_parallel_size *= 2", "tensor_model_parallel_size 2 if a loop"),
        ("for k, v in X:\n    setattr(cfg.model, k, v)", "setattr(cfg.model, k, v) if a loop"),
        ("setattr(cfg.model, word(), 4)", "setattr(cfg.model, word(), 4)"),
        ("match n:\n    case 1:\n        cfg.model.context_parallel_size = 2", "context_parallel_size 2 if match n"),
        ("apply_parallelism(cfg, tp=8)", "apply_parallelism(cfg, tp=8)"),
        ("apply_parallelism(cfg.model, tp=8)", "apply_parallelism(cfg.model, tp=8)"),
        ("cfg.model.apply(tp=8)", "cfg.model.apply(tp=8)"),
        ("cfg.train = TrainingConfig(**BATCHES)", "**BATCHES"),
        ("cfg.train = BATCHES", "train BATCHES"),
        ("cfg.peft = LoRA(target_modules=[QKV], dim=DIM)", "adapters of QKV"),
        ("cfg.peft = LoRA(target_modules=[QKV], dim=DIM)", "peft.dim DIM (taken as 32)"),
        ("cfg.mixed_precision = PRECISION", "mixed_precision PRECISION"),
    ],
)
def test_what_cannot_be_followed_is_named(tmp_path: Path, lines: str, word: str) -> None:
    assert word in ", ".join(small(tmp_path, lines).unknown)


@pytest.mark.parametrize("lines", ["cfg.train = make_train(gbs=64)", "cfg = apply_parallelism(cfg)"])
def test_a_part_that_rests_on_what_is_not_beside_the_recipe_is_refused(tmp_path: Path, lines: str) -> None:
    with pytest.raises(InputFileError, match=r"rests on elsewhere\.(make_train|apply_parallelism), which does not lie"):
        small(tmp_path, lines)


def test_a_trainer_that_is_not_beside_a_recipe_of_nemo_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(NEMO.replace("trainer=trainer(num_nodes=2)", "trainer=my_trainer(tp=8)"))
    with pytest.raises(InputFileError, match="rests on my_trainer, which does not lie beside it"):
        read_native(f"{path}:pretrain_recipe", 64)


def test_lists_that_double_are_refused(tmp_path: Path) -> None:
    for line in ("a = a + a", "a = [copy.deepcopy(a), copy.deepcopy(a)]"):
        with pytest.raises(InputFileError, match="takes more than 100,000 steps"):
            small(tmp_path, "a = [1]\n" + f"{line}\n" * 40)


def test_experts_of_megatron_bridge(tmp_path: Path) -> None:
    mixture, fuser = "Qwen/Qwen3-30B-A3B", "cfg.model.use_transformer_engine_op_fuser = True"
    assert "experts_impl" not in small(tmp_path, "", mixture).fields
    assert small(tmp_path, fuser, mixture).fields["experts_impl"] == "grouped"
    assert small(tmp_path, "cfg.model.moe_grouped_gemm = False", mixture).fields["experts_impl"] == "sequential"


def test_layers_are_offloaded_where_the_recipe_switches_it_on(tmp_path: Path) -> None:
    """Megatron-Bridge's recipes of gpt-oss state a number of layers and no switch: nothing is moved."""
    lines = "cfg.model.cpu_offloading_num_layers = 95"
    assert "offload_activations" not in small(tmp_path, lines).fields
    assert small(tmp_path, f"{lines}\ncfg.model.cpu_offloading = True").fields["offload_activations"] == 32


@pytest.mark.parametrize(
    ("modules", "recompute"),
    [("[]", "none"), ("None", "selective:core_attention"), ('["mlp"]', "selective:mlp")],
)
def test_selective_recomputation_of_no_modules_is_none(tmp_path: Path, modules: str, recompute: str) -> None:
    lines = f'cfg.model.recompute_granularity = "selective"\ncfg.model.recompute_modules = {modules}'
    assert small(tmp_path, lines).fields["recompute"] == recompute


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ("cfg.mixed_precision.fp8_dot_product_attention = True", "fp8_dot_product_attention"),
        ("cfg.mixed_precision.first_last_layers_bf16 = True", "first_last_layers_bf16"),
        (
            "cfg.mixed_precision.first_last_layers_bf16 = True\n"
            "cfg.mixed_precision.num_layers_at_start_in_bf16 = 0\n"
            "cfg.mixed_precision.num_layers_at_end_in_bf16 = 4",
            "num_layers_at_end_in_bf16 4",
        ),
        (
            "cfg.optimizer = OptimizerConfig(use_precision_aware_optimizer=True, main_params_dtype=torch.float16)",
            "main_params_dtype float16 (master weights are counted in fp32)",
        ),
    ],
)
def test_formats_of_a_part_are_named(tmp_path: Path, lines: str, word: str) -> None:
    made = "cfg.mixed_precision = bf16_with_mxfp8_mixed()\n"
    assert small(tmp_path, made + lines).unknown == (word,)
    assert small(tmp_path, made + lines.replace("True", "False").replace("= 4", "= 0")).unknown == ()


@pytest.mark.parametrize(
    "made", ["nemotron_3_super_bf16_with_nvfp4_mixed()", '"nemotron-3-super-bf16-with-nvfp4-mixed"']
)
def test_layers_that_a_named_format_keeps_in_bf16_are_named(tmp_path: Path, made: str) -> None:
    assert small(tmp_path, f"cfg.mixed_precision = {made}").unknown == ("num_layers_at_end_in_bf16 14",)
    off = "\ncfg.mixed_precision.first_last_layers_bf16 = False"
    assert not made.endswith("()") or small(tmp_path, f"cfg.mixed_precision = {made}{off}").unknown == ()


def test_graphs_of_some_parts_of_a_mixture_are_none_whatever_its_name(tmp_path: Path) -> None:
    lines = 'cfg.model.cuda_graph_impl = "transformer_engine"\ncfg.model.cuda_graph_scope = '
    assert small(tmp_path, lines + '["attn", "moe_router"]', "me/my-mixture").fields["cuda_graphs"] is False
    assert small(tmp_path, lines + '["attn", "mlp"]', "me/my-model").fields["cuda_graphs"] is True


IMAGES = "cfg.dataset = MockVLMSFTDatasetConfig(seq_length=4096, image_size=(512, 256), num_images=2)"


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (IMAGES, {"images": 2, "image_patches": 512}),
        ("cfg.dataset = MockVLMSFTDatasetConfig(seq_length=4096)", {"images": 1, "image_patches": 256}),
        (f"{IMAGES}\ncfg.model.freeze_vision_model = True", {"images": 2, "image_patches": 512, "frozen": "tower"}),
        (f"{IMAGES}\ncfg.model.freeze_language_model = True", {"images": 2, "image_patches": 512, "frozen": "text"}),
        ("cfg.dataset = OtherDatasetConfig(seq_length=4096, num_images=2)", {}),
    ],
)
def test_images_of_made_up_samples_go_through_the_tower(tmp_path: Path, lines: str, fields: dict[str, object]) -> None:
    native = small(tmp_path, lines, "Qwen/Qwen3.5-35B-A3B")
    assert {
        name: native.fields[name] for name in native.fields if name in ("images", "image_patches", "frozen")
    } == fields


def test_images_without_sizes_are_named(tmp_path: Path) -> None:
    native = small(tmp_path, "cfg.dataset = MockVLMSFTDatasetConfig(image_size=sizes_of(1))", "Qwen/Qwen3.5-35B-A3B")
    assert "images of MockVLMSFTDatasetConfig" in native.unknown


def test_micro_batches_of_a_group_by_megatron_cores_own_name(tmp_path: Path) -> None:
    lines = "pipeline_model_parallel_size = 4\nvirtual_pipeline_model_parallel_size = 2"
    lines += "\nmicrobatch_group_size_per_vp_stage = 6"
    native = small(tmp_path, textwrap.indent(lines, "cfg.model."))
    assert (native.fields["micro_batch_group"], native.unknown) == (6, ())


def test_parts_of_xtuner_that_cannot_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "sft.py"
    path.write_text(
        XTUNER.replace("recompute_ratio=0.5,", "recompute_ratio=R, hsdp_sharding_size=size(), cpu_offload=C,")
    )
    unknown = read_native(path, 32).unknown
    wanted = ("fsdp_cfg.recompute_ratio R", "fsdp_cfg.hsdp_sharding_size size(...)", "fsdp_cfg.cpu_offload C")
    assert [word for word in unknown if word in wanted] == list(wanted)
    path.write_text(XTUNER.replace("FSDPConfig(", "fsdp("))
    with pytest.raises(InputFileError, match="rests on fsdp, which does not lie beside it"):
        read_native(path, 32)


def test_a_recipe_of_no_file_is_named_so() -> None:
    with pytest.raises(InputFileError, match=r"absent\.py:a_recipe: no such file"):
        plan_file("absent.py:a_recipe", "h100-sxm:8", None, {})
