"""Runs a function on several gloo ranks, one process each."""

from __future__ import annotations

import io
import multiprocessing
import socket
import traceback
from datetime import timedelta

import pytest


def _rank(function, rank, world, port, arguments, answers):
    import torch
    import torch.distributed as dist

    try:
        torch.set_num_threads(1)
        where = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=timedelta(seconds=40))
        answer = io.BytesIO()  # tensors as bytes: a queue would share their memory with a process that has ended
        torch.save(function(*arguments), answer)
        answers.put((rank, answer.getvalue(), None))
        dist.destroy_process_group()
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))


@pytest.fixture
def on_ranks():
    """`on_ranks(world, function, *arguments, dies=0)`: what each rank returned, in order; so many are not heard of.

    Fails with what a rank raised.
    """
    import torch._dynamo  # noqa: F401  # every optimizer does: once here, and not in each fork

    started = []

    def run(world, function, *arguments, dies=0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        processes = [
            context.Process(target=_rank, args=(function, rank, world, port, arguments, answers))
            for rank in range(world)
        ]
        started.extend(processes)
        for process in processes:
            process.start()
        found = sorted((answers.get(timeout=60) for _ in processes[dies:]), key=lambda one: one[0])
        for process in processes:
            process.join(20)
        failures = [text for _, _, text in found if text]
        assert not failures, failures[0]
        import torch

        return [torch.load(io.BytesIO(value), weights_only=False) for _, value, _ in found]

    yield run
    for process in started:
        if process.is_alive():
            process.terminate()
