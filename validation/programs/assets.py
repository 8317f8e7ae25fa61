"""What a program would download, made here instead: a tokenizer, a text data set. A few kilobytes, the same every time.

torchtitan's test assets (`tests/assets/tokenizer`, `tests/assets/c4_test`) are in its repository, not in its wheel.
These stand in for them: byte-level tokens and made-up sentences. Shapes, operations and memory depend on neither.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

VOCAB = 2_000  # torchtitan's own test tokenizer has as many, and its debug model 2,048 rows
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")


def sentences(count: int, seed: int = 0) -> list[str]:
    """Made-up text, about 200 words a document."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(200)) + "." for _ in range(count)]


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer in Hugging Face's format; the folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(50), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": special[0], "eos_token": special[1], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_texts(folder: Path, documents: int = 2_000) -> Path:
    """A data set that `datasets.load_dataset(folder, split="train")` reads; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "data.json").open("w") as lines:
        for text in sentences(documents, seed=1):
            lines.write(json.dumps({"text": text}) + "\n")
    return folder


def write_torchtitan_assets(folder: Path) -> Path:
    """Where torchtitan's configs look for its test assets when it is started in `folder`."""
    write_tokenizer(folder / "tests" / "assets" / "tokenizer")
    write_texts(folder / "tests" / "assets" / "c4_test")
    return folder
