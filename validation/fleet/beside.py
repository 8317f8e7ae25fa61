"""A real service beside real batch jobs on this machine: its p95 and the machine's use, alone and beside, in turns.

    sudo python validation/fleet/beside.py [--seconds 150] [--turn 10] [--jobs count,sort] [--without]

The service answers HTTP requests that take some milliseconds of Python each, a hundred a second. Beside it, as many
endless batch jobs as cores: one counts, one sorts what lies in memory, one writes files. `--without`: the same with a
target that is never missed, no idle class and no limits: batch jobs stand beside the service as plain processes would.
Printed: p95 alone and beside and their ratio, use of the machine and its ratio, what the controller did.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from windtunnel.questions.asked.fleet.further import FleetBeside
from windtunnel.studies.fleet.live.beside import answer_beside
from windtunnel.studies.fleet.live.groups import Version1, Version2

PORT = 18473
SERVICE = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    def do_GET(self):
        body = str(sum(i * i for i in range(40000))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""
JOBS = {
    "count": "while True: sum(range(100000))",
    "sort": "import random\nnumbers = [random.random() for _ in range(2000000)]\nwhile True: sorted(numbers)",
    "write": "import os\nwhile True:\n    with open('scratch', 'wb') as file:\n        file.write(bytes(1 << 24))\n"
    "        os.fsync(file.fileno())",
}


def main() -> None:
    """Run it, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--turn", type=float, default=10.0, help="seconds alone, and beside, in turns")
    parser.add_argument("--jobs", default=",".join(JOBS), help="names of batch jobs")
    parser.add_argument("--without", action="store_true", help="no controller")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "service.py").write_text(SERVICE)
        rows = []
        for job in words.jobs.split(","):
            (folder / f"{job}.py").write_text(JOBS[job])
            command = f"cd {folder} && exec {sys.executable} {job}.py"
            rows.append(f"  - {{job: {job}, cpus: 0.6, command: '{command}'}}")
        (folder / "jobs.yaml").write_text("jobs:\n" + "\n".join(rows))
        if words.without:
            for version in (Version1, Version2):
                version.stand_behind = version.stand_before = lambda self: None  # type: ignore[method-assign]
                version.limit_disks = version.limit_cores = version.run_on = lambda self, most: None  # type: ignore
        run = answer_beside(
            FleetBeside(
                jobs=str(folder / "jobs.yaml"),
                service=f"exec {sys.executable} {folder}/service.py",
                probe=f"http://127.0.0.1:{PORT}/",
                every=0.01,
                alone=words.turn,
                again=words.turn,
                longest=words.seconds,
                p95=60.0 if words.without else None,
            ),
            folder / "out",
        )
    beside_s, alone_s = run.p95_beside_s, run.p95_alone_s
    assert beside_s is not None, "a hundred requests a second"
    print(f"p95: {alone_s * 1e3:.2f} ms alone, {beside_s * 1e3:.2f} ms beside: {beside_s / alone_s:.3f} x")
    use, alone = run.use_beside, run.use_alone
    print(f"use of the machine: {alone:.1%} alone, {use:.1%} beside: {use / alone:.2f} x")
    print("cores of batch jobs, p95 in ms: " + ", ".join(f"{quota:.2f} {p95 * 1e3:.2f}" for _, p95, quota in run.curve))
    print(f"late {run.late_windows} of {run.windows} windows, frozen {run.freezes}, evicted {run.evictions} times")


if __name__ == "__main__":
    main()
