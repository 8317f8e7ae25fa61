"""Hugging Face's Trainer on a small Llama and random tokens: nothing is downloaded. DDP by default; FSDP with `--fsdp`.

torchrun --nproc-per-node 2 hf_trainer.py
torchrun --nproc-per-node 2 hf_trainer.py --fsdp
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomTokens(Dataset):
    """As many sequences as asked for, each the same whenever it is read."""

    def __init__(self, vocab: int, seq: int, count: int) -> None:
        self.vocab, self.seq, self.count = vocab, seq, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + self.seq) * 31 % self.vocab
        return {"input_ids": tokens, "labels": tokens.clone()}


def main() -> None:
    """Three steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", type=int, choices=(1, 2), help="FSDP of this version (default: DDP)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=given.hidden,
        intermediate_size=given.hidden * 4,
        num_hidden_layers=given.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=given.seq,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    more = {}
    if given.fsdp:
        wrap = {
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "version": given.fsdp,
            "reshard_after_forward": True,
        }
        if given.fsdp == 1:
            wrap["reshard_after_forward"] = "full_shard"
        more = {"fsdp": "full_shard auto_wrap", "fsdp_config": wrap}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            max_steps=given.steps,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            bf16=given.bf16,
            use_cpu=not torch.cuda.is_available(),
            **more,
        )
        Trainer(model=model, args=arguments, train_dataset=RandomTokens(2048, given.seq, 1 << 20)).train()


if __name__ == "__main__":
    main()
