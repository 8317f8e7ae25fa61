"""What `fetched.py` gives the programs that it captures, made here: texts, a tokenizer, a model, pictures, settings.

Nothing is downloaded. Each function with a folder and inputs prepares one program's clone, once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def nanogpt_text(folder: Path, inputs: Path) -> None:
    """nanoGPT's data set of characters, drawn at random: 65 of them."""
    import numpy

    place = folder / "data" / "shakespeare_char"
    drawn = numpy.random.RandomState(0)
    for name, count in (("train", 100_000), ("val", 10_000)):
        drawn.randint(0, 65, count).astype(numpy.uint16).tofile(place / f"{name}.bin")


def megatron_extension(folder: Path, inputs: Path) -> None:
    """Megatron-LM compiles these with its first start."""
    import pybind11

    place = folder / "megatron" / "core" / "datasets"
    made = place / f"helpers_cpp{sysconfig.get_config_var('EXT_SUFFIX')}"
    headers = [f"-I{sysconfig.get_paths()['include']}", f"-I{pybind11.get_include()}"]
    how = ("g++", "-O3", "-shared", "-std=c++17", "-fPIC", *headers)
    subprocess.run([*how, str(place / "helpers.cpp"), "-o", str(made)], check=True)
    first = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # make asks "python3" for headers
    # By its own reckoning of names: else each start compiles.
    subprocess.run(["make", "-C", str(place)], check=True, env={**os.environ, "PATH": first})


def nanochat_tokenizer(folder: Path, inputs: Path) -> None:
    """nanochat trains its own tokenizer first."""
    words = [sys.executable, "-m", "scripts.tok_train", "--max-chars", "300000", "--vocab-size", "2048"]
    subprocess.run(words, cwd=folder, env={**os.environ, "NANOCHAT_BASE_DIR": str(inputs / "nanochat")}, check=True)


def lightning_text(folder: Path, inputs: Path) -> None:
    """What Lightning's demonstration would download."""
    place = folder / "examples" / "fabric" / "language_model" / "data"
    place.mkdir(exist_ok=True)
    text = "".join((inputs / "text" / name).read_text() for name in ("a.txt", "b.txt"))
    (place / "wikitext-2.txt").write_text(text * 4)  # 4,000 of its blocks are for evaluation


def picture_dataset(folder: Path, inputs: Path) -> None:
    """The pictures as `datasets` keeps them, made once: of a cluster, one rank would for the others."""
    from datasets import load_dataset

    for ranks in (8, 1024):
        load_dataset("imagefolder", data_dir=str(enough_pictures(inputs, ranks)))


def litgpt_data(folder: Path, inputs: Path) -> None:
    """What its first rank makes of texts, once, as before a second start; enough for 1,024 ranks."""
    from litgpt.data import TextFiles
    from litgpt.tokenizer import Tokenizer

    places = {"train": inputs / "litgpt" / "train", "validation": inputs / "litgpt" / "validation"}
    for split, copies in (("train", 40), ("validation", 4)):
        places[split].mkdir(parents=True, exist_ok=True)
        for at in range(copies):
            shutil.copy(inputs / "text" / "b.txt", places[split] / f"{at}.txt")
    data = TextFiles(places["train"], places["validation"])
    data.connect(Tokenizer(inputs / "llama"), 1, 256)
    data.prepare_data()


def nanotron_config(folder: Path, inputs: Path) -> None:
    """Its Qwen example, made tiny: for 8 ranks, and for 1,024.

    At this commit its Llama reads `config.model.model`, and its Qwen a pointer's `numel` on a second stage: both end.
    """
    import yaml

    known = yaml.safe_load((folder / "examples" / "config_qwen.yaml").read_text())
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 4096}
    known["model"]["model_config"] |= sizes
    known["data_stages"][0]["data"]["dataset"] = None  # tokens drawn at random
    known["checkpoints"]["checkpoints_path"] = str(inputs / "out")
    known["tokens"] |= {"sequence_length": 512, "micro_batch_size": 2, "batch_accumulation_per_replica": 2}
    known["tokenizer"]["tokenizer_name_or_path"] = str(inputs / "llama")
    for ranks in (8, 1024):
        known["parallelism"] |= {"tp": 2, "pp": 1, "dp": ranks // 2}
        (inputs / f"nanotron_{ranks}.yaml").write_text(yaml.safe_dump(known))


def picotron_config(folder: Path, inputs: Path) -> None:
    """Its template, with a small model: for 8 ranks, and for 1,024."""
    known = json.loads((folder / "template" / "base_config.json").read_text())
    known["model"] |= {"name": str(inputs / "llama"), "num_hidden_layers": 4, "num_attention_heads": 8}
    known["training"] |= {"seq_length": 256, "micro_batch_size": 2, "total_train_steps": 5}
    known["dataset"]["name"] = str(inputs / "stories")
    known["environment"]["HF_TOKEN"] = "none"  # the model is there
    for ranks in (8, 1024):
        known["distributed"] |= {"tp_size": 2, "pp_size": 2, "dp_size": ranks // 4}
        known["training"]["num_samples"] = min(50 * ranks, 3900)
        (inputs / f"picotron_{ranks}.json").write_text(json.dumps(known))
    place = folder / "hf_model_safetensors"  # where it looks for what it would download
    place.mkdir(exist_ok=True)
    shutil.copy(inputs / "llama" / "model.safetensors", place)


def make_inputs(inputs: Path) -> None:
    """A text, a tokenizer, a model, conversations and pictures, of words drawn at random; once."""
    if (inputs / "llama").exists():
        return
    import numpy
    import pyarrow
    import pyarrow.parquet
    from PIL import Image
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    for name in ("text", "chat", "prompts", "stories", "nanochat/base_data_climbmix", "out"):
        (inputs / name).mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(2, 9))) for _ in range(3000)]
    lines = [" ".join(drawn.choices(words, k=12)).capitalize() + "." for _ in range(12_000)]
    for name, part in (("a", lines[:4000]), ("b", lines[4000:])):
        (inputs / "text" / f"{name}.txt").write_text("\n".join(part))
    said = [
        [{"role": "user", "content": one}, {"role": "assistant", "content": other}]
        for one, other in zip(lines[:600], lines[600:], strict=False)
    ]
    (inputs / "chat" / "train.jsonl").write_text("\n".join(json.dumps({"messages": one}) for one in said))
    (inputs / "prompts" / "train.jsonl").write_text("\n".join(json.dumps({"prompt": one[:1]}) for one in said))
    asked = [
        {"instruction": one, "input": "", "output": other} for one, other in zip(lines[:200], lines[200:], strict=False)
    ]
    (inputs / "alpaca.json").write_text(json.dumps(asked))
    documents = pyarrow.table({"text": [" ".join(lines[at : at + 8]) for at in range(0, 12_000 - 8, 3)]})
    pyarrow.parquet.write_table(documents, inputs / "stories" / "train.parquet")
    for shard in range(2):
        place = inputs / "nanochat" / "base_data_climbmix" / f"shard_{shard:05d}.parquet"
        pyarrow.parquet.write_table(documents, place, row_group_size=2)  # a group for each of 1,024 ranks
    pixels = numpy.random.RandomState(0)
    for split, count in (("train", 64), ("validation", 8)):
        for label in ("cat", "dog", "emu", "fox"):
            place = inputs / "pictures" / split / label
            place.mkdir(parents=True)
            for at in range(count):
                drawn_picture = pixels.randint(0, 255, (64, 64, 3), dtype=numpy.uint8)
                Image.fromarray(drawn_picture).save(place / f"{at}.jpg")
    enough = 32 << 20  # tokens, for 1,024 ranks
    for name, count in (("c4-train.00000-00099", enough), ("c4-validation.00000-00008", 200_000)):
        pixels.randint(0, 50_000, count).astype(numpy.uint16).tofile(inputs / f"{name}.npy")
    for stage in (1, 2):
        zero = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
        zero["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}  # its own needs nvcc
        (inputs / f"zero{stage}.json").write_text(json.dumps(zero))
    tokenizer = ByteLevelBPETokenizer()
    end = "<|endoftext|>"
    tokenizer.train([str(inputs / "text" / "a.txt")], vocab_size=4096, special_tokens=[end])
    tokenizer.save(str(inputs / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(inputs / "tokenizer.json"), bos_token=end, eos_token=end, pad_token=end
    )
    fast.chat_template = "{% for m in messages %}{{m['role']}}: {{m['content']}}\n{% endfor %}"
    fast.save_pretrained(inputs / "llama")
    config = inputs / "llama" / "tokenizer_config.json"  # transformers 4 reads it too
    config.write_text(config.read_text().replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"'))
    sizes = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ends)).save_pretrained(inputs / "llama")


def enough_pictures(inputs: Path, ranks: int) -> Path:
    """A folder of pictures that gives each rank 16 in an epoch, and one to validate: the same ones under many names."""
    first, many = inputs / "pictures", inputs / f"pictures_{ranks}"
    wanted = {"train": 16 * ranks, "validation": ranks}
    pictures = {split: sorted((first / split).glob("*/*")) for split in wanted}
    if all(len(pictures[split]) >= number for split, number in wanted.items()):
        return first
    if not many.exists():
        shutil.copytree(first, many)
        for split, number in wanted.items():
            for at in range(len(pictures[split]), number):
                one = pictures[split][at % len(pictures[split])]
                (many / split / one.parent.name / f"more_{at}.jpg").hardlink_to(one)
    return many


def enough_prompts(inputs: Path, ranks: int) -> Path:
    """A folder of questions that gives each rank 8, so that all train: the same ones again and again."""
    first, many = inputs / "prompts", inputs / f"prompts_{ranks}"
    lines = (first / "train.jsonl").read_text().splitlines()
    if len(lines) >= 8 * ranks:
        return first
    many.mkdir(exist_ok=True)
    again = (lines[at % len(lines)] for at in range(8 * ranks))
    (many / "train.jsonl").write_text("\n".join(again))
    return many
