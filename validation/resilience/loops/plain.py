"""`plain.py RANKS SCRIPT WORDS`: a script on so many ranks as torchrun would, with one import of PyTorch for all."""

import os
import runpy
import socket
import sys
from pathlib import Path

import torch.distributed.tensor  # noqa: F401

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
ranks, sys.argv = int(sys.argv[1]), sys.argv[2:]
sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
pids = []
for rank in range(ranks):
    pids.append(os.fork())
    if not pids[-1]:
        os.environ |= {"PLAIN": "1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(0)
failed = [pid for pid in pids if os.waitpid(pid, 0)[1]]
sys.exit(bool(failed))
