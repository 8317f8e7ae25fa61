"""`sacct --json`, `squeue --json` and `scontrol show jobs --json` by the names of sacct's columns.

Numbers are plain, or `{set, infinite, number}` in newer releases; times are Unix seconds, 0 where there is none; limits
are minutes. Source: Slurm's OpenAPI data parser, releases 21.08 to 24.11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from windtunnel.studies.fleet.jobs.slurm_records import Row, as_sacct

Object = Mapping[str, object]
TIMES = {"submission": "Submit", "eligible": "Eligible", "start": "Start", "end": "End"}
SPANS = {"elapsed": "ElapsedRaw", "suspended": "Suspended"}


def is_slurm(items: Sequence[object]) -> bool:
    """Whether a document's jobs are Slurm's."""
    first = items[0] if items else None
    return isinstance(first, Mapping) and "job_id" in first and ("time" in first or "job_state" in first)


def rows_of(items: Sequence[object], now_s: object) -> Iterator[tuple[int, Row]]:
    """Place and cells of each job; `now_s`: when squeue looked, where it says so."""
    for place, item in enumerate(items, 1):
        if isinstance(item, Mapping):
            yield place, _accounted(item) if "time" in item else _queued(item, _number(now_s))


def _accounted(job: Object) -> Row:
    """A job of sacct."""
    array, het, time, tres, state = (_mapping(job.get(key)) for key in ("array", "het", "time", "tres", "state"))
    row = {
        **_common(job),
        "JobID": _name(job, array.get("job_id"), array.get("task_id"), array.get("task"), het),
        "User": _text(job.get("user")),
        "State": _word(state.get("current")),
        "Reason": _text(state.get("reason")),
        "NNodes": _text(_number(job.get("allocation_nodes"))),
        "AllocTRES": _tres(tres.get("allocated")),
        "ReqTRES": _tres(tres.get("requested")),
        "TimelimitRaw": _text(_number(time.get("limit"))),
    }
    row |= {column: _text(_number(time.get(key)) or None) for key, column in TIMES.items()}
    return row | {column: _text(_number(time.get(key))) for key, column in SPANS.items()}


def _queued(job: Object, now_s: int | None) -> Row:
    """A job of squeue or scontrol."""
    start = _number(job.get("start_time"))
    row = {
        **_common(job),
        "JobID": _name(
            job, job.get("array_job_id"), job.get("array_task_id"), job.get("array_task_string"),
            {"job_id": job.get("het_job_id"), "job_offset": job.get("het_job_offset")},
        ),
        "User": _text(job.get("user_name")),
        "State": _word(job.get("job_state")),
        "Reason": _text(job.get("state_reason")),
        "NNodes": _text(_number(job.get("node_count"))),
        "AllocTRES": _text(job.get("tres_alloc_str")),
        "ReqTRES": _text(job.get("tres_req_str")),
        "TimelimitRaw": _text(_number(job.get("time_limit"))),
        "Submit": _text(_number(job.get("submit_time")) or None),
        "Eligible": _text(_number(job.get("eligible_time")) or None),
        "Start": _text(start or None),
        "End": _text(_number(job.get("end_time")) or None),
        "ElapsedRaw": str(now_s - start) if now_s and start and now_s >= start else "",
    }  # fmt: skip
    return as_sacct(row, _text(job.get("tres_per_node")))


def _common(job: Object) -> Row:
    names = {"Account": "account", "Partition": "partition", "QOS": "qos", "Cluster": "cluster"}
    row = {column: _text(job.get(key)) for column, key in names.items()}
    return row | {
        "Priority": _text(_number(job.get("priority"))), "Restarts": _text(_number(job.get("restart_cnt"))),
    }  # fmt: skip


def _name(job: Object, array: object, task: object, tasks: object, het: Object) -> str:
    """The JobID as sacct writes it: 7, 7_3, 7_[4-9], 7+1."""
    plain, array_id, het_id = _number(job.get("job_id")), _number(array), _number(het.get("job_id"))
    if array_id:
        number = _number(task)
        if number is not None:
            return f"{array_id}_{number}"
        if isinstance(tasks, str) and tasks:
            return f"{array_id}_[{tasks.strip('[]')}]"
    if het_id:
        return f"{het_id}+{_number(het.get('job_offset')) or 0}"
    return _text(plain)


def _tres(value: object) -> str:
    """`[{type: gres, name: gpu, count: 8}]` as `gres/gpu=8`."""
    parts = [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
    return ",".join(
        f"{part.get('type')}{'/' if part.get('name') else ''}{part.get('name') or ''}={_number(part.get('count')) or 0}"
        for part in parts
    )


def _word(value: object) -> str:
    return _text(value[0] if isinstance(value, list) and value else value)


def _number(value: object) -> int | None:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value == value else None


def _mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
