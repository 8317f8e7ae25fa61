"""A real Slurm on one machine: workloads of short jobs under its own scheduler, and its log of them.

    apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurmdbd \
        mariadb-server munge
    python validation/fleet/slurm_box.py FOLDER --seeds 0-9,12 [--at-once 5] [--jobs 110]

As root, nightly, not in CI. Eight nodes of eight GPUs (device files of no meaning); jobs sleep. Each seed draws a kind
of site, its configuration and its jobs (`slurm_workloads.py`); `FOLDER/SEED/` gets slurm.conf, qos.txt and assoc.txt
(`sacctmgr -P show ...`), log.txt (`sacct -P -D`) and jobs.txt (what was submitted, from the second when it began).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

from slurm_workloads import Workload, draw

ROOT = Path("/tmp/slurm_box")
ACCOUNTS = threading.Lock()  # what one cluster adds another may find there, and not add for itself
MOST_S = 900
FIELDS = (
    "JobID,JobIDRaw,User,Account,Partition,QOS,Priority,Submit,Eligible,Start,End,ElapsedRaw,Suspended,Timelimit,State,"
    "Reason,NNodes,AllocTRES,ReqTRES,NodeList,Flags"
)
QOS = (
    "Name,Priority,GraceTime,Preempt,PreemptMode,Flags,GrpTRES,GrpJobs,MaxTRES,MaxTRESPU,MaxJobsPU,MaxTRESPA,MaxJobsPA"
)
TOLD = (
    *("submit_batch_job: JobId", "Running job scheduler", "backfill: beginning", "Allocate JobId"),
    *("Started JobId", "_job_complete: JobId"),
)
ASSOC = "Account,ParentName,User,Share,Priority,QOS,GrpTRES,GrpJobs,MaxTRES,MaxJobs"


def configuration(workload: Workload, folder: Path) -> str:
    """The slurm.conf of a cluster of the box."""
    port = 21000 + 20 * workload.seed
    host = os.uname().nodename
    lines = [
        f"ClusterName=box{workload.seed}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={port}",
        f"AuthInfo=socket={ROOT}/munge.sock",
        "SlurmUser=root",
        "SlurmdUser=root",
        *(f"{key}={folder}/{name}" for key, name in (("StateSaveLocation", "state"), ("SlurmdSpoolDir", "spool/%n"))),
        *(f"{key}={folder}/{name}.pid" for key, name in (("SlurmctldPidFile", "ctld"), ("SlurmdPidFile", "%n"))),
        *(f"{key}={folder}/log/{name}.log" for key, name in (("SlurmctldLogFile", "ctld"), ("SlurmdLogFile", "%n"))),
        "SlurmctldDebug=debug",  # when its loops ran, to the millisecond
        "DebugFlags=Backfill",
        "SlurmdDebug=error",
        "ProctrackType=proctrack/pgid",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SchedulerType=sched/backfill",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        "AccountingStoragePort=21990",
        f"AccountingStoragePass={ROOT}/munge.sock",
        *([] if workload.kind == "unlike" else ["AccountingStorageTRES=gres/gpu"]),
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "MessageTimeout=60",
        "SlurmdTimeout=1200",
        "KillWait=1",
        "GresTypes=gpu",
        *(_node(words, host, port) for words in workload.nodes),
        *workload.configuration,
    ]
    return "\n".join(lines) + "\n"


def _node(words: str, host: str, port: int) -> str:
    """A line of nodes n[A-B], each of which has a port of its own."""
    name, _, has = words.partition(" ")
    first, last = (port + int(number) for number in re.findall(r"\d+", name))
    where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}]"
    return f"NodeName={name} {where} RealMemory=100000 State=UNKNOWN {has}"


def _devices(words: str) -> str:
    """What gres.conf says of a line of nodes."""
    name, gres = words.partition(" ")[0], words.rpartition("Gres=")[2].split(":")
    of = f" Type={gres[1]}" if len(gres) > 2 else ""
    return f"NodeName={name} Name=gpu{of} File=/dev/tty[0-{int(gres[-1]) - 1}]\n"


def run(seed: int, out: Path, jobs: int) -> str:
    """One workload, from an empty cluster to its log."""
    workload = draw(seed, jobs)
    folder = ROOT / f"box{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("state", "log", *(f"spool/n{node}" for node in range(1, 9))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    target = out / str(seed)
    target.mkdir(parents=True, exist_ok=True)
    conf = folder / "slurm.conf"
    conf.write_text(configuration(workload, folder))
    (folder / "gres.conf").write_text("".join(map(_devices, workload.nodes)))
    environment = {**os.environ, "SLURM_CONF": str(conf), "SLURM_TIME_FORMAT": "%s"}

    def slurm(*words: str) -> str:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        said = done.stdout + done.stderr
        if done.returncode and "already" not in said and "Nothing new" not in said:
            raise RuntimeError(f"{' '.join(words)}: {said}")
        return done.stdout

    with ACCOUNTS:
        slurm("sacctmgr", "-i", "add", "cluster", f"box{seed}")
        for words in workload.accounting:
            if words[:2] == ("add", "qos"):  # partitions of slurm.conf may name them
                slurm("sacctmgr", "-i", *words)
    children = []
    log = (folder / "log" / "out").open("w")
    try:
        children.append(subprocess.Popen(["slurmctld", "-D", "-c"], env=environment, stdout=log, stderr=log))
        time.sleep(4)
        began = time.time()  # of slurmctld, near enough: of its periods
        with ACCOUNTS:
            for words in workload.accounting:  # afterwards: it is slurmctld that makes gres/gpu known
                slurm("sacctmgr", "-i", *(word.replace("CLUSTER", f"box{seed}") for word in words))
        for node in range(1, 9):
            words = ["slurmd", "-D", "-N", f"n{node}"]
            children.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))
        for _ in range(60):
            time.sleep(2)
            if slurm("sinfo", "-h", "-o", "%D %t").split() == ["8", "idle"]:
                break
        else:
            raise RuntimeError(f"nodes of {seed}: {slurm('sinfo', '-N')}")
        time.sleep(60 - (time.time() - began) % 60)
        zero = time.time()
        for job in workload.jobs:
            time.sleep(max(zero + job.submit_s - time.time(), 0.0))
            slurm("sbatch", *job.words, "-o", "/dev/null", "-D", "/tmp", "--wrap", f"sleep {job.lasts_s:g}")
        while slurm("squeue", "-h").strip():
            if time.time() > zero + MOST_S:
                raise RuntimeError(f"{seed}: jobs are left after {MOST_S} s: {slurm('squeue')}")
            time.sleep(3)
        time.sleep(3)
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(zero))
        (target / "log.txt").write_text(slurm("sacct", "-P", "-D", "-X", "-a", "-S", begin, "-o", FIELDS))
        (target / "qos.txt").write_text(slurm("sacctmgr", "-P", "show", "qos", f"format={QOS}"))
        assoc = slurm("sacctmgr", "-P", "show", "assoc", f"cluster=box{seed}", f"format={ASSOC}")
        (target / "assoc.txt").write_text(assoc)
        told = (folder / "log" / "ctld.log").read_text(errors="replace").splitlines()
        (target / "ctld.log").write_text("".join(f"{line}\n" for line in told if any(word in line for word in TOLD)))
        kept = [line for line in conf.read_text().splitlines() if str(ROOT) not in line]
        (target / "slurm.conf").write_text("\n".join(kept) + "\n")
        rows = [{"submit_s": each.submit_s, "lasts_s": each.lasts_s, "words": each.words} for each in workload.jobs]
        (target / "jobs.json").write_text(json.dumps({"kind": workload.kind, "zero": zero, "jobs": rows}))
    finally:
        for child in reversed(children):
            child.terminate()
        for child in children:
            child.wait(timeout=30)
    return f"{seed} {workload.kind}: {len(workload.jobs)} jobs in {time.time() - zero:.0f} s"


def services() -> list[subprocess.Popen[bytes]]:
    """munged, the database and slurmdbd."""
    ROOT.mkdir(exist_ok=True)
    ROOT.chmod(0o755)
    key, data = ROOT / "munge.key", ROOT / "db"
    if not key.exists():
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
    if not data.exists():
        words = ["mariadb-install-db", "--user=root", f"--datadir={data}", "--auth-root-authentication-method=normal"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    names = {"key-file": key, "socket": ROOT / "munge.sock", "log-file": ROOT / "munge.log"}
    names |= {"pid-file": ROOT / "munge.pid", "seed-file": ROOT / "munge.seed"}
    munged = ["munged", "--foreground", "--force", *(f"--{name}={place}" for name, place in names.items())]
    socket = ROOT / "db.sock"
    database = [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={data}",
        f"--socket={socket}",
        "--port=21991",
        "--bind-address=127.0.0.1",
    ]
    children = [subprocess.Popen(munged), subprocess.Popen([*database, f"--pid-file={ROOT}/db.pid"])]
    time.sleep(5)
    subprocess.run(["mariadb", f"--socket={socket}", "-e", "create database if not exists slurm_acct_db"], check=True)
    conf = ROOT / "slurmdbd.conf"
    conf.write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={ROOT}/munge.sock\nDbdHost=localhost\nDbdPort=21990\nSlurmUser=root\n"
        f"LogFile={ROOT}/dbd.log\nPidFile={ROOT}/dbd.pid\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n"
        "StoragePort=21991\nStorageUser=root\nStorageLoc=slurm_acct_db\nDebugLevel=info\n"
    )
    conf.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(ROOT / "slurm.conf")}  # it looks beside it
    children.append(subprocess.Popen(["slurmdbd", "-D"], env=environment))
    time.sleep(8)
    return children


def main() -> None:
    """Run the workloads of some seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=110)
    given = parser.parse_args()
    spans = [part.partition("-") for part in given.seeds.split(",")]
    seeds = [seed for first, _, last in spans for seed in range(int(first), int(last or first) + 1)]
    children = services()
    try:
        with concurrent.futures.ThreadPoolExecutor(given.at_once) as pool:
            futures = [pool.submit(run, seed, given.folder, given.jobs) for seed in seeds]
            for future in concurrent.futures.as_completed(futures):
                error = future.exception()
                print(future.result() if error is None else f"failed: {error}", flush=True)
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait(timeout=60)


if __name__ == "__main__":
    main()
