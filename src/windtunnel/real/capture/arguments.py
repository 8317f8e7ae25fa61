"""A launch line: torchrun's own options, the script, and the script's arguments.

`torchrun --nproc-per-node 8 train.py --config x` becomes `windtunnel capture --nproc-per-node 8 train.py --config x`:
all of torchrun's options are understood, as is the environment it sets for each rank. Those that say where and how
processes are started (rendezvous, logs, restarts) have nothing to act on here and are accepted without effect.

Source: torch.distributed.run, torch 2.13 (options, PET_* defaults) and its documentation of the environment variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import LayoutError, SpecError, UserError

# Options of torchrun that take a value, and those that take none. `--node-rank` and `--node_rank` are the same.
WITH_VALUE = (
    *("nnodes", "nproc-per-node", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("master-addr", "master-port", "local-addr", "role", "max-restarts", "monitor-interval", "start-method"),
    *("event-log-handler", "log-dir", "redirects", "tee", "local-ranks-filter", "logs-specs", "numa-binding"),
    *("log-line-prefix-template", "print-completion"),
    *("duplicate-stdout-filters", "duplicate-stderr-filters", "signals-to-handle", "shutdown-timeout"),
)
SWITCHES = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
DEFAULT_LOCAL = 8  # GPUs of a node, where nothing says otherwise
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Launch:
    """What is to be run, and on how many ranks."""

    target: str  # path of a script, or name of a module
    arguments: tuple[str, ...]
    is_module: bool
    world_size: int
    local_world_size: int
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    run_id: str = "none"
    role: str = "default"
    max_restarts: int = 0

    def environment(self, rank: int) -> dict[str, str]:
        """What torchrun sets for this rank."""
        node, local = divmod(rank, self.local_world_size)
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "GROUP_RANK": node,
            "ROLE_RANK": rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": min(self.local_world_size, self.world_size),
            "GROUP_WORLD_SIZE": -(-self.world_size // self.local_world_size),
            "ROLE_WORLD_SIZE": self.world_size,
            "MASTER_PORT": self.master_port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": self.max_restarts,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        }
        return {
            **{name: str(value) for name, value in numbers.items()},
            "ROLE_NAME": self.role,
            "MASTER_ADDR": self.master_addr,
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }

    @property
    def line(self) -> str:
        """The script as a person would name it."""
        return f"-m {self.target}" if self.is_module else self.target


def split_words(words: Sequence[str], own_with_value: Collection[str], own_switches: Collection[str]) -> list[str]:
    """The words of one verb with `--` between its own options and the rest: torchrun's options, script, arguments.

    Own options may stand among torchrun's; what follows the script is the script's, whatever it is called.
    """
    own: list[str] = []
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            rest.append(word)
            break
        name, equals, _ = word.partition("=")
        spelled = name.replace("_", "-")
        if spelled in own_with_value or spelled in own_switches:
            own.append(spelled + word[len(name) :])
            if spelled in own_with_value and not equals and words:
                own.append(words.pop(0))
            continue
        rest.append(word)
        option = _torchrun_name(name)
        if option in WITH_VALUE and not _value_inside(word) and words:
            rest.append(words.pop(0))
    return [*own, "--", *rest, *words]


def parse_launch(
    words: Sequence[str],
    *,
    world_size: int | None = None,
    local_world_size: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """Read torchrun's options, the script and its arguments.

    `world_size` and `local_world_size` (of a cluster, say) fill what the options leave open. Raises UserError.
    """
    options = _from_environment(os.environ if environ is None else environ)
    words = list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, value = _option(word)
        if name in WITH_VALUE and value is None:
            if not words:
                raise SpecError(f"--{name}", "", "give a value")
            value = words.pop(0)
        options[name] = value or ""
    if "no-python" in options:
        raise SpecError("--no-python", True, "only Python can be run here: give train.py, or -m MODULE")
    if not words:
        raise SpecError("script", "", "name the script to run, or -m MODULE, after the options")
    target, *arguments = words
    is_module = "module" in options
    if not is_module and not Path(target).is_file():
        raise SpecError("script", target, "no such file; give the path of a Python script, or -m MODULE")
    try:
        ranks, per_node = _sizes(options, world_size, local_world_size)
    except _NoSizeError:
        remedy = "say how many ranks: --world-size N, or --nnodes and --nproc-per-node"
        raise missing("--world-size", remedy, arguments) from None
    host, _, port = options.get("rdzv-endpoint", "").rpartition(":")
    return Launch(
        target,
        tuple(arguments),
        is_module,
        ranks,
        per_node,
        options.get("master-addr") or host or "127.0.0.1",
        _whole("--master-port", options.get("master-port") or (port if port.isdigit() else "29500"), 0),
        options.get("rdzv-id", "none"),
        options.get("role", "default"),
        _whole("--max-restarts", options.get("max-restarts", "0"), 0),
    )


def parse_ranks(text: str | None) -> tuple[int, ...]:
    """Ranks from `0,8,16-23`. Raises SpecError."""
    if text is None:
        return ()
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part)
        if match is None:
            raise SpecError("--ranks", text, "give ranks with commas between them, e.g. 0,8,16-23")
        ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(dict.fromkeys(ranks))


def missing(name: str, remedy: str, after: Sequence[str]) -> SpecError:
    """An option that is needed and not there; it may stand `after` the script, where everything is the script's."""
    if any(word.partition("=")[0].replace("_", "-") == name for word in after):
        remedy = f"put {name} before the script: what follows the script is given to the script"
    return SpecError(name, None, remedy)


class _NoSizeError(Exception):
    """Nothing says how many ranks there are."""


def _sizes(options: Mapping[str, str], world_size: int | None, local_world_size: int | None) -> tuple[int, int]:
    per_node = options.get("nproc-per-node")
    local = None
    if per_node is not None:
        by_word = per_node in ("gpu", "cpu", "auto", "xpu")
        local = (local_world_size or DEFAULT_LOCAL) if by_word else _whole("--nproc-per-node", per_node)
    nodes = None
    if "nnodes" in options:
        least, _, most = options["nnodes"].partition(":")
        nodes = _whole("--nnodes", most or least)  # an elastic job is taken at its largest
    if nodes is not None:
        local = local or local_world_size or (1 if world_size is None else max(1, world_size // nodes))
        if world_size is None:
            world_size = nodes * local
        elif world_size != nodes * local:
            raise LayoutError(
                f"--nnodes {nodes} x --nproc-per-node {local} = {nodes * local} ranks, not {world_size}",
                "leave out --world-size or --nnodes",
            )
    elif world_size is None:
        if local is None:
            raise _NoSizeError
        world_size = local
    if not 0 < world_size <= MOST_RANKS:
        raise SpecError("--world-size", world_size, f"give 1 to {MOST_RANKS}")
    if local is None:
        local = min(local_world_size or DEFAULT_LOCAL, world_size)
    if world_size % local:
        raise LayoutError(
            f"--world-size {world_size} is no multiple of {local} ranks per node",
            "give --nproc-per-node a divisor of it",
        )
    return world_size, local


def _option(word: str) -> tuple[str, str | None]:
    """Name and the value written in the same word."""
    if word[:2] in SHORT and not word.startswith("--"):
        if SHORT[word[:2]] in SWITCHES and len(word) > 2:
            raise UserError(f"option {word} is unknown; write `-m MODULE`")
        return SHORT[word[:2]], word[2:] or None
    spelled, equals, value = word.partition("=")
    name = _torchrun_name(spelled)
    if name is None:
        raise UserError(
            f"option {spelled} is known neither to windtunnel nor to torchrun;"
            " what is meant for the script goes after it"
        )
    if name in SWITCHES and equals:
        raise SpecError(f"--{name}", value, "takes no value")
    return name, value if equals else None


def _torchrun_name(word: str) -> str | None:
    """`--nproc_per_node`, or a beginning that only one option has, as argparse allows."""
    if word in SHORT:
        return SHORT[word]
    if word[:2] in SHORT and not word.startswith("--"):
        return SHORT[word[:2]]
    name = word.removeprefix("--").replace("_", "-")
    names = (*WITH_VALUE, *SWITCHES)
    if not word.startswith("--") or not name:
        return None
    if name in names:
        return name
    near = [option for option in names if option.startswith(name)]
    return near[0] if len(near) == 1 else None


def _value_inside(word: str) -> bool:
    return "=" in word if word.startswith("--") else len(word) > 2


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Defaults that torchrun takes from PET_NNODES, PET_NPROC_PER_NODE, ..."""
    defaults = {}
    for name in WITH_VALUE:
        value = environ.get("PET_" + name.replace("-", "_").upper())
        if value is not None:
            defaults[name] = value
    for name in SWITCHES:
        if environ.get("PET_" + name.replace("-", "_").upper(), "0") == "1":
            defaults[name] = ""
    return defaults


def _whole(name: str, text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) >= least):
        raise SpecError(name, text, f"give a whole number from {least}")
    return int(text)
