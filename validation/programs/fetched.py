"""Programs of others, captured unmodified: they are fetched at a commit, never kept here. For a nightly run.

    pip install transformers accelerate datasets trl timm diffusers lightning litgpt litdata deepspeed torchvision \\
        einops pybind11 triton fire ibm-fms==0.0.8 rustbpe tiktoken wandb torchtitan==0.2.2 ai2-olmo-core \\
        picotron nanotron
    python validation/programs/fetched.py FOLDER            # clones into FOLDER, captures at 8 ranks; one line each
    python validation/programs/fetched.py FOLDER --world-size 1024 --only nanoGPT
    python validation/programs/fetched.py FOLDER --clones /somewhere    # repositories that lie there already
    python validation/programs/fetched.py FOLDER --table docs/support.md        # and write the last answers of each

Inputs are small and made here: a text, a tokenizer and a model of a few layers, pictures. Each is predicted then. Exit
status 0 where all are, a package that one needs and that is not installed being no excuse.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

import fetched_inputs

HERE = Path(__file__).resolve().parent
GPU = "h100-sxm"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled"}
BEGIN, END = "<!-- fetched: begin -->", "<!-- fetched: end -->"


@dataclass(frozen=True)
class Fetched:
    """A repository at a commit ("": a package), and a launch line in a folder of it.

    In `line`, `{inputs}` is the folder of what is made here, `{ranks}` the number of ranks, of `{local}` on each of
    `{nodes}` nodes, `{tokens}` 2,048 for each rank,
    `{pictures}` a folder with 16 pictures for each rank, `{prompts}` one with 8 questions for each.
    """

    name: str
    repository: str
    commit: str
    line: tuple[str, ...]
    prepare: Callable[[Path, Path], None] = lambda folder, inputs: None
    environment: tuple[tuple[str, str], ...] = ()
    inside: str = ""  # the folder of the repository that it is started in
    path: str = ""  # of the repository, that Python looks for modules in
    ranks: int = 0  # the only number that its layout allows; 0: any


_MEGATRON = (
    *("pretrain_gpt.py", "--mock-data", "--num-layers", "4", "--hidden-size", "256", "--num-attention-heads", "4"),
    *("--seq-length", "256", "--max-position-embeddings", "256", "--micro-batch-size", "1", "--train-iters", "5"),
    *("--lr", "1e-4", "--bf16", "--tokenizer-type", "NullTokenizer", "--vocab-size", "1023", "--eval-iters", "0"),
    *("--eval-interval", "1000", "--transformer-impl", "local", "--attention-backend", "unfused"),
    *("--no-gradient-accumulation-fusion", "--no-persist-layer-norm", "--no-masked-softmax-fusion"),
    *("--no-bias-swiglu-fusion", "--no-bias-gelu-fusion", "--no-rope-fusion", "--no-bias-dropout-fusion"),
)


def _megatron(name: str, *words: str) -> Fetched:
    commit = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
    line = (*_MEGATRON, *words)
    connections = "8" if "--use-megatron-fsdp" in words else "1"  # it insists on either
    limit = (("CUDA_DEVICE_MAX_CONNECTIONS", connections),)
    return Fetched(
        name, "https://github.com/NVIDIA/Megatron-LM", commit, line, fetched_inputs.megatron_extension, limit
    )


_TRAINER = (
    *("train.py", "--model_name_or_path", "{inputs}/llama", "--data_path", "{inputs}/alpaca.json", "--bf16", "True"),
    *("--output_dir", "{inputs}/out", "--max_steps", "8", "--per_device_train_batch_size", "2", "--report_to", "none"),
)
_DEEPSPEED_EXAMPLES = ("https://github.com/deepspeedai/DeepSpeedExamples", "45b4b715")
_WRAP = '{"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}'
_TRL = (
    *("--model_name_or_path", "{inputs}/llama", "--output_dir", "{inputs}/out", "--max_steps", "6"),
    *("--report_to", "none", "--bf16", "True"),
)
_FABRIC_RUN = (  # what `fabric run` sets, before it starts torchrun
    *(("LT_CLI_USED", "1"), ("LT_DEVICES", "{local}"), ("LT_NUM_NODES", "{nodes}"), ("LT_STRATEGY", "ddp")),
    ("LT_ACCELERATOR", "cuda"),
)
_SMALL = ("--hidden_dim", "256", "--num_layers", "4", "--num_heads", "4", "--vocab_size", "4096")
_MOE = ("--num-experts", "8", "--expert-model-parallel-size", "4", "--moe-token-dispatcher-type", "alltoall")
_MEGATRON_FSDP = (
    *("--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params"),
    *("--use-distributed-optimizer", "--ckpt-format", "fsdp_dtensor"),
)


def _zero(stage: int) -> Fetched:
    line = ("train.py", "--deepspeed_config", f"{{inputs}}/zero{stage}.json", *_SMALL)
    return Fetched(
        f"DeepSpeed ZeRO-{stage}, its example",
        *_DEEPSPEED_EXAMPLES,
        line,
        inside="training/bf16_master_weight",
        ranks=8,  # its GPU is that of the global rank
    )


PROGRAMS = (
    Fetched(
        "nanoGPT",
        "https://github.com/karpathy/nanoGPT",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        ("train.py", "config/train_shakespeare_char.py", "--eval_iters=2", "--gradient_accumulation_steps={ranks}"),
        fetched_inputs.nanogpt_text,
    ),
    Fetched(
        "nanochat",
        "https://github.com/karpathy/nanochat",
        "92d63d4",
        (
            *("-m", "scripts.base_train", "--depth=4", "--max-seq-len=512", "--device-batch-size=4", "--eval-every=-1"),
            *("--core-metric-every=-1", "--sample-every=-1", "--total-batch-size={tokens}", "--num-iterations=20"),
        ),
        fetched_inputs.nanochat_tokenizer,
        (("NANOCHAT_BASE_DIR", "{inputs}/nanochat"),),
    ),
    Fetched("HF Trainer, DDP", *_DEEPSPEED_EXAMPLES, _TRAINER, inside="training/tensor_parallel/hf_integration"),
    Fetched(
        "HF Trainer, FSDP",
        *_DEEPSPEED_EXAMPLES,
        (*_TRAINER, "--fsdp", "full_shard auto_wrap", "--fsdp_config", _WRAP),
        inside="training/tensor_parallel/hf_integration",
    ),
    Fetched("TRL, SFT", "", "", ("-m", "trl.scripts.sft", "--dataset_name", "{inputs}/chat", *_TRL)),
    Fetched(
        "TRL, GRPO",
        "",
        "",
        (
            *("-m", "trl.scripts.grpo", "--dataset_name", "{prompts}", *_TRL, "--per_device_train_batch_size"),
            *("8", "--num_generations", "8", "--max_completion_length", "16", "--reward_funcs", "think_format_reward"),
        ),
    ),
    Fetched(
        "torchtitan 0.2.2, Llama 3",
        "https://github.com/pytorch/torchtitan",
        "73a0e6979",
        ("-m", "torchtitan.train", "--job.config_file", "torchtitan/models/llama3/train_configs/debug_model.toml"),
    ),
    Fetched(
        "timm, SyncBN",
        "https://github.com/huggingface/pytorch-image-models",
        "aa4b5850",
        (
            *("train.py", "--data-dir", "{pictures}", "--model", "resnet18", "--num-classes", "4"),
            *("--img-size", "64", "--batch-size", "8", "--sync-bn", "-j", "1", "--epochs", "2"),
            *("--output", "{inputs}/out"),
        ),
    ),
    Fetched(
        "diffusers, train_unconditional",
        "https://github.com/huggingface/diffusers",
        "58eb52c080",
        (
            *("train_unconditional.py", "--train_data_dir", "{pictures}", "--resolution", "64"),
            *("--train_batch_size", "4", "--num_epochs", "3", "--output_dir", "{inputs}/out"),
            *("--dataloader_num_workers", "0", "--logger", "wandb"),
        ),
        fetched_inputs.picture_dataset,
        inside="examples/unconditional_image_generation",
    ),
    Fetched(
        "Lightning Fabric, language model",
        "https://github.com/Lightning-AI/pytorch-lightning",
        "7f0c3436cd",
        ("train.py",),
        fetched_inputs.lightning_text,
        _FABRIC_RUN,
        inside="examples/fabric/language_model",
    ),
    Fetched(
        "Lightning, TP 2 and FSDP2",
        "https://github.com/Lightning-AI/pytorch-lightning",
        "7f0c3436cd",
        ("train.py",),
        inside="examples/pytorch/tensor_parallel",
        ranks=4,
    ),
    Fetched(
        "PyTorch's FSDP2 example",
        "https://github.com/pytorch/examples",
        "77f55b9",
        ("example.py",),
        inside="distributed/FSDP2",
    ),
    Fetched(
        "fms-fsdp",
        "https://github.com/foundation-model-stack/fms-fsdp",
        "5a296af",
        (
            *("main_training_llama.py", "--use_dummy_dataset=True", "--model_variant=llama3_194m_4k"),
            *("--num_steps=40", "--report_interval=5", "--sharding_strategy=fsdp", "--seq_length=512"),
            *("--ckpt_save_path={inputs}/out", "--ckpt_load_path={inputs}/out", "--use_torch_compile=False"),
        ),
        path=".",
    ),
    Fetched(
        "picotron, TP 2, PP 2",
        "https://github.com/huggingface/picotron",
        "59714b1",
        ("train.py", "--config", "{inputs}/picotron_{ranks}.json"),
        fetched_inputs.picotron_config,
    ),
    Fetched(
        "nanotron, TP 2",
        "https://github.com/huggingface/nanotron",
        "2411b022",
        ("run_train.py", "--config-file", "{inputs}/nanotron_{ranks}.yaml"),
        fetched_inputs.nanotron_config,
        (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),),
        path="src",
    ),
    Fetched(
        "OLMo-core",
        "https://github.com/allenai/OLMo-core",
        "fa6c5014c",
        (
            *("src/examples/llm/train.py", "run", "--sequence-length", "256", "--save-folder", "{inputs}/out"),
            *("--work-dir", "{inputs}/out", "--trainer.callbacks.lm_evaluator.enabled=false"),
            *("--trainer.callbacks.downstream_evaluator.enabled=false", "--train_module.rank_microbatch_size=2048"),
            *("--data_loader.global_batch_size={tokens}", "--data_loader.num_workers=0"),
        ),
        environment=(("OLMO_DATA_ROOT", "{inputs}"), ("OLMO_SHARED_FS", "1")),  # it asks, of a job of several nodes
        path="src",
    ),
    Fetched(
        "torchrec, DLRM",
        "https://github.com/meta-pytorch/torchrec",
        "376cac6a",
        ("train_dlrm.py",),
        inside="examples/golden_training",
    ),
    Fetched(
        "litgpt, pretrain",
        "",
        "",
        (
            *("-m", "litgpt", "pretrain", "pythia-14m", "--tokenizer_dir", "{inputs}/llama", "--data", "TextFiles"),
            *("--data.train_data_path", "{inputs}/litgpt/train", "--data.num_workers", "0"),
            *("--data.val_data_path", "{inputs}/litgpt/validation"),
            *("--devices", "{local}", "--num_nodes", "{nodes}"),
            *("--train.micro_batch_size", "1", "--train.max_seq_length", "256", "--train.global_batch_size", "{ranks}"),
            *("--out_dir", "{inputs}/out"),
        ),
        fetched_inputs.litgpt_data,
    ),
    _megatron("Megatron-LM, TP 2, PP 2", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"),
    _megatron("Megatron-LM, EP 4", *_MOE, "--use-distributed-optimizer", "--overlap-grad-reduce"),
    _megatron("Megatron-LM, --use-megatron-fsdp", *_MEGATRON_FSDP),
    _zero(1),
    _zero(2),
    *(
        Fetched(f"DeepSpeed, ZeRO {words}", "", "", (str(HERE / "deepspeed_zero.py"), *words.split()))
        for words in ("2", "2 fp16", "3", "3 init")
    ),
)


@dataclass(frozen=True)
class Answer:
    """What became of a program."""

    name: str
    ranks: int
    status: int  # of the capture, or of its prediction where that failed
    text: str  # classes and FLOPs, or the last line of what was said
    cpu_s: float  # of the capture
    step_s: float = math.nan  # predicted
    gib: float = math.nan  # of this machine's memory, the most that a rank took
    day: str = field(default_factory=lambda: date.today().isoformat())


def capture(
    program: Fetched, place: Path, clones: Path, world_size: int, limit_s: float, options: Sequence[str] = ()
) -> Answer:
    """Capture a program, prepared if it is not yet; given up after so many seconds of wall time."""
    inputs = place / "inputs"
    fetched_inputs.make_inputs(inputs)
    folder = clones / program.repository.rpartition("/")[2] if program.repository else inputs
    if program.repository and not folder.exists():
        subprocess.run(["git", "clone", "--quiet", program.repository, str(folder)], check=True)
        subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", program.commit], check=True)
    ready = inputs / f"prepared_{program.name.replace(' ', '_')}"
    if not ready.exists():
        program.prepare(folder, inputs)
        ready.touch()
    size = program.ranks or world_size
    out = place / "captured" / program.name.replace(" ", "_").replace(",", "")
    out.parent.mkdir(exist_ok=True)
    batch = ("--global-batch-size", str(size)) if program.line[0] == "pretrain_gpt.py" else ()

    def filled(word: str) -> str:
        numbers = {"ranks": size, "tokens": 2048 * size, "local": min(size, 8), "nodes": -(-size // 8)}
        for name, number in numbers.items():
            word = word.replace(f"{{{name}}}", str(number))
        if "{pictures}" in word:
            word = word.replace("{pictures}", str(fetched_inputs.enough_pictures(inputs, size)))
        if "{prompts}" in word:
            word = word.replace("{prompts}", str(fetched_inputs.enough_prompts(inputs, size)))
        return word.replace("{inputs}", str(inputs))

    more = {name: filled(value) for name, value in program.environment}
    if program.path:
        more["PYTHONPATH"] = os.pathsep.join([str(folder / program.path), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "windtunnel", "capture", "--world-size", str(size), "--out", str(out), "--json"]
    words += options
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            [*words, *(filled(word) for word in (*program.line, *batch))],
            cwd=folder / program.inside,
            env={**os.environ, **OFFLINE, **more},
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return Answer(program.name, size, 124, f"not done in {limit_s:.0f} s", math.nan)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        return Answer(program.name, size, done.returncode, _last_line(done.stderr), cpu_s)
    document = json.loads(done.stdout)
    flops = max(one["flops"] for one in document["classes"])
    run = document["verification"]["played"]
    said = [f"{one['kind']} at {one['line']}" for one in document["findings"]]
    text = "; ".join((f"{len(document['classes'])} classes of {run} run, {flops:.3g} FLOP", *said))
    words = [sys.executable, "-m", "windtunnel", "predict", str(out), "--cluster", f"{GPU}:{size}", "--json"]
    priced = subprocess.run(words, capture_output=True, text=True, timeout=limit_s)
    if priced.returncode:
        return Answer(program.name, size, priced.returncode, f"{text}; predict: {_last_line(priced.stderr)}", cpu_s)
    gib = document["peak_rss_bytes"] / (1 << 30)
    return Answer(program.name, size, 0, text, cpu_s, float(json.loads(priced.stdout)["step_time_s"]), gib)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[-1]


def table(answers: Sequence[Answer]) -> str:
    """As it stands in the documentation."""
    import torch

    head = f"torch {torch.__version__}, Python {sys.version.split()[0]}; CPU s of the capture, GiB of a rank here."
    rows = []
    for one in answers:
        numbers = (f"{one.cpu_s:.0f}", f"{one.gib:.2f}", f"{1e3 * one.step_s:.3g}")
        shown = " | ".join("" if number == "nan" else number for number in numbers)
        text = one.text.replace("|", " ")
        rows.append(f"| {one.name} | {one.ranks:,} | {one.day} | {one.status} | {shown} | {text} |")
    columns = f"| program | ranks | on | exit status | CPU s | GiB | predicted step on {GPU}, ms | what |"
    return "\n".join((head, "", columns, "|---|---|---|---|---|---|---|---|", *rows))


def main() -> int:
    """Capture all, or those whose name begins so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clones", type=Path, help="where repositories lie, or come to lie (FOLDER)")
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--verify", type=int, help="ranks that are drawn (4; all of up to 8)")
    parser.add_argument("--only", nargs="*", default=[""], help="whose names begin so")
    parser.add_argument(
        "--table",
        type=Path,
        help="a document whose table is written anew: the last answers in FOLDER",
    )
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one program, on an idle machine")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    place, answers = given.folder.resolve(), []
    options = () if given.verify is None else ("--verify", str(given.verify))
    for program in PROGRAMS:
        if program.name.startswith(tuple(given.only)):
            one = capture(program, place, (given.clones or place).resolve(), given.world_size, given.limit, options)
            answers.append(one)
            with (place / "answers.jsonl").open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
            said = f"status {one.status}, {one.cpu_s:.0f} CPU-s, step {1e3 * one.step_s:.3g} ms, {one.text}"
            print(f"{one.name}, {one.ranks:,} ranks: {said}", flush=True)
    if given.table:
        text = given.table.read_text()
        every = [Answer(**json.loads(line)) for line in (place / "answers.jsonl").read_text().splitlines()]
        order = [program.name for program in PROGRAMS]
        last = sorted({(one.name, one.ranks): one for one in every}.values(), key=lambda one: order.index(one.name))
        head, rest = text.split(BEGIN)
        given.table.write_text(f"{head}{BEGIN}\n\n{table(last)}\n\n{END}{rest.split(END)[1]}")
    return 0 if all(one.status == 0 for one in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
