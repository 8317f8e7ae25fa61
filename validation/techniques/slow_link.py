"""Slow private links between ranks: a network namespace each, a bridge, `tc tbf`. Needs root and CAP_NET_ADMIN.

    with slow_link("400mbit") as link:
        link.run([sys.executable, "program.py"], 600)     # rank 0 and rank 1, each in a namespace of its own

Each rank's cable carries `rate` each way, as a network card's does; the bridge itself is not limited. On loopback the
cores are the bottleneck and a link cannot be contended; here it is the link. `reason()` says why it cannot be made, or
nothing. The namespaces are taken away again, whatever happens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

FACE, MASTER = "link0", "10.99.7.1"  # the interface in each rank's namespace; rank 0's address


def reason() -> str:
    """Why there can be no slow link here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"needs {tool} (iproute2)"
    name = f"wtprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@dataclass(frozen=True)
class SlowLink:
    """The namespace of each rank."""

    spaces: tuple[str, ...]

    def run(self, command: Sequence[str], timeout_s: float) -> None:
        """Start the command once in each namespace with RANK, WORLD_SIZE, MASTER and the interface; wait for all."""
        started = []
        for rank, space in enumerate(self.spaces):
            environment = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(self.spaces)), "MASTER": MASTER,
                "GLOO_SOCKET_IFNAME": FACE, "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            started.append(subprocess.Popen(["ip", "netns", "exec", space, *command], env=environment))
        try:
            for process in started:
                if process.wait(timeout_s):
                    raise RuntimeError(f"a rank ended with status {process.returncode}")
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()


@contextmanager
def slow_link(rate: str, ranks: int = 2) -> Iterator[SlowLink]:
    """`rate` as tc writes it, e.g. 400mbit."""
    tag = os.getpid()
    hub, spaces = f"wt{tag}hub", tuple(f"wt{tag}r{rank}" for rank in range(ranks))

    def call(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    def shape(space: str, face: str) -> None:
        # The bucket holds one of the kernel's largest packets: more would go at the speed of memory after a pause.
        call("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", face, "root", "tbf", "rate", rate, "burst",
             "64kb", "latency", "200ms")  # fmt: skip

    try:
        call("ip", "netns", "add", hub)
        call("ip", "-n", hub, "link", "add", "bridge0", "type", "bridge")
        call("ip", "-n", hub, "link", "set", "bridge0", "up")
        for rank, space in enumerate(spaces):
            call("ip", "netns", "add", space)
            call("ip", "link", "add", FACE, "netns", space, "type", "veth", "peer", "name", f"port{rank}", "netns", hub)
            call("ip", "-n", hub, "link", "set", f"port{rank}", "master", "bridge0", "up")
            call("ip", "-n", space, "addr", "add", f"10.99.7.{rank + 1}/24", "dev", FACE)
            call("ip", "-n", space, "link", "set", FACE, "up")
            call("ip", "-n", space, "link", "set", "lo", "up")
            shape(space, FACE)
            shape(hub, f"port{rank}")
        yield SlowLink(spaces)
    finally:
        for space in (hub, *spaces):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
