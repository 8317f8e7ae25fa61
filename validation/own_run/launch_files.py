"""Changes of a plan made in launch files of public repositories: as a patch that applies, and is read back.

    python validation/own_run/launch_files.py --gpus 64 FILE...

Each file is read; each change that gives a legal plan is written as the advice of `diagnose` writes it, applied by
`patch -p1` in a folder of its own, and read again. What is read has to be the very plan that was predicted, so that it
predicts the same. A file that names no model is taken as one of Llama 3 8B. The files are not part of this repository.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from windtunnel.errors import UserError
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model import transformer
from windtunnel.physics.model.catalogue import load_model
from windtunnel.questions.reading import plain_part
from windtunnel.studies.planning.oracle import Layout, laid_out, read_plan
from windtunnel.studies.training.launch import read_native
from windtunnel.studies.training.launch.patch import diff, patch, read_again


def changes_of(base: Layout) -> Iterator[dict[str, Any]]:
    """What advice proposes most: micro-batches, recomputation, parallel sizes, sharding."""
    plan = base.plan
    yield {"micro_batch": 2 * plan.micro_batch}
    if plan.micro_batch % 2 == 0:
        yield {"micro_batch": plan.micro_batch // 2}
    yield {"recompute": "none" if plan.recompute != "none" else "full"}
    yield {"tp": 2 * plan.tp}
    if plan.pp > 1:
        yield {"pp": plan.pp // 2}
    if plan.zero_stage is not None:
        yield {"zero_stage": 3 if plan.zero_stage < 3 else 2}


def outcome(path: Path, base: Layout, changes: dict[str, Any]) -> str:
    """What came of a change."""
    asked, n_gpus = base.user_plan, base.cluster.n_gpus
    free = {"dp": None} if asked.dp is not None else {}
    try:
        changed = asked.with_fields({**free, **changes})
        wanted = laid_out(base.model, base.cluster, changed)
    except UserError:
        return "no legal plan"
    try:
        before, after = (plain_part(asked), base.dp), (plain_part(changed), wanted.dp)
        text = patch(str(path), before, after, n_gpus, base.model.name)
    except UserError as error:
        return f"refused: {' '.join(str(error).split())[:60]}"
    if not text:
        return "no option in the file"
    with TemporaryDirectory() as folder:
        copy = Path(folder) / str(path).lstrip("/")
        copy.parent.mkdir(parents=True)
        shutil.copy(path, copy)
        run = subprocess.run(
            ["patch", "-p1", "--fuzz=0"], input=diff(str(path), text), text=True, cwd=folder, capture_output=True
        )
        if run.returncode or copy.read_text() != text:
            return "the patch does not apply"
    try:
        native = read_again(str(path), text, n_gpus).fields
        again = laid_out(base.model, base.cluster, read_plan({**plain_part(asked), **free, **native}))
    except UserError as error:
        return f"not read back: {' '.join(str(error).split())[:60]}"
    return "right" if again.plan == wanted.plan else "another plan is read back, so no diff is shown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--gpus", type=int, default=64)
    asked = parser.parse_args()
    cluster = parse_cluster(f"h100-sxm:{asked.gpus}")
    files: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for path in asked.files:
        try:
            native = read_native(path, asked.gpus)
            own = native.model or "llama-3-8b"
            model = (
                load_model(own)
                if isinstance(own, str)
                else transformer(**{**own, "vocab": own.get("vocab") or 128_256})
            )
            base = laid_out(model, cluster, read_plan({"global_batch": 512, "seq_len": 4096, **native.fields}))
        except UserError as error:
            files["not read"] += 1
            print(f"not read  {path}: {' '.join(str(error).split())[:110]}")
            continue
        each = [(changes, outcome(path, base, changes)) for changes in changes_of(base)]
        files["read"] += 1
        found.update(what for _, what in each)
        files["with a change that applies"] += any(what == "right" for _, what in each)
        print(f"{native.framework}  {path}: " + "; ".join(f"{changes} {what}" for changes, what in each))
    print(dict(files))
    print(dict(found))


if __name__ == "__main__":
    main()
