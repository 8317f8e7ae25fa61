"""`scontrol show job`, the job completion log and `squeue`: what Slurm says otherwise, in the columns of `sacct`.

    scontrol show job [-o]   records of Name=value; StartTime and EndTime of a job that has not started, and EndTime of
                             one that runs, are what Slurm expects, and are left out
    jobcomp/filetxt          a record a line; its TimeLimit is in minutes
    squeue -o '%i|%P|...'    a table with squeue's headings; it must say when jobs came (`%V`)

Sources: scontrol(1), squeue(1) and slurm.conf(5) (JobCompType) of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import read_text

Row = dict[str, str]
FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s+[A-Z][\w/:]*=|\s*$)", re.DOTALL)
RECORD = re.compile(rb"\s*JobId=\d")
NAMES = {
    "SubmitTime": "Submit", "EligibleTime": "Eligible", "StartTime": "Start", "EndTime": "End", "RunTime": "Elapsed",
    "TimeLimit": "Timelimit", "TRES": "AllocTRES", "Tres": "AllocTRES", "AllocTRES": "AllocTRES", "ReqTRES": "ReqTRES",
    "NumNodes": "NNodes", "NodeCnt": "NNodes", "Account": "Account", "Partition": "Partition", "QOS": "QOS",
    "Priority": "Priority", "JobState": "State", "Reason": "Reason", "Restarts": "Restarts",
}  # fmt: skip
HEADINGS = {
    "JOBID": "JobID", "SUBMIT_TIME": "Submit", "ELIGIBLE_TIME": "Eligible", "START_TIME": "Start",
    "END_TIME": "End", "TIME": "Elapsed", "TIME_LIMIT": "Timelimit", "TRES_ALLOC": "AllocTRES", "TRES": "AllocTRES",
    "NODES": "NNodes", "USER": "User", "ACCOUNT": "Account", "PARTITION": "Partition", "QOS": "QOS", "ST": "State",
    "PRIORITY": "Priority", "STATE": "State", "REASON": "Reason", "RESTARTS": "Restarts",
}  # fmt: skip
CODES = {
    "PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "CG": "COMPLETED", "COMPLETING": "COMPLETED",
    "CD": "COMPLETED", "F": "FAILED", "CA": "CANCELLED", "TO": "TIMEOUT", "NF": "NODE_FAIL", "PR": "PREEMPTED",
    "OOM": "OUT_OF_MEMORY", "CF": "RUNNING", "CONFIGURING": "RUNNING", "RQ": "REQUEUED", "DL": "DEADLINE",
    "BF": "BOOT_FAIL",
}  # fmt: skip
PER_NODE = re.compile(r"\b(gpu|shard|mps)(?::([^:=,]+))?[:=](\d+)(?=,|$|\()")  # gres:gpu:a100:4, gres/gpu=4, gpu:4
BEFORE_START = ("PENDING", "REQUEUED")
ASK = "write it with `squeue -a -o '%i|%V|%S|%e|%M|%l|%D|%b|%u|%a|%P|%q|%Q|%T|%r'`"


def is_records(first: bytes) -> bool:
    """Whether the first line of a file begins a record of `scontrol show job` or of the completion log."""
    return RECORD.match(first) is not None


def records(path: Path) -> Iterator[tuple[int, Row]]:
    """Line and cells of each job, by sacct's names. Raises InputFileError."""
    begin_line, record = 0, ""
    for number, line in enumerate([*read_text(path).splitlines(), "JobId=0"], 1):
        if is_records(line.encode()):
            if record:
                # A name's first: commands have some too.
                yield begin_line, _of_record(dict(reversed(FIELD.findall(record))))
            begin_line, record = number, line
        else:
            record += f" {line}"


def _of_record(fields: dict[str, str]) -> Row:
    row = {NAMES[name]: value.strip() for name, value in fields.items() if name in NAMES}
    job = fields.get("JobId", "")
    if "ArrayJobId" in fields and "ArrayTaskId" in fields:
        task = fields["ArrayTaskId"]
        job = f"{fields['ArrayJobId']}_{task if task.isdecimal() else f'[{task}]'}"
    elif "HetJobId" in fields and "HetJobOffset" in fields:
        job = f"{fields['HetJobId']}+{fields['HetJobOffset']}"
    if "RunTime" not in fields and row.get("Timelimit", "").isdecimal():  # of the completion log, in minutes
        row["TimelimitRaw"] = row.pop("Timelimit")
    return as_sacct(
        {**row, "JobID": job, "User": fields.get("UserId", "").partition("(")[0]}, fields.get("TresPerNode", "")
    )


def of_squeue(path: Path, row: Row) -> Row:
    """A row of squeue by sacct's names. Raises InputFileError where squeue was not asked when jobs came."""
    if "SUBMIT_TIME" not in row:
        raise InputFileError(path, "is a table of squeue without SUBMIT_TIME", ASK)
    cells = {HEADINGS[name]: value for name, value in row.items() if name in HEADINGS}
    for name in ("Elapsed", "Timelimit"):
        if re.fullmatch(r"\d+:\d\d", cells.get(name, "")):
            cells[name] = f"0:{cells[name]}"  # squeue leaves the hours out
    return as_sacct(cells, row.get("TRES_PER_NODE", row.get("GRES", "")))


def as_sacct(row: Row, per_node: str) -> Row:
    """As sacct has it: nodes that boot are held, a job that completes has ended, what is only expected is left out."""
    state = row["State"] = CODES.get(row.get("State", ""), row.get("State", ""))
    if state in BEFORE_START:
        row |= {"Start": "", "End": "", "Elapsed": ""}
    elif state in ("RUNNING", "SUSPENDED"):
        row["End"] = ""
    return on_each_node(row, per_node)


def on_each_node(row: Row, per_node: str) -> Row:
    """With what is asked of each node, such as `gpu:a100_3g.20gb:1` or `shard:4`, where its resources count none.

    Where they count GPUs without their types, only the types are taken.
    """
    asked, nodes = PER_NODE.findall(per_node), row.get("NNodes", "").partition("-")[0]
    has = f"{row.get('AllocTRES', '')},{row.get('ReqTRES', '')}"
    if re.search("gres/(gpu|shard|mps)", has):
        untyped = "gres/gpu=" in has and "gres/gpu:" not in has
        asked = [each for each in asked if untyped and each[0] == "gpu" and each[1]]
    if asked and nodes.isdecimal():
        column = "AllocTRES" if "gres/gpu=" not in row.get("ReqTRES", "") or row.get("AllocTRES") else "ReqTRES"
        kinds = [(f"{name}:{kind}" if kind else name, int(count) * int(nodes)) for name, kind, count in asked]
        tres = [row.get(column, ""), *(f"gres/{kind}={count}" for kind, count in kinds)]
        row[column] = ",".join(filter(None, tres))
        if column == "AllocTRES":  # the type that is asked for is told in ReqTRES
            types = (f"gres/{kind}={count}" for kind, count in kinds if kind.startswith("gpu:"))
            row["ReqTRES"] = ",".join(filter(None, (row.get("ReqTRES", ""), *types)))
    return row
