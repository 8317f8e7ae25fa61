"""Slurm's own files: slurm.conf, gres.conf, and what `sacctmgr -P show qos` and `sacctmgr -P show assoc` print.

Files are told apart by what is in them. Units: times are Slurm's ([days-]HH:MM:SS, minutes, or seconds where its page
says so), TRES are `gres/gpu=8`, of which a slice of MIG is one, `gres/gpu:a100_3g.20gb=2`, `gres/shard` and `gres/mps`
(other resources set no limit here, and are named by nobody). Nodes without GPUs are left out. Types of GPUs that
gres.conf names stand in place of slurm.conf's. Source: slurm.conf(5), gres.conf(5), sacctmgr(1) of 22.05.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import read_text
from windtunnel.files.table import read_table
from windtunnel.studies.fleet.parts.profile import SHARES_MOST, cuts_of
from windtunnel.studies.fleet.policies.slurm.cluster import (
    CANCEL,
    PREEMPT_OFF,
    REQUEUE,
    SUSPEND,
    Association,
    Cluster,
    Limits,
    Partition,
    Qos,
    Weights,
)

INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
SETTING = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)")
GRES = re.compile(r"(?:^|,)(?:gres/)?(gpu|shard|mps)(?::([^=:,(]+))?[:=](\d+)([KMG]?)")
SLICE = re.compile(r"\d+g\.\d+gb")  # MIG's names of its parts, such as a100_3g.20gb
RANGE = re.compile(r"([^\[\],]*)\[([\d,-]+)\]([^\[\],]*)")
COUNT = re.compile(r"(\d+)([KMG]?)")
SUFFIXES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
LONG = re.compile(r"\d{19}")  # numbers beyond 64 bits
SPAN = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
MODES = (REQUEUE, CANCEL, SUSPEND)
NODES_MOST = 100_000
INCLUDES_MOST = 8  # files one in another
PARAMETERS = {
    "bf_interval": ("backfill_interval_s", 1.0),
    "bf_resolution": ("resolution_s", 1.0),
    "bf_window": ("window_s", 60.0),
    "bf_max_job_test": ("depth", 1.0),
    "bf_max_job_user": ("depth_user", 1.0),
    "bf_max_job_part": ("depth_partition", 1.0),
    "bf_min_age_reserve": ("reserved_after_s", 1.0),
    "default_queue_depth": ("main_depth", 1.0),
}
ASSOC_TRES = {
    "gpus": ("GrpTRES",), "job_gpus": ("MaxTRES", "MaxTRESPerJob"), "node_gpus": ("MaxTRESPerNode", "MaxTRESPN"),
}  # fmt: skip
QOS_TRES = {
    **ASSOC_TRES, "user_gpus": ("MaxTRESPU", "MaxTRESPerUser"), "account_gpus": ("MaxTRESPA", "MaxTRESPerAccount"),
    "least_gpus": ("MinTRES", "MinTRESPerJob"),
}  # fmt: skip
FLAGS = {"defer": "deferred", "bf_one_resv_per_job": ""}
Asked = tuple[str, str, int]  # gpu, shard or mps, its type, how many


class Line(dict[str, str]):
    """Settings of a line by their names in small letters, and where the line stands."""

    def __init__(self, path: Path, number: int, words: Mapping[str, str]) -> None:
        super().__init__(words)
        self.path, self.number = path, number
        for key, value in self.items():
            if LONG.search(value):
                raise self.wrong(key, "has a number beyond 64 bits", "mend it")

    def wrong(self, key: str, problem: str, remedy: str) -> InputFileError:
        """An error of this line."""
        return InputFileError(self.path, f"line {self.number}: {key} = {self.get(key, '')[:40]!r} {problem}", remedy)

    def hosts(self, key: str, otherwise: str = "") -> list[str]:
        """Names of a setting. Raises InputFileError."""
        try:
            return hosts(self.get(key, otherwise))
        except ValueError:
            raise self.wrong(key, "is no list of names", "write ranges as n[1-3,7]") from None

    def count(self) -> int:
        """`Count` of a line of gres.conf, else that of its files. Raises InputFileError."""
        if "count" not in self:
            return len(self.hosts("file", "one"))
        match = COUNT.fullmatch(self["count"])
        if match is None:
            raise self.wrong("count", "is no count", "write a whole number, or one with K, M or G")
        return int(match[1]) * SUFFIXES[match[2]]


def read_cluster(paths: Sequence[Path], gpu: str = "gpu") -> Cluster:
    """A cluster from its files: slurm.conf, gres.conf, and what sacctmgr shows. Raises InputFileError."""
    cluster = Cluster()
    devices = _by_node([line for path in paths if _is_gres(path) for line in _lines(path)])
    for path in sorted(paths, key=lambda path: _is_table(path)):
        if _is_gres(path):
            continue
        if not _is_table(path):
            cluster = read_conf(path, gpu, devices)
            continue
        table = read_table(path, delimiter="|")
        rows = [Line(path, number, row) for number, row in table.rows()]
        if table.has("Share") and table.has("Account"):
            cluster = replace(cluster, associations=tuple(_association(row) for row in rows))
        elif table.has("Name"):
            cluster = replace(cluster, qos={row["Name"]: _qos(row) for row in rows})
        else:
            remedy = "give slurm.conf, or `sacctmgr -P show qos` or `sacctmgr -P show assoc format=Account,...,Share`"
            raise InputFileError(path, "is neither slurm.conf nor sacctmgr's QOS or associations", remedy)
    return cluster


def _is_table(path: Path) -> bool:
    first = next((line for line in read_text(path).splitlines() if line.strip()), "")
    return "|" in first and "=" not in first


def _is_gres(path: Path) -> bool:
    return not _is_table(path) and any(words.keys() & {"name", "autodetect"} for words in _lines(path))


def _by_node(lines: Sequence[Line]) -> dict[str, list[Asked]]:
    """What lines of gres.conf say, by node; under an empty name what they say of all."""
    rows = defaultdict[str, list[Asked]](list)
    for line in lines:
        for node in (line.hosts("nodename") or [""]) if "name" in line else ():
            rows[node].append((line["name"].lower(), line.get("type", ""), line.count()))
    return rows


def _asked(text: str) -> list[Asked]:
    return [(name, kind, int(count) * SUFFIXES[suffix]) for name, kind, count, suffix in GRES.findall(text)]


class _Node(NamedTuple):
    """A node of slurm.conf: GPUs, and their types."""

    gpus: int
    cpus: int
    weight: int
    type: str


def _gres(text: str, typed: Sequence[Asked]) -> tuple[Counter[str], str]:
    """What a node has: whole GPUs (`gpu`), slices by profile, `shard`; the types of its whole GPUs, as in `Cluster`.

    `typed`: of gres.conf.
    """
    named = {name for name, kind, _ in typed if kind or name == "shard"}
    rows = [row for row in _asked(text) if row[0] not in named]
    counts, types = Counter[str](), Counter[str]()
    for name, kind, count in [*rows, *(row for row in typed if row[0] in named)]:
        profile = SLICE.search(kind)
        counts[profile[0] if profile else name] += count
        if name == "gpu" and not profile:
            types[kind] += count
    if len(types) == 1:
        return counts, next(iter(types))
    return counts, "+".join(f"{kind}:{count}" for kind, count in sorted(types.items()))


def read_conf(path: Path, gpu: str = "gpu", devices: Mapping[str, Sequence[Asked]] = MappingProxyType({})) -> Cluster:
    """A cluster from slurm.conf. Raises InputFileError for one without nodes of GPUs."""
    settings: dict[str, str] = {}
    nodes: dict[str, _Node] = {}
    has: dict[str, Counter[str]] = {}
    partitions: list[Line] = []
    sets: dict[str, Line] = {}
    features: dict[str, list[str]] = {}
    usual: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
    shares: dict[int, str] = {}  # shards of a GPU, and a node that has so many
    for words in _lines(path):
        kind = next(iter(words))
        if kind == "nodeset":
            sets[words[kind]] = words
        elif kind not in usual:
            settings |= words
        elif words[kind] == "DEFAULT":
            usual[kind] |= words
        elif kind == "nodename":
            entry = Line(words.path, words.number, usual[kind] | words)
            for host in entry.hosts(kind):
                counts, of = _gres(entry.get("gres", ""), [*devices.get("", ()), *devices.get(host, ())])
                has[host] = counts
                whole, shards, _ = (counts.pop(each, 0) for each in ("gpu", "shard", "mps"))
                cut = cuts_of(counts, gpu, f"{words.path}: line {words.number}")[1]
                nodes[host] = _Node(whole + cut, _cpus(entry), _whole(entry.get("weight", "1"), 1), of)
                if whole:
                    if shards % whole or shards // whole > SHARES_MOST:
                        remedy = f"give a multiple of its GPUs, up to {SHARES_MOST:,} on each"
                        raise entry.wrong(kind, f"has {shards} shards on {whole} GPUs", remedy)
                    shares.setdefault(shards // whole, host)
            for feature in filter(None, entry.get("feature", entry.get("features", "")).split(",")):
                features.setdefault(feature, []).extend(entry.hosts(kind))
            if len(nodes) > NODES_MOST:
                raise InputFileError(path, f"names more than {NODES_MOST:,} nodes", "mend the ranges of NodeName")
        else:
            partitions.append(Line(words.path, words.number, usual[kind] | words))
    names = [name for name, node in nodes.items() if node.gpus]
    if not names:
        raise InputFileError(path, "names no node with Gres=gpu:N", "give the file that has the NodeName lines")
    sizes = tuple(nodes[name].gpus for name in names)
    if len(shares) > 1:
        unlike = ", ".join(f"{count} on each of {host}" for count, host in sorted(shares.items()))
        raise InputFileError(path, f"has unlike shards of GPUs: {unlike}", "give all GPUs as many, or none")
    bit = {name: 1 << at for at, name in enumerate(names)}
    groups = {
        name: [*words.hosts("nodes"), *features.get(words.get("feature", ""), ())] for name, words in sets.items()
    }
    partition_list = [_partition(words, bit, groups) for words in partitions]
    default = next((words["partitionname"] for words in partitions if words.get("default", "").upper() == "YES"), "")
    parameters = dict(re.findall(r"(\w+)(?:=([^,]*))?", settings.get("schedulerparameters", "")))
    every = _time_s(settings.get("prioritycalcperiod", ""))
    age, half = (_time_s(settings.get(key, "")) for key in ("prioritymaxage", "prioritydecayhalflife"))
    kind = settings.get("preempttype", "").lower()
    return Cluster(
        nodes=len(names),
        names=tuple(names),
        per_node=max(sizes),
        sizes=_unlike(sizes),
        types=tuple(nodes[name].type for name in names),
        heavy=_unlike(tuple(nodes[name].weight for name in names)),
        gpu=gpu,
        divided=tuple(has[name] for name in names) if any(has[name] for name in names) else (),
        shares=next(iter(shares), 0),
        cpus=tuple(nodes[name].cpus for name in names),
        partitions={partition.name: partition for partition in partition_list},
        default_partition=default or (partition_list[0].name if partition_list else ""),
        multifactor="multifactor" in settings.get("prioritytype", "basic"),
        weights=_weights(settings),
        most_age_s=Cluster.most_age_s if age is None else age,
        half_life_s=Cluster.half_life_s if half is None else half,
        calculated_every_s=Cluster.calculated_every_s if every is None else every,
        favours_small=settings.get("priorityfavorsmall", "").upper() == "YES",
        limits_hold=any(word in settings.get("accountingstorageenforce", "") for word in ("limits", "safe", "all")),
        preempts_by="qos" if "qos" in kind else "partition" if "partition" in kind else "",
        preempt=_mode(settings.get("preemptmode", "")) or PREEMPT_OFF,
        youngest_first="preempt_youngest_first" in parameters,
        exempt_s=_time_s(settings.get("preemptexempttime", "")) or 0.0,
        again_s=_whole(settings.get("killwait", ""), 30) + _whole(settings.get("messagetimeout", ""), 10),
        settings=_parameters(parameters),
    )


def _unlike(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Of each node, where they are not all the same."""
    return numbers if len(set(numbers)) > 1 else ()


def hosts(text: str) -> list[str]:
    """`n[1-3,7],x` as n1, n2, n3, n7, x. Raises ValueError for brackets without ranges."""
    names: list[str] = []
    for part in re.findall(r"[^\[,]*\[[^\]]*\][^,]*|[^,]+", text):
        match = RANGE.fullmatch(part)
        if match is None:
            if "[" in part or "]" in part:
                raise ValueError(part)
            names.append(part)
            continue
        before, ranges, after = match.groups()
        for each in ranges.split(","):
            first, dash, last = each.partition("-")
            most = min(int(last if dash else first), int(first) + NODES_MOST)
            if most < int(first):
                raise ValueError(part)
            names += [f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), most + 1)]
    return names


def _lines(path: Path, depth: int = 0) -> Iterator[Line]:
    """The lines that have settings; an included file stands where it is included.

    It is sought beside this file, wherever the site has it. Raises InputFileError where it is not there.
    """
    number = 1
    for text in read_text(path).replace("\\\n", "\0").splitlines():
        line, number_here, number = text.replace("\0", ""), number, number + 1 + text.count("\0")
        included = INCLUDE.match(line)
        if included:
            beside = path.parent / Path(included[1]).name
            if depth == INCLUDES_MOST or not beside.is_file():
                problem = f"includes {included[1]}, " + (
                    "which includes it" if beside.is_file() else "which is not here"
                )
                raise InputFileError(path, problem, f"put {beside.name} beside it, or take that line out")
            yield from _lines(beside, depth + 1)
            continue
        matches = SETTING.findall(line.split("#")[0])
        if matches:
            yield Line(path, number_here, {key.lower(): value.strip('"') for key, value in matches})


def _partition(words: Line, bit: Mapping[str, int], groups: Mapping[str, Sequence[str]]) -> Partition:
    nodes = words.hosts("nodes", "ALL")
    names = [word for name in nodes for word in (bit if name.upper() == "ALL" else groups.get(name, (name,)))]
    return Partition(
        words["partitionname"],
        sum(bit[name] for name in dict.fromkeys(names) if name in bit),
        tier=_whole(words.get("prioritytier", "1"), 1),
        factor=_whole(words.get("priorityjobfactor", "1"), 1),
        most_s=_time_s(words.get("maxtime", "")),
        limit_s=_time_s(words.get("defaulttime", "")),
        qos=words.get("qos", ""),
        preempt=_mode(words.get("preemptmode", "")),
    )


def _qos(row: Mapping[str, str]) -> Qos:
    limits = replace(
        _limits(row, QOS_TRES),
        jobs=_count(row, "GrpJobs"),
        user_jobs=_count(row, "MaxJobsPU", "MaxJobsPerUser"),
        account_jobs=_count(row, "MaxJobsPA", "MaxJobsPerAccount"),
    )
    return Qos(
        row["Name"],
        _whole(row.get("Priority", ""), 0),
        limits,
        frozenset(name for name in row.get("Preempt", "").split(",") if name),
        _mode(row.get("PreemptMode", "")),
        _time_s(row.get("GraceTime", "")) or 0.0,
        "OverPartQOS" in row.get("Flags", ""),
    )


def _association(row: Mapping[str, str]) -> Association:
    limits = replace(_limits(row, ASSOC_TRES), jobs=_count(row, "GrpJobs"), user_jobs=_count(row, "MaxJobs"))
    share = row.get("Share", "1")
    parent = row.get("ParentName", "")
    return Association(
        row["Account"], row.get("User", ""), parent, _whole(share, 1), _whole(row.get("Priority", ""), 0), limits
    )


def _weights(settings: Mapping[str, str]) -> Weights:
    def weight(name: str) -> float:
        return float(_whole(settings.get(f"priorityweight{name}", ""), 0))

    tres = re.search(r"gres/gpu(?::[^=,]+)?=(\d+)", settings.get("priorityweighttres", "").lower())
    return Weights(
        weight("age"),
        weight("fairshare"),
        weight("jobsize"),
        weight("partition"),
        weight("qos"),
        weight("assoc"),
        gpus=float(tres.group(1)) if tres else 0.0,
    )


def _parameters(entry: Mapping[str, str]) -> dict[str, float]:
    """The policy's settings, by its own names."""
    settings = {name: _whole(entry[key], 0) * unit for key, (name, unit) in PARAMETERS.items() if entry.get(key)}
    return settings | {name: 1.0 for key, name in FLAGS.items() if name and key in entry}


def _mode(text: str) -> str:
    return next((word for word in MODES if word in text.upper()), PREEMPT_OFF if "OFF" in text.upper() else "")


def _cpus(words: Mapping[str, str]) -> int:
    if "cpus" in words:
        return _whole(words["cpus"], 1)
    counts = [_whole(words.get(key, "1"), 1) for key in ("sockets", "corespersocket", "threadspercore")]
    return counts[0] * counts[1] * counts[2]


def _limits(row: Mapping[str, str], columns: Mapping[str, Sequence[str]]) -> Limits:
    """What TRES say under the first of a limit's columns that is there: of all GPUs, else their types; of parts."""
    of: dict[str, Limits] = {"gpu": Limits()}
    for limit, names in columns.items():
        whole: dict[str, int] = {}  # by type
        for name, kind, count in _asked(next((row[name] for name in names if row.get(name)), "")):
            profile = SLICE.search(kind)
            if profile or name != "gpu":
                part = profile[0] if profile else name
                of[part] = replace(of.get(part, Limits()), **{limit: count})  # type: ignore[arg-type]
            else:
                whole[kind] = count
        if whole:
            of["gpu"] = replace(of["gpu"], **{limit: whole.get("", sum(whole.values()))})  # type: ignore[arg-type]
    return replace(of.pop("gpu"), of=of)


def _count(row: Mapping[str, str], *names: str) -> int | None:
    text = next((row[name] for name in names if row.get(name)), "")
    return int(text) if text.isdecimal() else None


def _whole(text: str, otherwise: int) -> int:
    return int(text) if text.isdecimal() else otherwise


def _time_s(text: str) -> float | None:
    """Seconds of [days-]hours:minutes:seconds, or of minutes; None for INFINITE and the like."""
    match = SPAN.fullmatch(text)
    if match is None:
        return None
    days, *rest = match.groups()
    parts = [int(each) for each in rest if each is not None]
    if days is not None:
        parts += [0] * (3 - len(parts))
        return ((int(days) * 24 + parts[0]) * 60 + parts[1]) * 60.0 + parts[2]
    if len(parts) == 1:
        return parts[0] * 60.0
    if len(parts) == 2:
        return parts[0] * 60.0 + parts[1]
    return (parts[0] * 60 + parts[1]) * 60.0 + parts[2]
