"""An all-to-all that does not wait behind a large all-reduce, in one's own script.

torchrun --nproc-per-node 2 examples/techniques/prioritised_all_to_all.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from windtunnel.real.techniques.prioritised_all_to_all import Communicator

LAYERS = 4


def main() -> None:
    """Per layer, tokens that the next one waits for and a gradient that nobody waits for until the end."""
    dist.init_process_group("gloo")
    tokens, gradients = torch.ones(1 << 16), [torch.ones(1 << 20) for _ in range(LAYERS)]
    received = torch.empty_like(tokens)
    waited = 0.0
    with Communicator("leader", micro_op_bytes=1 << 19) as lane:
        reduced = []
        for gradient in gradients:
            begin = time.perf_counter()
            lane.all_to_all(received, tokens).wait()
            waited += time.perf_counter() - begin
            reduced.append(lane.all_reduce(gradient))
        for one in reduced:
            one.wait()
    if dist.get_rank() == 0:
        print(f"waited {1e3 * waited / LAYERS:.1f} ms for each all-to-all; order {''.join(lane.executed)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
