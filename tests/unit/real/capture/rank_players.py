"""Ranks without PyTorch, for the launcher's tests: each does what it is told, and leaves an outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.process import state_of
from windtunnel.real.capture.processes.file_mailbox import FileMailbox, write_whole
from windtunnel.real.capture.processes.other_threads import come_to_rest


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answer(box: FileMailbox, rank: int, other: str) -> None:
    box.get(f"group/{other}>{rank}/0", 30.0)
    box.post(f"group/{rank}>{other}/0", str(rank).encode())


def play(task: dict[str, Any]) -> int:
    folder, rank = Path(task["folder"]), task["rank"]
    box = FileMailbox(folder, rank)
    outcome: dict[str, Any] = {"status": "ok", "rank": rank, "seconds": 0.0}
    write_whole(folder / f"pid_{rank}", str(os.getpid()).encode())
    signal.signal(signal.SIGUSR1, lambda *_: write_whole(folder / f"where_{rank}", b"train.py:7"))
    for word in task["does"].get(str(rank), task["does"].get("*", "")).split():
        what, _, about = word.partition(":")
        if what == "send":
            box.post(f"group/{rank}>{about}/0", str(rank).encode())
        elif what == "wait":
            outcome["heard"] = box.get(f"group/{about}>{rank}/0", 30.0).decode()
        elif what == "aside":  # a thread that answers, while this rank goes on
            threading.Thread(target=answer, args=(box, rank, about), daemon=True).start()
        elif what == "over":
            outcome["rested"] = come_to_rest(is_let_go=box.is_let_go)
        elif what == "cut":
            outcome["is_cut"] = True
        elif what == "whole":  # there are steps to come: it is told in vain that rank 0 was cut short
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
        elif what == "behind":
            signal.signal(signal.SIGPROF, signal.default_int_handler)
            try:
                box.get(f"group/{about}>{rank}/0", 30.0)
            except KeyboardInterrupt:
                outcome["is_cut"] = True
        elif what == "barrier":
            box.get(f"barrier/{about}>{about}/world/0", 30.0)
        elif what == "sleep":
            time.sleep(float(about))
        elif what == "compute":
            spent = time.process_time()
            while time.process_time() - spent < float(about):
                pass
        elif what == "begun":
            until((folder / f"pid_{about}").exists)
        elif what == "stands":
            pid = int((folder / f"pid_{about}").read_text())
            until(lambda pid=pid: state_of(pid)[0] == "T")  # type: ignore[misc]
        elif what == "tick":
            for _ in range(int(about)):
                time.sleep(0.01)
                with (folder / f"ticks_{rank}").open("a") as ticks:
                    ticks.write(".")
        elif what == "fail":
            outcome = {"status": "error", "message": f"train.py:3: ValueError: {about}", "details": "trace"}
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "say":
            print(about)
        elif what == "vanish":
            os._exit(3)
        elif what == "workers":  # that outlive the rank, one of them in a session of its own
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    write_whole(folder / f"outcome_{rank}.json", json.dumps(outcome).encode())
    return 0
