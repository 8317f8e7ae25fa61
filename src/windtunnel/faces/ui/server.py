"""Routes of the local page: which address shows what.

    /                    ask: a form, and the answer to it
    /answer              the answer as a part of the page, at every key stroke
    /advice              what would make it better, behind the answer
    /search              begins a search for the best plan of what is asked
    /vary  /points       one field over its values
    /runs ...            saved answers: list, search, tag, show, compare, delete, download
    /studies ...         long questions: plan, sweep, serve, fleet, survive, explain

What they show is drawn by `page.py`, in threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qsl

from windtunnel.errors import InputFileError, UserError
from windtunnel.faces.report.draw.page import page_template
from windtunnel.faces.ui.form import field_for
from windtunnel.faces.ui.page import Page, field_of
from windtunnel.faces.ui.swept import journalled, tabled
from windtunnel.http_guard import Guard

SCRIPTS = ("page.js", "cloud.js", "htmx.min.js")
REPORT_SCRIPT = "views.js"
POST = ("POST",)
POLL_S = 0.5
UPLOAD_BYTES_MOST = 256 << 20
FORM_BYTES_MOST = 1 << 20
# No script may run but the files of this package: text from a spec, a trace or a run is escaped, and would be refused
# if it were not.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self';"
    " frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
# A report that a job drew runs its own script, so it is shown apart from the page: no cookie, no page, no network.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)


def application(root: Path, hosts: frozenset[str], token: str = "", ready: Callable[[], None] = lambda: None) -> Guard:
    """The ASGI application. `root`: where runs lie; `hosts`: names, with port, under which it may be asked; `ready` is
    called when it would answer at once."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route

    page, static_files = Page(root), scripts()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(page.ask, {})  # imports and compiles what the first reader would wait for
        ready()
        yield

    def values_of(request: Request) -> dict[str, str]:
        return {key: value[:4000] for key, value in request.query_params.items() if key != "token"}

    def shows(draw: Callable[[Request], str]) -> Callable[[Request], object]:
        """A page, or one clear sentence with status 400."""

        @wraps(draw)
        async def respond(request: Request) -> Response:
            try:
                return HTMLResponse(await run_in_threadpool(draw, request))
            except UserError as error:
                status = 404 if isinstance(error, InputFileError) else 400
                return HTMLResponse(page.draw("error.html.j2", title="Sorry", here="", text=str(error)), status)

        return respond

    def does(act: Callable[[Request, dict[str, str]], object], next_page: str = "{0}") -> Callable[[Request], object]:
        """Something that changes, and where to go next; without a page, the answer is a part of this one."""

        async def respond(request: Request) -> Response:
            body = (await request.body()).decode("utf-8", "replace")
            form = {key: value[:20_000] for key, value in parse_qsl(body, keep_blank_values=True)}
            try:
                where = next_page.format(await run_in_threadpool(act, request, form), **request.path_params)
            except UserError as error:
                return HTMLResponse(page.draw("mistake.html.j2", text=str(error), field=field_of(error)), 200)
            if request.headers.get("hx-request"):
                return Response(headers={"HX-Redirect": where}) if where.startswith("/") else HTMLResponse(where)
            return RedirectResponse(where, 303)

        return respond

    def sends(make: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """A file, or what is wrong with its name with status 404."""

        @wraps(make)
        def respond(request: Request) -> Response:
            try:
                return make(request)
            except UserError as error:
                return Response(str(error), 404)

        return respond

    def named(request: Request) -> str:
        name: str = request.path_params["name"]
        return name

    async def upload(request: Request) -> Response:
        name = request.query_params.get("name", "")
        content = await request.body()
        try:
            file_name = await run_in_threadpool(page.jobs.add_file, name, content)
            field = await run_in_threadpool(field_for, page.jobs.uploads / file_name)
            return Response(file_name, media_type="text/plain", headers={"x-field": field})
        except UserError as error:
            return Response(str(error), 400, media_type="text/plain")

    def watch(request: Request) -> Response:
        """Server-sent events: the state of a job, until it ends."""
        folder = page.jobs.path(named(request))

        async def events() -> AsyncIterator[bytes]:
            before, offset = "", 0
            while not await request.is_disconnected():
                try:
                    job = await run_in_threadpool(page.jobs.get, folder.name)
                except InputFileError:  # another tab removed it
                    return
                after = -1
                while job.verb in ("sweep", "plan") and after != offset:
                    after = offset
                    points, offset = await run_in_threadpool(journalled, folder, offset)
                    if points:
                        yield f"event: points\ndata: {json.dumps(points)}\n\n".encode()
                state = json.dumps({"state": job.state, "said": job.progress})
                if state != before:
                    yield f"data: {state}\n\n".encode()
                    before = state
                if job.state != "running":
                    return
                await asyncio.sleep(POLL_S)

        return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    def job_points(request: Request) -> Response:
        return Response(json.dumps(tabled(page.jobs.path(named(request)))), media_type="application/json")

    def job_report(request: Request) -> Response:
        path = page.jobs.path(named(request)) / "report.html"
        if not path.is_file():
            return Response("no report yet", 404)
        return Response(path.read_bytes(), media_type="text/html", headers={"content-security-policy": REPORT_POLICY})

    def download(request: Request) -> Response:
        content, media, name = page.download(named(request), request.path_params["kind"])
        return Response(content, media_type=media, headers={"content-disposition": f'attachment; filename="{name}"'})

    async def static(request: Request) -> Response:
        static_file = static_files.get(request.path_params["name"])
        if static_file is None:
            return Response("no such file", 404)
        return Response(static_file, media_type="text/javascript", headers={"cache-control": "max-age=60"})

    routes = [
        Route("/", shows(lambda request: page.ask(values_of(request)))),
        Route("/answer", shows(lambda request: page.answer(values_of(request)))),
        Route("/advice", shows(lambda request: page.advice(values_of(request)))),
        Route("/keep", does(lambda _, form: page.kept(form)), methods=POST),
        Route("/search", does(lambda _, form: page.search(form), "/studies/{0}"), methods=POST),
        Route("/vary", shows(lambda request: page.vary(values_of(request)))),
        Route("/points", shows(lambda request: page.points(values_of(request)))),
        Route("/runs", shows(lambda request: page.list_runs(values_of(request), False))),
        Route("/runs/rows", shows(lambda request: page.list_runs(values_of(request), True))),
        Route(
            "/runs/delete",
            does(lambda request, _: page.runs.delete(*request.query_params.getlist("run")), "/runs"),
            methods=POST,
        ),
        Route("/compare", shows(lambda request: page.compare(request.query_params.getlist("run")))),
        Route("/runs/{name}", shows(lambda request: page.show_run(named(request)))),
        Route(
            "/runs/{name}/tags",
            does(lambda request, form: page.runs.tag(named(request), form.get("tags", "")), "/runs/{name}"),
            methods=POST,
        ),
        Route("/runs/{name}/file/{kind}", sends(download)),
        Route("/studies", shows(lambda request: page.studies(values_of(request)))),
        Route("/studies/start", does(lambda _, form: page.start(form), "/studies/{0}"), methods=POST),
        Route("/studies/{name}", shows(lambda request: page.job(named(request), False))),
        Route("/studies/{name}/state", shows(lambda request: page.job(named(request), True))),
        Route("/studies/{name}/watch", sends(watch)),
        Route(
            "/studies/{name}/stop",
            does(lambda request, _: page.jobs.stop(named(request)), "/studies/{name}"),
            methods=POST,
        ),
        Route(
            "/studies/{name}/delete",
            does(lambda request, _: page.jobs.delete(named(request)), "/studies"),
            methods=POST,
        ),
        Route("/studies/{name}/report", sends(job_report)),
        Route("/studies/{name}/points", sends(job_points)),
        Route("/uploads", upload, methods=POST),
        Route("/static/{name}", static),
    ]

    async def nothing(request: Request, _: Exception) -> Response:
        text = f"{request.url.path}: there is no such page"
        return HTMLResponse(page.draw("error.html.j2", title="Sorry", here="", text=text), 404)

    return Guard(
        Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: nothing}),
        hosts,
        token,
        page=True,
        most=lambda path: UPLOAD_BYTES_MOST if path == "/uploads" else FORM_BYTES_MOST,
        headers=HEADERS,
    )


def scripts() -> dict[str, bytes]:
    """The files that the pages load, by their names. Styles are in the pages, so that they are painted at once."""
    folder = files("windtunnel.faces.ui") / "static"
    contents = {name: (folder / name).read_bytes() for name in SCRIPTS}
    return contents | {REPORT_SCRIPT: page_template(REPORT_SCRIPT).render().encode()}
