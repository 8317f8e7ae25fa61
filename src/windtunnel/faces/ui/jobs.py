"""Long questions, each a process of its own that outlives the page: `windtunnel VERB ...` in a folder of the runs.

    jobs/ID/job.json      verb, words, when it began, its process
    jobs/ID/progress.txt  what it said meanwhile
    jobs/ID/answer.json   its answer;  report.html  its pictures;  error.txt  its one line where it failed
    jobs/ID/status        its exit status, written last by the process that waits for it

A server that was killed finds its jobs again by these files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.faces.ui.form import FILE
from windtunnel.faces.ui.swept import PLANS
from windtunnel.files.write import write_atomically
from windtunnel.physics.model.catalogue import hub_name
from windtunnel.questions import QUESTIONS

ID = re.compile(r"[0-9]{14}-[0-9a-f]{6}")
UNDRAWN = ("sweep", "validate")  # draw no page of their own
ELSEWHERE = ("predict", "compare", "whatif", "launch", "runs list")  # on pages of their own, or of saved runs
VERBS = (*(verb for verb, question in QUESTIONS.items() if question.pure and verb not in ELSEWHERE), "sweep")
# What writes elsewhere, listens, or starts other programs.
REFUSED = (
    *("listen", "real", "live", "--executor", "--json"),
    *("--report", "--page", "--rows", "--trace", "--tried", "--record"),
)
WRITES = "-out"  # how the names of all other flags end that name a file to write
# Waits for the question so that its status is kept even where the server is gone.
KEEPER = """
import os, subprocess, sys
folder, words = sys.argv[1], sys.argv[2:]
with open(f"{folder}/answer.json", "wb") as out, open(f"{folder}/progress.txt", "wb") as err:
    status = subprocess.call(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
with open(f"{folder}/.status", "w") as file:
    file.write(str(status))
os.replace(f"{folder}/.status", f"{folder}/status")
"""


def _names_a_path(part: str) -> bool:
    """Whether a word, or one of an engine's command line, is a path: no rate, and no hub's id of a shipped model."""
    from windtunnel.studies.serving.launch.lines import LINE

    pieces = (
        [piece for word in part.split() for piece in (word, word.rpartition("=")[2])] if LINE.search(part) else [part]
    )
    return any(
        hub_name(piece) != piece
        and (("/" in piece and not re.fullmatch(r"[\w.:*%= ]+/[sh]", piece)) or re.match(r"~|\.(?!\d)", piece))
        for piece in pieces
    )


@dataclass(frozen=True)
class Job:
    """One question and how far it is."""

    name: str
    verb: str
    words: tuple[str, ...]
    begun_s: float
    state: str  # running, done, failed, stopped
    status: int | None
    progress: str  # the last lines of its progress
    report: bool

    @property
    def command(self) -> str:
        """As one would type it."""
        return f"windtunnel {self.verb} {shlex.join(self.words)}"


class JobList:
    """The jobs in a folder of runs."""

    def __init__(self, root: Path) -> None:
        self.folder, self.uploads = root / "jobs", root / "uploads"

    def start(self, verb: str, text: str) -> str:
        """Begin `windtunnel verb text`; the job's name. SpecError for what the page may not ask."""
        if verb not in VERBS:
            raise SpecError("verb", verb, f"use one of {', '.join(VERBS)}")
        words = self._words(text)
        name = f"{time.strftime('%Y%m%d%H%M%S')}-{os.urandom(3).hex()}"
        folder = self.folder / name
        try:
            folder.mkdir(parents=True)
            self.uploads.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"cannot be written ({error.strerror})"
            raise InputFileError(folder, problem, "make room, or start the page with --runs elsewhere") from None
        command = [sys.executable, "-m", "windtunnel", *verb.split(), *words]
        command += ["--out", str(folder / "sweep.parquet")] if verb == "sweep" else ["--json"]
        command += ["--rows", str(folder / PLANS)] if verb == "plan" else []
        command += ["--report", str(folder / "report.html")] if verb not in UNDRAWN else []
        # Paths are of where the server was started, and nothing is imported from the folder of dropped files.
        paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", KEEPER, str(folder), *command],
            cwd=self.uploads,
            env=environment,
            start_new_session=True,
        )
        document = {"verb": verb, "words": words, "begun_s": time.time(), "process": process.pid}
        try:
            write_atomically(folder / "job.json", json.dumps(document).encode())
        except UserError:  # a full disk: nothing runs that the page could not show
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return name

    def _words(self, text: str) -> list[str]:
        if "\0" in text:
            raise SpecError("words", text, "no argument of a program holds the character NUL; leave it out")
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise SpecError("words", text, f"close the quotation ({error})") from None
        for word in words:
            name, _, value = word.partition("=")
            name = name.replace("_", "-")  # the command line takes either
            if name in REFUSED or (name.startswith("--") and name.endswith(WRITES)) or name == "--out":
                raise SpecError("words", word, "the page decides where answers go, and starts no other programs")
            for part in (word, value):
                if _names_a_path(part):
                    raise SpecError(
                        "words", word, "the page reads no files but those dropped on it: drop it on the form"
                    )
                if FILE.fullmatch(part) and not (self.uploads / part).is_file():
                    raise SpecError("words", word, "no such file was dropped on the page; drop it here first")
        return words

    def get(self, name: str) -> Job:
        """One job. InputFileError where there is none."""
        folder = self.path(name)
        try:
            document = json.loads((folder / "job.json").read_text())
            verb, words = str(document["verb"]), tuple(map(str, document["words"]))
            begun_s, process = float(document["begun_s"]), int(document["process"])
        except (OSError, ValueError, KeyError, TypeError):
            raise InputFileError(name, "is no job of this page", "choose one from the list") from None
        status = None
        with suppress(OSError, ValueError):
            status = int((folder / "status").read_text())
        if (folder / "stopped").exists():
            state = "stopped"
        elif status is None:
            state = "running" if _runs(process) else "stopped"
        else:
            state = "done" if status in (0, 3) else "failed"
        return Job(name, verb, words, begun_s, state, status, _tail(folder), (folder / "report.html").is_file())

    def path(self, name: str) -> Path:
        """Its folder. InputFileError where there is none."""
        if not ID.fullmatch(name) or not (self.folder / name).is_dir():
            raise InputFileError(name[:60], "is no job of this page", "choose one from the list")
        return self.folder / name

    def all(self) -> list[Job]:
        """Newest first."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        jobs = []
        for name in sorted((name for name in names if ID.fullmatch(name)), reverse=True):
            with suppress(InputFileError):
                jobs.append(self.get(name))
        return jobs

    def stop(self, name: str) -> None:
        """End a job that runs, its processes with it."""
        job, folder = self.get(name), self.path(name)
        if job.state != "running":
            return
        (folder / "stopped").touch()
        process = int(json.loads((folder / "job.json").read_text())["process"])
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGTERM)

    def delete(self, name: str) -> None:
        """Stop a job and remove what it left."""
        self.stop(name)
        shutil.rmtree(self.path(name), ignore_errors=True)

    def add_file(self, name: str, content: bytes) -> str:
        """Keep a dropped file; the name by which questions may name it. SpecError for a name that is none."""
        plain = re.sub(r"[^A-Za-z0-9._+@ -]", "_", os.path.basename(name.replace("\\", "/"))).lstrip(". -")[-120:]
        if not FILE.fullmatch(plain):
            raise SpecError(
                "file", name[:80], "drop a .json, .jsonl, .yaml, .toml, .csv, .txt, .gz, .parquet or .et file"
            )
        write_atomically(self.uploads / plain, content)
        return plain

    def files(self) -> list[str]:
        """Names of the files that were dropped."""
        return sorted(path.name for path in self.uploads.iterdir()) if self.uploads.is_dir() else []


def _tail(folder: Path, most: int = 2000) -> str:
    try:
        with (folder / "progress.txt").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _runs(process: int) -> bool:
    with suppress(ChildProcessError, OSError):
        os.waitpid(process, os.WNOHANG)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):
        return False
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
