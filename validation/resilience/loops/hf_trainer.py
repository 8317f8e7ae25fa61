"""The Trainer of transformers under DistributedDataParallel, with clipping, accumulation and a schedule.

Its step is wrapped once it has made its optimizer: forward and backward are the call, and the optimizer's step is what
the loop does between calls.
"""

import time

import torch
from common import asked, finish, offloaded, start, survivable
from net import LENGTH, VOCABULARY
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

rank, world = start()
config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=4, n_head=2, n_positions=LENGTH)
model = offloaded(GPT2LMHeadModel(config))
tokens = torch.randint(VOCABULARY, (256, LENGTH), generator=torch.Generator().manual_seed(5))
data = [{"input_ids": one, "labels": one} for one in tokens]
arguments = TrainingArguments(
    str(asked.out / "saved"), max_steps=asked.steps, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, max_grad_norm=0.5,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=data)


class Survivable(TrainerCallback):
    def on_train_begin(self, arguments, state, control, optimizer=None, lr_scheduler=None, **named):
        step = trainer.training_step

        def slower(*given, **more):
            time.sleep(asked.pause)
            return step(*given, **more)

        trainer.training_step = survivable(slower, trainer.model_wrapped, optimizer, lr_scheduler)


trainer.add_callback(Survivable())
trainer.train()
finish([one["loss"] for one in trainer.state.log_history if "loss" in one], model)
