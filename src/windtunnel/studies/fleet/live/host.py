"""Where live jobs run: this machine, or others, each acted on by an agent at the end of a pipe.

`ssh b`, `ip netns exec b`: the words that start a command there; the agent is started behind them and answers one JSON
line for each that it gets. It remembers nothing (processes are found by the files that they wrote), so it may die at
any time and another takes its place; it ends with its pipe, and what it started goes on.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.studies.fleet.live import mig, process

TRIES, PAUSE_S = 5, 0.2
Found = tuple[int, int]  # process number, start time; -1: never born


class Host:
    """This machine. `attempt`: the name of a start of a job, whose files lie in `folder`."""

    def launch(self, folder: Path, attempt: str, command: str, environment: Mapping[str, str]) -> Found:
        """Start a command."""
        if (folder / f"pid.{attempt}").is_file():  # an agent that died started it, and did not get to say so
            return self.find(folder, attempt)
        pid = process.launch(folder, attempt, command, environment)
        return pid, process.birth_of(pid) or -1

    def find(self, folder: Path, attempt: str) -> Found:
        """What an earlier scheduler started."""
        pid = process.number(folder, attempt, process.BIRTH_S)
        return (0, -1) if pid is None else (pid, process.birth_of(pid) or -1)

    def alive(self, identity: Found) -> bool:
        """Whether it still runs."""
        return identity[1] >= 0 and process.birth_of(identity[0]) == identity[1]

    def status(self, folder: Path, attempt: str) -> int | None:
        """The exit status, where it ended by itself."""
        return process.status(folder, attempt)

    def stop(self, identity: Found) -> None:
        """End it and all that it started."""
        if identity[1] >= 0:
            process.stop(*identity)

    def slices(self, what: str, *words: object) -> str:
        """A function of `mig.py` there, and what it says."""
        return getattr(mig, what)(*words) or ""


class RemoteHost(Host):
    """Another machine. Raises UserError once its agent cannot be started any more."""

    def __init__(self, words: str) -> None:
        self.words = words
        self._agent: subprocess.Popen[str] | None = None

    def launch(self, folder: Path, attempt: str, command: str, environment: Mapping[str, str]) -> Found:
        """See `Host`."""
        answer = self._ask("launch", str(folder), attempt, command, dict(environment))
        pid, born = answer if isinstance(answer, list) else (0, -1)
        return int(pid), int(born)

    def find(self, folder: Path, attempt: str) -> Found:
        """See `Host`."""
        answer = self._ask("find", str(folder), attempt)
        pid, born = answer if isinstance(answer, list) else (0, -1)
        return int(pid), int(born)

    def alive(self, identity: Found) -> bool:
        """See `Host`."""
        return bool(self._ask("alive", *identity))

    def status(self, folder: Path, attempt: str) -> int | None:
        """See `Host`."""
        answer = self._ask("status", str(folder), attempt)
        return answer if isinstance(answer, int) else None

    def stop(self, identity: Found) -> None:
        """See `Host`."""
        self._ask("stop", *identity)

    def slices(self, what: str, *words: object) -> str:
        """See `Host`."""
        return str(self._ask("slices", what, *words))

    def close(self) -> None:
        """The agent ends."""
        if self._agent is not None and self._agent.stdin is not None:
            self._agent.stdin.close()
            self._agent.wait()

    def _ask(self, *request: object) -> object:
        for _ in range(TRIES):
            if self._agent is None:
                command = [*shlex.split(self.words), sys.executable, "-m", __name__]
                self._agent = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
                )  # fmt: skip
            questions, answers = self._agent.stdin, self._agent.stdout
            assert questions is not None, "a pipe"
            assert answers is not None, "a pipe"
            try:
                questions.write(json.dumps(request) + "\n")
                questions.flush()
                if line := answers.readline():
                    answer: object = json.loads(line)
                    if isinstance(answer, dict):
                        raise UserError(f"--host {self.words!r}: {answer['error']}")
                    return answer
            except BrokenPipeError:
                pass
            self._agent.kill()
            self._agent.wait()
            self._agent = None
            time.sleep(PAUSE_S)
        raise UserError(f"--host {self.words!r}: its agent does not answer; try `{self.words} {sys.executable} -V`")


def hosts_of(words: tuple[str, ...]) -> list[Host]:
    """One for each; '' is this machine."""
    return [RemoteHost(word) if word else Host() for word in words] or [Host()]


def main() -> None:
    """The agent: until its input ends."""
    here = Host()
    for line in sys.stdin:
        what, *rest = json.loads(line)
        process.reap()
        if what not in ("launch", "find", "alive", "status", "stop", "slices"):
            raise SystemExit(f"an agent does not know {what}")
        arguments = [rest] if what in ("alive", "stop") else rest if what == "slices" else [Path(rest[0]), *rest[1:]]
        try:
            answer = getattr(here, what)(*arguments)
        except UserError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):  # a scheduler that was killed wants no answer
        main()
