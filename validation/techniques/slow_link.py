"""A slow private link between two ranks: two network namespaces, a veth pair, `tc tbf`. Needs root and CAP_NET_ADMIN.

    with slow_link("400mbit") as link:
        link.run([sys.executable, "program.py"])      # rank 0 and rank 1, each in a namespace of its own

On loopback the cores are the bottleneck and a link cannot be contended; here it is the link. `reason()` says why it
cannot be made, or nothing. The two namespaces are taken away again, whatever happens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

ADDRESSES = ("10.99.7.1", "10.99.7.2")


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
    """Two namespaces and the interface in each."""

    spaces: tuple[str, str]
    interfaces: tuple[str, str]

    def run(self, command: Sequence[str], timeout_s: float) -> None:
        """Start the command once in each namespace with RANK, MASTER and the interface; wait for both."""
        started = []
        for rank in (0, 1):
            environment = {
                **os.environ, "RANK": str(rank), "MASTER": ADDRESSES[0], "GLOO_SOCKET_IFNAME": self.interfaces[rank],
                "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            words = ["ip", "netns", "exec", self.spaces[rank], *command]
            started.append(subprocess.Popen(words, env=environment))
        try:
            for process in started:
                if process.wait(timeout_s):
                    raise RuntimeError(f"a rank ended with status {process.returncode}")
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()


@contextmanager
def slow_link(rate: str) -> Iterator[SlowLink]:
    """`rate` as tc writes it, e.g. 400mbit."""
    tag = os.getpid()
    spaces, faces = (f"wt{tag}a", f"wt{tag}b"), (f"v{tag}a", f"v{tag}b")

    def call(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    try:
        for space in spaces:
            call("ip", "netns", "add", space)
        call("ip", "link", "add", faces[0], "netns", spaces[0], "type", "veth", "peer", "name", faces[1], "netns",
             spaces[1])  # fmt: skip
        for space, face, address in zip(spaces, faces, ADDRESSES, strict=True):
            call("ip", "-n", space, "addr", "add", f"{address}/24", "dev", face)
            call("ip", "-n", space, "link", "set", face, "up")
            call("ip", "-n", space, "link", "set", "lo", "up")
            call("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", face, "root", "tbf", "rate", rate, "burst",
                 "256kb", "latency", "200ms")  # fmt: skip
        yield SlowLink(spaces, faces)
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
