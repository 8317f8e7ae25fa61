"""Hostile words and values at every door: does anything but an answer or one line of error come out?

    python validation/fuzz.py OUT.jsonl [--first SEED] [--count N] [--door cli|question|api|tool]

Doors: the command line (flags are those of the application, whatever it has), questions (read, changed, forms), public
functions of Python, tools of the protocol. A seed is one case, and the same case each time. Supervised workers run the
cases in scratch folders. Reported: tracebacks, statuses that there are not, 2 without its one line, `nan` in an answer,
more than 30 s, more than 2 GiB, given files that changed. Verbs that hold a port or run programs are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

LONGEST_S, MOST_BYTES = 30, 2 << 30
CASES = 100  # of a worker's life
LEFT_OUT = (
    *("capture", "run", "calibrate", "calibrate device", "calibrate collectives"),
    *("ui", "watch", "mcp", "serve real", "serve listen", "fleet live", "fleet beside"),
)
HOSTILE = (
    "", " ", "-1", "0", "-0", "+5", "1e308", "1e309", "nan", "inf", "-inf", "1_000", "0x10", "9" * 400, "9" * 5000,
    "1.5",
    "١٢", "²", "true", "None", "null", "a" * 10_000, "../../etc/passwd", "/dev/zero", "/dev/null",
    "/proc/self/mem", "%s%n",
    "{}", "[]", "*", "~", "$(id)", "<script>", "\udcff", "\r\n", "\ufeff8", "💥", "1e-320", "1/0", "1,2,,3", ":", "=",
    "a=b=c", "h100-sxm:0", "h100-sxm:999999999999", "\x1b[31m", "2147483648", "9223372036854775808", "1e18", "1ms",
    "5min", "-3h", "0s", "200%", "-5%", "1e300GB/s", "given", "given/bomb.yaml", "given/deep.json",
    "given/empty.csv", "given/noise.parquet", "given/sparse.csv", "given/fifo",
)  # fmt: skip
LIKELY = {
    "model": ("llama-3.1-8b", "mixtral-8x7b", "gpt2", "given/model.json", "llama-3.1-8b=2,qwen3-8b=1"),
    "cluster": ("h100-sxm:8", "h100-sxm:64", "a100-80gb:16", "t4:16x4", "given/cluster.yaml", "given/nodes.csv"),
    "trace": ("given/jobs.csv", "given/flows.txt", "out/trace.json"), "workload": ("given/requests.csv",),
    "requests": ("20", "200"), "prompt": ("64", "512"), "output": ("8", "64"), "rate": ("2", "20"),
    "concurrency": ("4",), "ttft": ("1s", "30ms"), "tpot": ("50ms", "9ms"), "tp": ("1", "2"),
    "prefill": ("1xtp1", "2xtp2"), "decode": ("1xtp1",), "method": ("distserve", "muxserve"),
    "machines": ("given/machines.csv",), "pool": ("given/pool.yaml",), "kernels": ("given",), "tables": ("given",),
    "policy": ("fifo", "easy,srtf", "tiresias", "lyra-elastic", "restart", "standby", "fgd", "sebf", "spotserve"),
    "job": ("a", "j3"), "where": ("job=j3",), "mtbf-node": ("30d",), "capacity": ("given/capacity.csv",),
    "seeds": ("2",), "global-batch": ("64",), "seq-len": ("2048",), "seq": ("2048",), "plan": ("given/plan.yaml",),
    "samples": ("5",), "slow": ("gpu=1:1.2", "random=1%:1.2", "ecmp=3"),
    "set": ("cluster.nic=800Gb/s", "plan.tp=2", "engine.kv=fp8"), "technique": ("lina", "local_sgd:every=4"),
    "days": ("1",), "within": ("1s",), "top": ("2",), "engine": ("vllm-0.12",), "router": ("round-robin",),
    "report": ("out/r.html", "out/r.md"), "rows": ("out/rows.csv", "out/rows.parquet"), "out": ("out",),
    "runs": ("out",), "executor": ("serial",), "jobs": ("1",), "workers": ("1",), "file": ("given/ask.yaml",),
}  # fmt: skip
Finding = tuple[str, str]  # its kind, and more


def write_given(folder: Path) -> None:
    """Files of users: good ones, and hostile ones."""
    (folder / "given").mkdir(parents=True)
    (folder / "out").mkdir()
    rows = "".join(f"j{at},{at * 30},{1 << at % 4},{100 + at * 10},u{at % 3}\n" for at in range(30))
    texts = {
        "jobs.csv": "job,submit_s,gpus,duration_s,user\n" + rows,
        "nodes.csv": "node,cpu_milli,memory_mib,gpus,gpu_model\nn,96000,500000,8,T4\n",
        "requests.csv": "input_tokens,output_tokens,arrival_s\n" + "".join(f"64,8,{at * 0.3}\n" for at in range(30)),
        "machines.csv": "time_s,event,node\n0,add,a\n0,add,b\n40,remove,a\n90,add,c\n",
        "capacity.csv": "time_s,nodes\n0,8\n1000,4\n2000,8\n",
        "flows.txt": "3 2\n1 0 2 1 2 1 3:5.0\n2 10 1 1 1 2:3.0\n",
        "cluster.yaml": "base: hgx-h100\ngpus: 16\n",
        "plan.yaml": "tp: 2\nglobal_batch: 64\nseq_len: 2048\n",
        "ask.yaml": "question: serve/1\nmodel: llama-3.1-8b\ncluster: h100-sxm:2\n"
        "requests: {prompt: 64, output: 8, requests: 20}\nload: {rate: 3}\n",
        "pool.yaml": "groups: {all: {cluster: 'h100-sxm:2'}}\nmodels:\n  one: {model: llama-3.1-8b,"
        " workload: {prompt: 64, output: 8, rate: 2, requests: 20}}\n",
        "bomb.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + at)}: &{chr(98 + at)} [{','.join(['*' + chr(97 + at)] * 9)}]\n" for at in range(8)),
        "deep.json": "[" * 100_000,
        "empty.csv": "",
    }
    for name, text in texts.items():
        (folder / "given" / name).write_text(text)
    from importlib.resources import files

    shipped = files("windtunnel.physics.model") / "catalogue" / "llama-3.2-1b.json"
    (folder / "given" / "model.json").write_bytes(shipped.read_bytes())
    (folder / "given" / "noise.parquet").write_bytes(b"PAR1" + random.Random(0).randbytes(400) + b"PAR1")
    with (folder / "given" / "sparse.csv").open("wb") as file:
        file.truncate(20 << 30)
    os.mkfifo(folder / "given" / "fifo")


def hashes(folder: Path) -> dict[str, str]:
    """What the given files hold; of the sparse one its size."""
    plain = (path for path in sorted((folder / "given").iterdir()) if path.is_file())
    return {
        path.name: str(path.stat().st_size)
        if path.stat().st_size > 1 << 20
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in plain
    }


def flags_of(app: Callable[..., Any], verb: str) -> list[tuple[str, bool]]:
    """Each flag or place of a verb, and whether it takes a value, as the application has them."""
    inner = app(verb.split()[0], everything=True)
    for word in verb.split():
        inner = inner[word]
    found = []
    for argument in inner.assemble_argument_collection():
        name = next((one for one in argument.names if one.startswith("--")), "")
        found.append((name or argument.field_info.name or "", argument.hint is not bool))
    return found


def value(draw: random.Random, name: str) -> str:
    """A value of a flag: mostly a likely one."""
    likely = LIKELY.get(name.lstrip("-"), ("1", "2", "8", "0.5", "x"))
    chance = draw.random()
    return draw.choice(likely if chance < 0.88 else HOSTILE if chance < 0.97 else draw.choice(list(LIKELY.values())))


def words_of(draw: random.Random, app: Callable[..., Any], verbs: list[str]) -> list[str]:
    """A command line."""
    verb = draw.choice(verbs)
    flags = flags_of(app, verb)
    words = verb.split()
    for name, _ in flags:
        if not name.startswith("--") and draw.random() < 0.97:
            words.append(value(draw, name))
    options = [flag for flag in flags if flag[0].startswith("--")]
    usual = [flag for flag in options if flag[0].lstrip("-") in LIKELY]
    for name, takes in draw.sample(usual, min(len(usual), draw.randrange(7))) + draw.sample(
        options, min(len(options), draw.randrange(4))
    ):
        words += [name, value(draw, name)] if takes else [name]
    if verb.startswith("serve") and draw.random() < 0.8:
        words += ["--cluster", "h100-sxm:2", "--prompt", "64", "--output", "8", "--requests", "30"]
        words += draw.choice((["--rate", "2"], ["--concurrency", "4"]))
    if verb in ("predict", "plan") and draw.random() < 0.9:
        words += ["--cluster", value(draw, "cluster"), "--global-batch", "64", "--seq", "2048", "--no-save"]
    if draw.random() < 0.5:
        words.append("--json")
    if draw.random() < 0.04:
        words.insert(draw.randrange(len(words) + 1), draw.choice(HOSTILE))
    return [word.replace("\0", "") for word in words]


def at_command_line(draw: random.Random, state: dict[str, Any]) -> tuple[str, Callable[[], Finding | None]]:
    from windtunnel.faces.cli import main

    words = words_of(draw, state["app"], state["verbs"])

    def ask() -> Finding | None:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status: Any = main(words)
            except SystemExit as gone:
                status = f"SystemExit {gone.code}"
        out.flush(), err.flush()
        said, told = (one.buffer.getvalue().decode("utf-8", "replace") for one in (out, err))  # type: ignore[attr-defined]
        if status not in (0, 2, 3) and (status, words[:1]) != (1, ["check"]):  # 1: a rule is broken
            return "status", str(status)
        if status == 2 and told.count("windtunnel: error: ") != 1:
            return "no line", told[-300:]
        if "Traceback (most recent call last)" in said + told:
            return "traceback", (said + told)[-1500:]
        if status != 2 and "--json" in words and said.startswith("{"):
            json.loads(said, parse_constant=_no_constant)
        return None

    return " ".join(words)[:2000], ask


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} in an answer")


def anything(draw: random.Random, depth: int = 0) -> Any:
    """A value as JSON has them, and a few that it has not."""
    if depth < 3 and draw.random() < 0.2:
        keys = ("base", "kind", "tp", "prompt", "gpu", "name", "x", "rate")
        return {draw.choice(keys): anything(draw, depth + 1) for _ in range(draw.randrange(4))}
    if depth < 3 and draw.random() < 0.15:
        return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]
    likely = draw.choice(list(LIKELY.values()))
    return draw.choice(
        (None, True, 0, 1, -1, 2, 2**63, 10**400, 0.5, -0.5, 1e308, math.nan, math.inf, *HOSTILE, *likely)
    )


def plausible(draw: random.Random, field: Any) -> Any:
    """A value of a field's type."""
    likely = LIKELY.get(field.name.replace("_", "-"))
    text = draw.choice(likely) if likely else draw.choice(("1", "2", "8", "16"))
    if field.choices:
        return draw.choice(field.choices)
    if field.type is bool:
        return draw.random() < 0.5
    if field.type in (int, float) and not field.about.unit:
        low, high = field.about.least or 0, field.about.most if field.about.most is not None else 100
        number = draw.choice((low, min(high, low + 1), min(high, 50), (low + min(high, 100)) / 2))
        return round(number) if field.type is int else float(number)
    return [text] if str(field.type).startswith("tuple[str") else text


def data_of(draw: random.Random, part: type) -> dict[str, Any]:
    """Plain data of a question's part, hit in places."""
    from windtunnel.questions.fields import fields_of

    found: dict[str, Any] = {}
    for field in fields_of(part):
        if not field.required and draw.random() < (0.4 if field.name == "load" else 0.85):
            continue
        if draw.random() < 0.04:
            found[field.name] = anything(draw)
        elif field.parts and not (field.name in ("model", "cluster") and draw.random() < 0.9):
            member = draw.choice(field.parts)
            found[field.name] = data_of(draw, member) | ({"kind": member.kind} if field.members else {})
        else:
            found[field.name] = plausible(draw, field)
    if draw.random() < 0.03:
        found[draw.choice(("x", "question", "kind", "tp", ""))] = anything(draw)
    return found


def at_question(draw: random.Random, state: dict[str, Any]) -> tuple[str, Callable[[], Finding | None]]:
    from windtunnel.questions import QUESTIONS, changed, digest, plain, question_class, read
    from windtunnel.questions.form import inputs, of_form

    verb = draw.choice(list(QUESTIONS))
    data = data_of(draw, question_class(verb))
    path = ".".join(
        draw.choice(("model", "cluster", "nic", "plan", "tp", "load", "rate", "x", ""))
        for _ in range(draw.randrange(1, 4))
    )
    change = {path: anything(draw)}

    def ask() -> Finding | None:
        question = read({**data, "question": verb})
        if digest(read(plain(question))) != digest(question):
            return "not the same", str(plain(question))[:500]
        texts = {one.name: one.value for one in inputs(verb, question)}
        if of_form(verb, texts) != question:
            return "form", str(plain(question))[:500]
        changed(question, change)
        return None

    return f"{verb} {data!r} {change!r}"[:2000], ask


def at_api(draw: random.Random, state: dict[str, Any]) -> tuple[str, Callable[[], Finding | None]]:
    import windtunnel

    names = [
        name
        for name in windtunnel.__all__
        if name[0].islower() and name not in ("calibrate", "capture", "save_result", "write_report")
    ]
    name = draw.choice(names)
    given = [anything(draw) for _ in range(draw.randrange(1, 4))]
    if name in ("predict", "serve", "fleet") and draw.random() < 0.7:
        given[:2] = [draw.choice(LIKELY["trace" if name == "fleet" else "model"]), draw.choice(LIKELY["cluster"])]

    def ask() -> Finding | None:
        try:
            getattr(windtunnel, name)(*given)
        except TypeError as error:
            if "argument" not in str(error):
                raise
        return None

    return f"{name}{given!r}"[:2000], ask


def at_tool(draw: random.Random, state: dict[str, Any]) -> tuple[str, Callable[[], Finding | None]]:
    from windtunnel.faces.mcp import TOOLS, answered
    from windtunnel.questions import question_class

    name = draw.choice(list(TOOLS))
    data = json.loads(json.dumps(data_of(draw, question_class(TOOLS[name]))).replace("given/", ""))

    def ask() -> Finding | None:
        json.dumps(answered(name, data, Path.cwd() / "given"))
        return None

    return f"{name} {data!r}"[:2000], ask


DOORS = {"cli": at_command_line, "question": at_question, "api": at_api, "tool": at_tool}


class TooLongError(BaseException):
    """A case took more than its time."""


def work(door: str, seeds: range, folder: Path, out: Path) -> None:
    """Run cases in this process, and write what became of each."""
    from windtunnel.errors import UserError
    from windtunnel.faces.cli.app import build
    from windtunnel.questions import QUESTIONS

    def too_long(*_: Any) -> None:
        raise TooLongError

    os.chdir(folder)
    signal.signal(signal.SIGPROF, too_long)
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    verbs = [
        verb
        for verb in (
            "sweep",
            "whatif",
            "compare",
            "explain",
            "runs list",
            "validate",
            "techniques",
            "ask",
            "schema",
            *QUESTIONS,
        )
        if verb not in LEFT_OUT
    ]
    state = {"app": cache(build), "verbs": verbs}
    before = hashes(folder)
    with out.open("a") as log:
        for seed in seeds:
            what, ask = DOORS[door](random.Random(f"{door} {seed}"), state)
            (folder / "now").write_text(json.dumps({"seed": seed, "what": what, "began": time.time()}))
            began, found, status = time.process_time(), None, "answer"
            signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
            try:
                found = ask()
            except UserError as error:
                status = "refused"
                if not str(error).strip() or "\n" in str(error):
                    found = ("not one line", repr(error)[:300])
            except TooLongError:
                found = ("too long", f"{LONGEST_S} s of CPU")
            except BaseException:
                found = ("traceback", traceback.format_exc()[-1800:])
            signal.setitimer(signal.ITIMER_PROF, 0)
            if (now := hashes(folder)) != before:
                found, before = ("changed", str(sorted(set(now.items()) ^ set(before.items())))[:500]), now
            row = {"seed": seed, "door": door, "status": status, "cpu_s": round(time.process_time() - began, 2)}
            if found is not None:
                row |= {"kind": found[0], "more": found[1], "what": what}
            log.write(json.dumps(row) + "\n")
            log.flush()


def supervise(door: str, seeds: range, out: Path) -> None:
    """Workers one after the other, each watched."""
    left = list(seeds)
    while left:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
            folder = Path(place)
            write_given(folder)
            (folder / "now").write_text(json.dumps({"seed": left[0], "what": "", "began": time.time()}))
            child = os.fork()
            if child == 0:
                try:
                    work(door, range(left[0], min(left[0] + CASES, left[-1] + 1)), folder, out)
                except BaseException:
                    traceback.print_exc()
                    os._exit(9)
                os._exit(0)
            end, why = _watched(child, folder)
            case = json.loads((folder / "now").read_text() or "{}")
            if end != 0 or why:
                row = {"door": door, "status": "killed", "kind": why or f"died {end}", **case}
                with out.open("a") as log:
                    log.write(json.dumps(row) + "\n")
                left = [seed for seed in left if seed > case["seed"]]
            else:
                left = left[CASES:]


def _watched(child: int, folder: Path) -> tuple[int, str]:
    """How a worker ended, and why it was ended."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status, ""
        time.sleep(0.2)
        why = ""
        with contextlib.suppress(OSError, ValueError):
            held = int(Path(f"/proc/{child}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            began = json.loads((folder / "now").read_text())["began"]
            if held > MOST_BYTES:
                why = f"memory {held >> 20} MiB"
            elif time.time() - began > 20 * LONGEST_S:  # it waits, or other processes have the machine
                why = "blocked"
        if why:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1, why


def findings(out: Path) -> Iterator[dict[str, Any]]:
    """All rows."""
    for line in out.read_text().splitlines():
        yield json.loads(line)


def main() -> int:
    """Run, and say how many of each there are; 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--door", choices=list(DOORS))
    asked = parser.parse_args()
    out = asked.out.resolve()
    for door in (asked.door,) if asked.door else DOORS:
        supervise(door, range(asked.first, asked.first + asked.count), out)
    rows = list(findings(out))
    tally = Counter((row["door"], row["status"], row.get("kind", "")) for row in rows)
    for key, many in sorted(tally.items()):
        print(*key, many)
    return int(any("kind" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
