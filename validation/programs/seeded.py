"""More scripts with a bug each, and healthy ones of like shapes, captured from the command line: two sets.

    python validation/programs/seeded.py [--only "ring"] [--ranks 8] [--third]

The scripts are in `seeded_bugs.py` and `seeded_healthy.py`; the third set, of what trainers of 2025 and 2026 get wrong,
in `seeded_bugs_2026.py` and `seeded_healthy_2026.py`. One line each; exit status 1 where a bug is missed, told at
another line or of other ranks, or a healthy script is spoken of. The first set is `tests/unit/real/capture/bugged.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from seeded_bugs import BUGS, HEAD, Bug
from seeded_bugs_2026 import BUGS_2026
from seeded_healthy import HEALTHY
from seeded_healthy_2026 import HEALTHY_2026


def captured(script: str, ranks: int) -> tuple[int, list[dict[str, object]], str]:
    """(exit status, findings, the last line of its errors) of a capture."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(HEAD + script)
        line = ["capture", "--world-size", str(ranks), "--out", "captured", "--json", "train.py"]
        done = subprocess.run(
            [sys.executable, "-m", "windtunnel", *line], cwd=folder, capture_output=True, text=True, check=False
        )
    try:
        found = json.loads(done.stdout).get("findings", [])
    except ValueError:
        found = []
    return done.returncode, found, (done.stderr.strip().splitlines() or [""])[-1]


def verdict(bug: Bug, ranks: int) -> tuple[bool, str]:
    """Whether a bug is told with its line and ranks; and what was said."""
    status, found, last = captured(bug.script, ranks)
    lines = [f"train.py:{n}" for n, text in enumerate((HEAD + bug.script).splitlines(), 1) if text.endswith("# here")]
    shown = f"status {status}"
    if not found:
        return False, f"{shown}: NOT FOUND; {last[:300]}"
    first = found[0]
    kind, line, ranks_named = str(first["kind"]), str(first["line"]), set(first["ranks"])  # type: ignore[call-overload]
    is_fatal = first.get("effect") in ("hang", "crash")
    right = {
        "kind": kind in bug.kinds,
        "line": any(line.endswith(wanted) for wanted in lines),
        "ranks": not ranks_named.isdisjoint(bug.ranks),
        "status": status == (4 if is_fatal else 0),
        "group": bool(first["group"]) or kind == "exception",  # of a rank alone
    }
    wrong = [name for name, fits in right.items() if not fits]
    text = f"{shown}: {kind} at {line.rpartition('/')[2]} of {sorted(ranks_named)}, group {first['group']}"
    if wrong:
        text += f"; WRONG {', '.join(wrong)}, wanted {lines}: {str(first['text'])[:300]}"
    return not wrong, text


def main() -> int:
    """Capture all, or those whose name holds these words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--slice", type=int, nargs=2, default=(0, 1000), help="from which to before which")
    parser.add_argument("--third", action="store_true", help="the third set instead of the second")
    given = parser.parse_args()
    right, count = 0, 0
    bugs, healthy = (BUGS_2026, HEALTHY_2026) if given.third else (BUGS, HEALTHY)
    wanted = {name for name in [*bugs, *healthy][slice(*given.slice)] if given.only in name}
    for name, bug in bugs.items():
        if name in wanted:
            found, text = verdict(bug, given.ranks)
            right, count = right + found, count + 1
            print(f"{'found' if found else 'MISSED'}: {name}: {text}", flush=True)
    for name, script in healthy.items():
        if name in wanted:
            status, said, last = captured(script, given.ranks)
            quiet = status == 0 and not said
            right, count = right + quiet, count + 1
            what = "" if quiet else f": status {status}, {said[:1]} {last[:300]}"
            print(f"{'quiet' if quiet else 'FALSE'}: {name}{what}", flush=True)
    print(f"{right} of {count} as they should be")
    return 0 if right == count else 1


if __name__ == "__main__":
    sys.exit(main())
