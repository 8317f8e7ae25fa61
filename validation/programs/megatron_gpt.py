"""megatron-core's GPT, in the shape of its own `run_simple_mcore_train_loop.py`, on random tokens.

    torchrun --nproc-per-node 2 megatron_gpt.py --tp 2

Layers are megatron-core's local ones (no Transformer Engine). Pipelines and the distributed optimizer as
megatron-core has them.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

if not moe_utils.HAVE_TE:  # 0.16.1 asks whether this is None, and defines it only where Transformer Engine is
    moe_utils.te_general_gemm = None


def batches(vocab: int, seq: int, micro_batch: int, device: torch.device):
    """The same batch for ever."""
    tokens = (torch.arange(micro_batch * seq, device=device).view(micro_batch, seq) * 31) % vocab
    positions = torch.arange(seq, device=device).expand(micro_batch, seq).contiguous()
    mask = torch.ones(1, 1, seq, seq, dtype=torch.bool, device=device).triu(1)
    while True:
        yield {"tokens": tokens, "labels": tokens.roll(-1, 1), "positions": positions, "mask": mask}


def forward_step(iterator, model):
    """What megatron-core's schedules call for each micro-batch."""
    batch = next(iterator)

    def loss_of(output: torch.Tensor):
        loss = output.float().mean()
        return loss, {"lm loss": loss.detach()}

    return model(batch["tokens"], batch["positions"], batch["mask"], labels=batch["labels"]), loss_of


def main() -> None:
    """A few steps."""
    parser = argparse.ArgumentParser()
    for name, value in {
        "tp": 1,
        "pp": 1,
        "vpp": 0,
        "cp": 1,
        "ep": 1,
        "experts": 0,
        "steps": 3,
        "micro-batches": 4,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--distributed-optimizer", action="store_true")
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=given.tp,
        pipeline_model_parallel_size=given.pp,
        virtual_pipeline_model_parallel_size=given.vpp or None,
        context_parallel_size=given.cp,
        expert_model_parallel_size=given.ep,
    )
    if on_gpu:
        model_parallel_cuda_manual_seed(123)
    config = TransformerConfig(
        num_layers=given.layers,
        hidden_size=given.hidden,
        num_attention_heads=8,
        use_cpu_initialization=not on_gpu,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        bf16=True,
        tensor_model_parallel_size=given.tp,
        pipeline_model_parallel_size=given.pp,
        virtual_pipeline_model_parallel_size=given.vpp or None,
        context_parallel_size=given.cp,
        expert_model_parallel_size=given.ep,
        sequence_parallel=False,  # the local layers' norm has none
        num_moe_experts=given.experts or None,
        moe_token_dispatcher_type="alltoall",
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    spec = get_gpt_layer_local_spec(num_experts=given.experts or None, normalization="LayerNorm")
    chunks = []
    for chunk in range(given.vpp or 1):
        virtual = {"vp_stage": chunk} if given.vpp else {}
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=2048,
            max_sequence_length=given.seq,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=not given.vpp, **virtual),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=not given.vpp, **virtual),
            **virtual,
        ).to(device=device, dtype=torch.bfloat16)
        ddp = DistributedDataParallelConfig(
            use_distributed_optimizer=given.distributed_optimizer, overlap_grad_reduce=False, grad_reduce_in_fp32=True
        )
        chunks.append(DistributedDataParallel(config, ddp, model))
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=given.distributed_optimizer,
        ),
        chunks,
    )
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    data = [batches(2048, given.seq, 2, device) for _ in chunks]
    step = get_forward_backward_func()
    for number in range(given.steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = step(
            forward_step_func=partial(forward_step),
            data_iterator=data if given.vpp else data[0],
            model=chunks if given.vpp else chunks[0],
            num_microbatches=given.micro_batches,
            seq_length=given.seq,
            micro_batch_size=2,
            decoder_seq_length=given.seq,
            forward_only=False,
        )
        optimizer.step()
        if losses and torch.distributed.get_rank() in (0, torch.distributed.get_world_size() - 1):
            print(f"step {number}: loss {float(losses[0]['lm loss']):.3f}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
