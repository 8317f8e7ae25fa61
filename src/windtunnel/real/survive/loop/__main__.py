"""One process that is started by itself: `python -m windtunnel.real.survive.loop script.py [arguments]`."""

from __future__ import annotations

import sys
from pathlib import Path

from windtunnel.real.survive.live.fork_server import run_script

sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
run_script()
