"""`windtunnel ui`: the local page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.cli.output import note


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
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("the page needs a server; install it with: pip install 'windtunnel[ui]'") from None
    if not 0 <= port < 65536:
        raise SpecError("--port", port, "give 0 to 65535")
    if runs.exists() and not runs.is_dir():
        raise SpecError("--runs", str(runs), "is no folder; give the folder of the runs")
    from windtunnel.faces.ui.server import application
    from windtunnel.http_guard import bound_socket, hosts_of, origin_of, server, token_of

    bound = bound_socket(host, port, "--port")
    token = token_of(bound)
    address = f"{origin_of(host, bound.getsockname()[1])}/{f'?token={token}' if token else ''}"

    def ready() -> None:
        note(f"windtunnel is at {address} (Ctrl-C ends it)")
        if open:
            import threading
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    server(application(runs.absolute(), hosts_of(host, bound), token, ready)).run(sockets=[bound])
