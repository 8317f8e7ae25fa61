"""From words of the command line to a server that listens: address, losses, the engine, uvicorn.

The server binds to loopback unless another address is named.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.http_guard import LOOPBACK, Guard, bound_socket, hosts_of, origin_of, server, token_of
from windtunnel.studies.serving.build import Engine as PricedEngine
from windtunnel.studies.serving.disaggregated.pools import Pools
from windtunnel.studies.serving.emulator.app import application
from windtunnel.studies.serving.emulator.clock import Clock
from windtunnel.studies.serving.emulator.engine import Engine, Loss
from windtunnel.studies.serving.emulator.fleet import Fleet
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.routing import ROUTERS
from windtunnel.studies.serving.workload.lengths import lengths
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.units import parse_time

Priced = PricedEngine | Pools
DRAWN = 65_536  # answer lengths that are drawn in advance; then they repeat
BODY_BYTES_MOST = 8 << 20
STOP_S = 2  # that open streams get when the server is told to stop


def parsed_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8000`, `:8000` and `8000` (both loopback), `[::1]:8000`. Raises SpecError."""
    match = re.fullmatch(r"(?:(?P<host>\[[0-9a-fA-F:.%]+\]|[\w.-]*):)?(?P<port>\d{1,5})", text.strip())
    if match is None or int(match["port"]) > 65535:
        raise SpecError("address", text, "write HOST:PORT, such as 127.0.0.1:8000")
    return (match["host"] or LOOPBACK[0]).strip("[]"), int(match["port"])


def parsed_losses(text: str | None, replicas: int) -> list[Loss]:
    """`0@30s` or `0@30s+10s` (back 10 s later), several with commas; simulated times. Raises SpecError."""
    loss = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        match = re.fullmatch(r"\s*(\d+)@([^+]+)(?:\+(.+))?", part)
        if match is None:
            raise SpecError("lose", part, "write 0@30s, or 0@30s+10s for one that is back 10 s later")
        if int(match[1]) >= replicas:
            raise SpecError("lose", part, f"replicas are 0 to {replicas - 1}")
        at_ns = round(1e9 * parse_time(match[2].strip(), "lose"))
        back = None if match[3] is None else at_ns + round(1e9 * parse_time(match[3].strip(), "lose"))
        loss.append(Loss(int(match[1]), at_ns, back))
    return loss


def drawn_lengths(output: int | None, ratio: float, seed: int, workload: Workload | None) -> Callable[[], int] | None:
    """The natural lengths of answers in turn: a trace's, or uniform on [ratio x output, output]; None: none known."""
    if workload is not None:
        natural = workload.output_tokens
    elif output is not None:
        natural = lengths(DRAWN, 1, output, ratio, seed)[1]
    else:
        return None

    def turns() -> Iterator[int]:
        while True:
            yield from np.asarray(natural).tolist()

    return turns().__next__


def warm_up(priced: Priced) -> None:
    """Price steps of many sizes now, so that no client waits while a table is read for the first time."""
    seqs = min(priced.rules.max_num_seqs, 256)
    outputs = np.arange(1, 2 * seqs + 1) % 32 + 1
    prompts = np.geomspace(1, min(8192, max(1, priced.longest - 32)), 2 * seqs).astype(np.int64)
    load = Workload(prompts, outputs.astype(np.int64), None, seqs)
    simulate(load, [priced.replica()], None, block_size=priced.rules.block_size, longest=priced.longest)


def listen(
    priced: Priced,
    names: tuple[str, ...],
    address: str,
    *,
    replicas: int = 1,
    router: str = "least-loaded",
    speed: float = 1.0,
    lose: str | None = None,
    draw: Callable[[], int] | None = None,
    most_waiting: int = 4096,
    record: Path | None = None,
    version: str = "",
    announce: Callable[[str, str], None] = print,
) -> None:
    """Serve until interrupted. `announce` gets the address once it is bound, and the token ("": none is wanted).

    Raises UserError.
    """
    try:
        import uvicorn  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("serve listen needs a server; install it with: pip install 'windtunnel[serve]'") from None
    if not 0.001 <= speed <= 1000.0:
        raise SpecError("speed", speed, "give 0.001 to 1000 simulated seconds per second")
    if most_waiting < 1:
        raise SpecError("max_waiting", most_waiting, "give at least 1")
    if not priced.fits:
        raise UserError("the model does not fit: `windtunnel serve` says by how much")
    host, port = parsed_address(address)
    losses = parsed_losses(lose, replicas)
    rules = priced.rules
    warm_up(priced)
    fleet = Fleet(priced.replica, replicas, ROUTERS[router](), round(priced.profile.first_token_s * 1e9))
    bound = bound_socket(host, port, "address")
    try:
        file = None if record is None else open(record, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    except OSError as error:
        bound.close()
        raise InputFileError(record or "", error.strerror or str(error), "give a file that can be written") from None
    try:
        engine = Engine(
            fleet,
            Clock(speed),
            block_size=rules.block_size,
            draw=draw,
            most_waiting=most_waiting,
            losses=losses,
            record=file,
        )
        named_blocks = rules.block_size if rules.prefix_caching else 0
        app = application(engine, names, priced.longest, version, named_blocks, int(time.time()))
        token = token_of(bound)
        announce(origin_of(host, bound.getsockname()[1]), token)
        guard = Guard(app, hosts_of(host, bound), token, page=False, most=lambda path: BODY_BYTES_MOST)
        server(guard, stop_s=STOP_S).run(sockets=[bound])
    finally:
        bound.close()
        if file is not None:
            file.close()
