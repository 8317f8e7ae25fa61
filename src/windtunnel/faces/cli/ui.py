"""`windtunnel ui`: the local page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.cli.output import note

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def ui(
    *,
    port: Annotated[int, Parameter(help="Port (8765); 0 takes a free one.")] = 8765,
    host: Annotated[
        str, Parameter(help="Address to listen on; others than loopback ask for a token (127.0.0.1).")
    ] = "127.0.0.1",
    runs: Annotated[Path, Parameter(help="Folder of the run folders that the page shows and keeps (runs).")] = Path(
        "runs"
    ),
    open: Annotated[bool, Parameter(negative="--no-open", help="Open the browser.")] = True,
) -> None:
    """Ask, vary, search and compare in the browser, served by this machine alone."""
    import secrets
    import socket

    try:
        import starlette  # noqa: F401
        import uvicorn
    except ModuleNotFoundError:
        raise UserError("the page needs a server; install it with: pip install 'windtunnel[ui]'") from None
    if not 0 <= port < 65536:
        raise SpecError("--port", port, "give 0 to 65535")
    if runs.exists() and not runs.is_dir():
        raise SpecError("--runs", str(runs), "is no folder; give the folder of the runs")
    from windtunnel.faces.ui.server import application

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2048)  # whoever connects from now on is answered, if not at once
    except OSError as error:
        raise SpecError("--port", port, f"cannot be listened on ({error.strerror}); give another, or 0") from None
    taken = bound.getsockname()[1]
    token = "" if host in LOOPBACK else secrets.token_urlsafe(24)
    names = LOOPBACK if host in LOOPBACK else (*LOOPBACK, host, socket.gethostname())
    hosts = tuple(f"[{name}]:{taken}" if ":" in name else f"{name}:{taken}" for name in names)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{taken}/{f'?token={token}' if token else ''}"

    def ready() -> None:
        note(f"windtunnel is at {address} (Ctrl-C ends it)")
        if open:
            import threading
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    app = application(runs.absolute(), hosts, token, ready)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
    server.run(sockets=[bound])
