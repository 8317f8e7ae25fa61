"""20 real processes under two policies, beside the simulation that is given their measured run times.

    python validation/fleet/live.py [policies]

Each job sleeps in steps and keeps a checkpoint. What a step takes, and what a start costs, is measured first, alone.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP_S = 0.1
WORKER = """
import os, sys, time
path, steps = os.path.join(os.environ["WINDTUNNEL_FOLDER"], "done"), int(sys.argv[1])
done = int(open(path).read()) if os.path.exists(path) else 0
while done < steps:
    time.sleep(STEP_S)
    done += 1
    with open(path + ".new", "w") as file:
        file.write(str(done))
    os.replace(path + ".new", path)
""".replace("STEP_S", str(STEP_S))


def main() -> None:
    draw = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        worker = here / "worker.py"
        worker.write_text(WORKER)
        alone = []
        for steps in (1, 31):
            (here / f"alone-{steps}").mkdir()
            began = time.monotonic()
            environment = {"WINDTUNNEL_FOLDER": str(here / f"alone-{steps}")}
            subprocess.run([sys.executable, str(worker), str(steps)], check=True, env=environment)
            alone.append(time.monotonic() - began)
        step_s = (alone[1] - alone[0]) / 30
        start_s = alone[0] - step_s
        print(f"measured alone: {step_s * 1000:.1f} ms a step, {start_s * 1000:.0f} ms a start")
        rows = [
            (f"job-{at}", round(draw.uniform(0, 20), 2), draw.choice([1, 1, 2, 4]), draw.randint(20, 70))
            for at in range(20)
        ]
        text = "\n".join(
            f"- {{job: {name}, submit_s: {submit}, gpus: {gpus}, duration_s: {start_s + steps * step_s:.3f},"
            f" command: '{sys.executable} {worker} {steps}'}}"
            for name, submit, gpus, steps in rows
        )
        (here / "jobs.yaml").write_text(text)
        for policy in sys.argv[1:] or ["tiresias", "srtf"]:
            words = ["fleet", "live", here / "jobs.yaml", "--out", here / policy, "--cluster", "gpu:1x4"]
            words += ["--restart", f"{start_s:.3f}"]
            command = [sys.executable, "-m", "windtunnel", *map(str, words), "--policy", policy, "--json"]
            answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            real, simulated = answer["jct_mean_s"], answer["simulated_jct_mean_s"]
            each = [abs(row["jct_s"] / row["simulated_jct_s"] - 1) for row in answer["jobs"]]
            stops = sum(row["preemptions"] for row in answer["jobs"])
            print(
                f"{policy}: mean JCT {real:.2f} s real, {simulated:.2f} s simulated ({real / simulated - 1:+.1%});"
                f" worst job {max(each):.1%} off; {stops} preemptions",
                flush=True,
            )


if __name__ == "__main__":
    main()
