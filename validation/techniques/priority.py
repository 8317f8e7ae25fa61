"""How much of an all-to-all's slowdown under a 32 times larger all-reduce priority takes away, on a real slow link.

    sudo python validation/techniques/priority.py [--rate 400mbit]

Each of four layers computes (sleeps), exchanges 1 MiB and leaves 32 MiB to reduce. Waiting for each all-to-all: alone,
with both in flight, with the leader's order, and with a static order of pieces in the gaps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from slow_link import reason, slow_link

LAYERS, COMPUTE_S, EXCHANGE, REDUCE, MICRO, ROUNDS = 4, 0.3, 1 << 20, 1 << 25, 1 << 19, 4


def rank_main() -> None:
    import torch
    import torch.distributed as dist

    from windtunnel.real.techniques.prioritised_all_to_all import Communicator

    torch.set_num_threads(1)
    where = f"tcp://{os.environ['MASTER']}:29533"
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=300))
    groups = tuple(dist.new_group() for _ in range(3))
    source = torch.ones(EXCHANGE // 4)
    received = torch.empty_like(source)
    gradients = [torch.ones(REDUCE // 4) for _ in range(LAYERS)]
    pieces = REDUCE // MICRO
    gap = 26  # pieces that fit into a gap, by the measured rate
    order = "".join("a" + "r" * (gap if layer else 0) for layer in range(LAYERS))
    order += "r" * (LAYERS * pieces - order.count("r"))
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("alone", "both", "leader", "static")}
    for number in range(ROUNDS + 1):
        for name, found in taken.items():
            dist.barrier()
            lane = None
            if name in ("leader", "static"):
                lane = Communicator(name, order=order if name == "static" else "", micro_op_bytes=MICRO, groups=groups)
            begin, waited, works = time.perf_counter(), 0.0, []
            for gradient in gradients:
                time.sleep(COMPUTE_S)
                asked = time.perf_counter()
                if lane is not None:
                    lane.all_to_all(received, source).wait()
                else:
                    dist.all_to_all_single(received, source)
                waited += time.perf_counter() - asked
                if name == "both":
                    works.append(dist.all_reduce(gradient, group=groups[1], async_op=True))
                elif lane is not None:
                    works.append(lane.all_reduce(gradient))
            for work in works:
                work.wait()
            if number:
                found.append((waited / LAYERS, time.perf_counter() - begin))
            if lane is not None:
                lane.close()
    if rank == 0:
        wait = {name: statistics.median(one for one, _ in found) for name, found in taken.items()}
        step = {name: statistics.median(one for _, one in found) for name, found in taken.items()}
        for name in taken:
            slower = wait["both"] - wait["alone"]
            shown = (
                f", {1 - (wait[name] - wait['alone']) / slower:5.0%} of the slowdown recovered" if slower > 0 else ""
            )
            print(
                f"{name:7} all-to-all {1e3 * wait[name]:6.1f} ms, step {1e3 * step[name]:6.0f} ms"
                f" ({step[name] / step['both'] - 1:+.1%} against both){shown if name in ('leader', 'static') else ''}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank_main()
    elif lacks := reason():
        print(f"skipped: {lacks}")
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rate", default="400mbit")
        with slow_link(parser.parse_args().rate) as link:
            link.run([sys.executable, __file__], timeout_s=600)
