"""Lightning's Trainer on a small transformer and made-up tokens. DDP by default; `--strategy fsdp` shards.

torchrun --nproc-per-node 2 lightning_trainer.py
"""

from __future__ import annotations

import argparse
import os
import tempfile

import lightning
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

VOCAB = 2048


class Tokens(Dataset):
    """As many sequences as asked for, each the same whenever it is read."""

    def __init__(self, seq: int, count: int) -> None:
        self.seq, self.count = seq, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(index, index + self.seq + 1) * 31 % VOCAB


class Model(lightning.LightningModule):
    """A causal transformer of PyTorch's own layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.embedding = torch.nn.Embedding(VOCAB, width)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, VOCAB)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        """Loss of one batch."""
        tokens, labels = batch[:, :-1], batch[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.layers(self.embedding(tokens), mask=mask, is_causal=True)
        loss = functional.cross_entropy(self.head(hidden).flatten(0, 1).float(), labels.flatten())
        self.log("loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """A few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="ddp", choices=("ddp", "fsdp"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    given = parser.parse_args()
    strategy: object = given.strategy
    if given.strategy == "fsdp":
        from lightning.pytorch.strategies import FSDPStrategy

        strategy = FSDPStrategy(auto_wrap_policy={torch.nn.TransformerEncoderLayer})
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu" if torch.cuda.is_available() else "cpu",
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
            strategy=strategy,
            max_steps=given.steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=folder,
        )
        trainer.fit(Model(given.width, given.layers), DataLoader(Tokens(given.seq, 1 << 16), batch_size=2))
        if trainer.is_global_zero:
            print("loss", float(trainer.callback_metrics["loss"]))


if __name__ == "__main__":
    main()
