"""Routes of the local page: which address shows what.

    /                    ask: a form, and the answer to it
    /answer              the answer as a part of the page, at every key stroke
    /advice              what would make it better, behind the answer
    /vary  /points       one field over its values
    /runs ...            saved answers: list, search, tag, show, compare, delete, download
    /studies ...         long questions: plan, sweep, serve, fleet, survive, explain

Answers are computed one at a time, in a thread; long ones are processes (`jobs.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from functools import wraps
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from windtunnel.errors import InputFileError, SpecError, UnknownNameError, UserError
from windtunnel.report import figures
from windtunnel.report.pages import page_template
from windtunnel.report.prediction.html import view_of
from windtunnel.report.run_list import RunList
from windtunnel.result import Result
from windtunnel.ui.form import FIRST, SECOND, START, Asked, asked_of, field_for, plan_fields
from windtunnel.ui.guard import Guard
from windtunnel.ui.jobs import REPORTS, VERBS, JobList
from windtunnel.ui.swept import journalled, tabled
from windtunnel.ui.variations import VALUES, points

STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "cloud.js": "text/javascript",
    "htmx.min.js": "text/javascript",
}
REPORT_PARTS = {
    "report.css": ("report.css", "disturbed.css"),
    "report.js": ("report.js", "heatmap.js"),
}
SHOWN_MOST = 200  # runs on one page of the list
POLL_S = 0.5
KEPT_MOST = 32  # answers
# A report that a job drew runs its own script, so it is shown apart from the page: no cookie, no page, no network.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)


class Page:
    """What the routes share: the runs, the jobs, and a lock around the one prediction at a time."""

    def __init__(self, root: Path) -> None:
        self.runs, self.jobs, self.lock = RunList(root), JobList(root), Lock()
        self.root = root
        self._answered: OrderedDict[Hashable, Result] = OrderedDict()

    def draw(self, template: str, /, **parts: Any) -> str:
        """A template of this package with its parts."""
        return page_template(template, "windtunnel.ui").render(**parts)

    def result(self, asked: Asked) -> Result:
        """The answer to a question; the last ones are kept, since keeping, going back and advice ask the same again."""
        files = self.jobs.uploads  # a file that is dropped again may answer otherwise
        key = (repr(asked), files.stat().st_mtime_ns if files.is_dir() else 0)
        with self.lock:
            if key not in self._answered:
                self._answered[key] = asked.answer()
            self._answered.move_to_end(key)
            while len(self._answered) > KEPT_MOST:
                self._answered.popitem(last=False)
            return self._answered[key]

    # Ask

    def ask(self, values: Mapping[str, str]) -> str:
        """The form, filled."""
        from windtunnel.hardware.catalogue import cluster_names, gpu_names
        from windtunnel.model.catalogue import catalogue_names

        fields = plan_fields()
        filled = dict(values) or dict(START)
        return self.draw(
            "ask.html.j2",
            title="Ask",
            here="ask",
            values=filled,
            models=[*catalogue_names(), *(name for name in self.jobs.files() if name.endswith(".json"))],
            machines=[*gpu_names(), *cluster_names(), *(n for n in self.jobs.files() if n.endswith((".yaml", ".yml")))],
            first=[fields[name] for name in FIRST],
            second=[fields[name] for name in SECOND],
            more=[field for name, field in fields.items() if name not in (*FIRST, *SECOND)],
        )

    def answer(self, values: Mapping[str, str]) -> str:
        """The answer to a filled form, or what is wrong with it."""
        try:
            asked = asked_of(values, self.jobs.uploads)
            result = self.result(asked)
            python, yaml = asked.as_python(), asked.as_yaml()
        except UserError as error:
            return self.draw("mistake.html.j2", text=str(error), field=field_of(error))
        plan = result.spec.get("plan", {})
        resolved = {name: shown(value) for name, value in plan.items() if value is not None}
        resolved["gpus"] = str(result.n_gpus)
        return self.draw(
            "answer.html.j2",
            **(view_of(result) | {"advice_later": True}),
            resolved=resolved,
            python=python,
            yaml=yaml,
        )

    def advice(self, values: Mapping[str, str]) -> str:
        """What would make a filled form's step shorter, or make it fit; nothing where the form is wrong."""
        try:
            asked = asked_of(values, self.jobs.uploads)
            with self.lock:
                result = asked.answer(advice=True)
        except UserError:
            return ""  # the answer beside it says what is wrong
        return page_template("advice.html.j2").render(advice=view_of(result)["advice"])

    def keep(self, values: Mapping[str, str]) -> str:
        """Save the answer to a filled form as a run folder; its name."""
        from windtunnel.report.run_folder import save

        return save(self.result(asked_of(values, self.jobs.uploads)), self.root).name

    # Vary

    def vary(self, values: Mapping[str, str]) -> str:
        """The page that varies one field."""
        filled = dict(values) or dict(START)
        return self.draw(
            "vary.html.j2",
            title="What if",
            here="vary",
            values=filled,
            fields=list(VALUES),
            vary=filled.get("vary", "tp"),
        )

    def points(self, values: Mapping[str, str]) -> str:
        """Answers over the values of one field, as small multiples."""
        try:
            price = float(values.get("price", "").strip() or 2.5)
            asked_of(values, self.jobs.uploads)
            with self.lock:
                found = points(values.get("vary", "tp"), values, self.jobs.uploads)
        except UserError as error:
            return self.draw("mistake.html.j2", text=str(error), field=field_of(error))
        except ValueError:
            return self.draw("mistake.html.j2", text="price: give a number of dollars per GPU-hour", field="price")
        answered = [point for point in found if not point.problem]
        longest = max((point.p95_s for point in answered), default=1.0) or 1.0
        fullest = max([1.0, *(point.memory_share for point in answered)])
        costs = [point.dollars_per_million_tokens(price) for point in answered]
        return self.draw(
            "points.html.j2",
            vary=values.get("vary", "tp").replace("_", " "),
            price=f"{price:g}",
            rows=[
                {
                    "point": point,
                    "time": figures.duration(point.step_time_s * 1e9) if not point.problem else "",
                    "low": figures.duration(point.p5_s * 1e9) if not point.problem else "",
                    "high": figures.duration(point.p95_s * 1e9) if not point.problem else "",
                    "left": f"{point.p5_s / longest * 100:.2f}",
                    "width": f"{(point.p95_s - point.p5_s) / longest * 100:.2f}",
                    "middle": f"{point.step_time_s / longest * 100:.2f}",
                    "memory": f"{point.memory_share:.0%}",
                    "memory_width": f"{point.memory_share / fullest * 100:.2f}",
                    "full": f"{100 / fullest:.2f}",
                    "cost": f"${point.dollars_per_million_tokens(price):,.3f}",
                    "cost_width": f"{point.dollars_per_million_tokens(price) / (max(costs, default=1) or 1) * 100:.2f}",
                }
                for point in found
            ],
        )

    # Runs

    def list_runs(self, values: Mapping[str, str], part: bool) -> str:
        """The list, or its rows alone."""
        found = self.runs.matching(values.get("search", ""), values.get("tag", ""))
        tags = self.runs.tags()
        rows = [
            {
                "run": run,
                "time": figures.duration(run.step_time_s * 1e9) if run.step_time_s else "",
                "low": figures.duration(run.p5_s * 1e9) if run.p5_s else "",
                "high": figures.duration(run.p95_s * 1e9) if run.p95_s else "",
                "tags": ", ".join(tags.get(run.name, ())),
            }
            for run in found[:SHOWN_MOST]
        ]
        parts = {"rows": rows, "count": len(found), "most": SHOWN_MOST}
        if part:
            return self.draw("run_rows.html.j2", **parts)
        every = sorted({tag for those in tags.values() for tag in those})
        return self.draw(
            "runs.html.j2", title="Runs", here="runs", search=values.get("search", ""), every=every, **parts
        )

    def show_run(self, name: str) -> str:
        """One saved run."""
        result = self.runs.result(name)
        return self.draw(
            "run.html.j2",
            title=f"Run {name}",
            here="runs",
            name=name,
            tags=", ".join(self.runs.tags().get(name, ())),
            **view_of(result),
        )

    def compare(self, names: list[str]) -> str:
        """Two runs or more side by side; of two, what explains the difference."""
        from windtunnel.report.comparison.compare import compare
        from windtunnel.report.prediction.categories import label_of

        if not 2 <= len(names) <= 8:
            raise SpecError("run", len(names), "choose two to eight runs in the list")
        results = [self.runs.result(name) for name in names]
        keys: dict[str, None] = {}
        for result in results:
            keys |= dict.fromkeys(sorted(result.breakdown_ns, key=lambda key: -result.breakdown_ns[key]))
        longest = max((value for result in results for value in result.breakdown_ns.values()), default=1) or 1
        comparison = compare(results[0], results[1]) if len(results) == 2 else None
        return self.draw(
            "compare.html.j2",
            title="Compare",
            here="runs",
            columns=[
                {
                    "name": name,
                    "run": self.runs.one(name),
                    "time": figures.duration(result.step_time_ns),
                    "low": figures.duration(result.step_time_p5_ns),
                    "high": figures.duration(result.step_time_p95_ns),
                    "mfu": f"{result.mfu:.1%}",
                    "tokens": f"{result.tokens_per_s_per_gpu:,.0f}",
                    "memory": f"{result.peak_memory.device_bytes / 2**30:.1f} GiB" if result.memory else "",
                }
                for name, result in zip(names, results, strict=True)
            ],
            rows=[
                {
                    "label": label_of(key),
                    "cells": [
                        {
                            "text": figures.duration(result.breakdown_ns.get(key, 0)),
                            "width": f"{result.breakdown_ns.get(key, 0) / longest * 100:.2f}",
                        }
                        for result in results
                    ],
                }
                for key in keys
            ],
            explanation=comparison.explanation if comparison else "",
            differences=[(one.field, shown(one.a), shown(one.b)) for one in comparison.spec] if comparison else [],
        )

    def download(self, name: str, kind: str) -> tuple[bytes, str, str]:
        """(content, media type, file name) of a run as one HTML file, a Perfetto trace or JSON."""
        result = self.runs.result(name)
        if kind == "html":
            from windtunnel.report.prediction.html import render_html

            return render_html(result).encode(), "text/html", f"{name}.html"
        if kind == "trace":
            from windtunnel.report.prediction.trace import trace_bytes

            return trace_bytes(result), "application/gzip", f"{name}.json.gz"
        if kind == "json":
            return self.runs.result_path(name).read_bytes(), "application/json", f"{name}.json"
        raise SpecError("kind", kind, "use html, trace or json")

    # Studies

    def studies(self, values: Mapping[str, str], mistake: str = "") -> str:
        """Forms for long questions, and the list of those asked."""
        return self.draw(
            "studies.html.j2",
            title="Studies",
            here="studies",
            verbs=VERBS,
            verb=values.get("verb", "plan"),
            words=values.get("words", EXAMPLES["plan"]),
            examples=EXAMPLES,
            jobs=self.jobs.all(),
            files=self.jobs.files(),
            mistake=mistake,
        )

    def job(self, name: str, part: bool) -> str:
        """One long question: how far it is, and its answer."""
        job, folder = self.jobs.get(name), self.jobs.path(name)
        answer = ""
        if job.state in ("done", "failed") and (folder / "answer.json").is_file():
            answer = (folder / "answer.json").read_text(errors="replace")[:ANSWER_MOST]
        return self.draw(
            "job_state.html.j2" if part else "job.html.j2",
            title=job.verb,
            here="studies",
            job=job,
            plans=plans_of(answer) if job.verb == "plan" else [],
            answer=answer,
            drawn=job.report and job.verb in REPORTS,
        )


ANSWER_MOST = 200_000
EXAMPLES = {
    "plan": "llama-3-70b --cluster h100-sxm:512 --global-batch 512 --seq 8192",
    "sweep": "study.yaml",
    "serve": "llama-3.1-70b --cluster h100-sxm:8 --tp 4 --engine vllm --prompt 2000 --output 300 --concurrency 32",
    "fleet": "trace.csv --cluster h100-sxm:1024 --policy fifo,tiresias",
    "survive": "llama-3.1-405b --cluster h100-sxm:16384 --tp 8 --pp 16 --global-batch 2048 --seq 8192 --days 54",
    "explain": "trace.parquet",
}


def plans_of(answer: str) -> list[dict[str, Any]]:
    """The ranked plans of a `plan --json`, for a table; empty for anything else."""
    try:
        plans = json.loads(answer)["plans"]
        return [
            {
                "plan": " · ".join(f"{key} {value}" for key, value in one["plan"].items() if key in PLAN_SHOWN),
                "time": figures.duration(one["step_time_s"] * 1e9),
                "band": f"{figures.duration(one['p5_s'] * 1e9)} – {figures.duration(one['p95_s'] * 1e9)}",
                "memory": f"{one['peak_memory_bytes'] / 2**30:.1f} GiB",
                "reproduce": str(one["reproduce"]),
            }
            for one in plans
        ]
    except (ValueError, KeyError, TypeError):
        return []


PLAN_SHOWN = ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "zero_stage", "recompute", "schedule")


def shown(value: Any) -> str:
    """A value as a form shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def field_of(error: UserError) -> str:
    """The field of the form that an error is about; "" where it names none."""
    if isinstance(error, SpecError):
        name = error.field.removeprefix("plan.").removeprefix("--").replace("-", "_").partition(".")[0]
        return {"cluster": "gpu", "n_gpus": "gpus"}.get(name, name)
    if isinstance(error, UnknownNameError):
        return {"model": "model", "GPU": "gpu", "pipeline schedule": "schedule"}.get(error.kind, "")
    text = str(error)
    known = (*plan_fields(), "gpus")
    return next((name for name in known if text.startswith((f"{name} ", f"{name}:"))), "")


def application(root: Path, hosts: tuple[str, ...], token: str = "") -> Any:
    """The ASGI application. `root`: where runs lie; `hosts`: names, with port, under which it may be asked."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route

    page = Page(root)
    page.ask({})  # imports what the first reader would wait for

    def values_of(request: Request) -> dict[str, str]:
        return {key: value[:4000] for key, value in request.query_params.items() if key != "token"}

    def shows(draw: Callable[[Request], str]) -> Callable[[Request], Any]:
        """A page, or one clear sentence with status 400."""

        @wraps(draw)
        async def respond(request: Request) -> Response:
            try:
                return HTMLResponse(await run_in_threadpool(draw, request))
            except UserError as error:
                status = 404 if isinstance(error, InputFileError) else 400
                return HTMLResponse(page.draw("error.html.j2", title="Sorry", here="", text=str(error)), status)

        return respond

    def does(act: Callable[[Request, Mapping[str, str]], str]) -> Callable[[Request], Any]:
        """Something that changes: the answer is where to go next, or part of a page."""

        @wraps(act)
        async def respond(request: Request) -> Response:
            body = (await request.body()).decode("utf-8", "replace")
            form = {key: value[:20_000] for key, value in parse_qsl(body, keep_blank_values=True)}
            try:
                where = await run_in_threadpool(act, request, form)
            except UserError as error:
                return HTMLResponse(page.draw("mistake.html.j2", text=str(error), field=field_of(error)), 200)
            if request.headers.get("hx-request"):
                return Response(headers={"HX-Redirect": where}) if where.startswith("/") else HTMLResponse(where)
            return RedirectResponse(where, 303)

        return respond

    def keep(request: Request, form: Mapping[str, str]) -> str:
        name = page.keep(form)
        return page.draw("kept.html.j2", name=name)

    def delete_runs(request: Request, form: Mapping[str, str]) -> str:
        for name in request.query_params.getlist("run"):
            page.runs.delete(name)
        return "/runs"

    def tag_run(request: Request, form: Mapping[str, str]) -> str:
        page.runs.tag(request.path_params["name"], form.get("tags", ""))
        return f"/runs/{request.path_params['name']}"

    def start_job(request: Request, form: Mapping[str, str]) -> str:
        return f"/studies/{page.jobs.start(form.get('verb', ''), form.get('words', ''))}"

    def stop_job(request: Request, form: Mapping[str, str]) -> str:
        page.jobs.stop(request.path_params["name"])
        return f"/studies/{request.path_params['name']}"

    def delete_job(request: Request, form: Mapping[str, str]) -> str:
        page.jobs.delete(request.path_params["name"])
        return "/studies"

    async def upload(request: Request) -> Response:
        name = request.query_params.get("name", "")
        content = await request.body()
        try:
            kept = await run_in_threadpool(page.jobs.add_file, name, content)
            field = await run_in_threadpool(field_for, page.jobs.uploads / kept)
            return Response(kept, media_type="text/plain", headers={"x-field": field})
        except UserError as error:
            return Response(str(error), 400, media_type="text/plain")

    async def watch(request: Request) -> Response:
        """Server-sent events: the state of a job, until it ends."""
        name = request.path_params["name"]
        try:
            page.jobs.get(name)
        except InputFileError as error:
            return Response(str(error), 404)

        async def events() -> AsyncIterator[bytes]:
            before, offset, folder = "", 0, page.jobs.path(name)
            while not await request.is_disconnected():
                job = await run_in_threadpool(page.jobs.get, name)
                after = -1
                while job.verb == "sweep" and after != offset:
                    after = offset
                    points, offset = await run_in_threadpool(journalled, folder, offset)
                    if points:
                        yield f"event: points\ndata: {json.dumps(points)}\n\n".encode()
                state = json.dumps({"state": job.state, "said": job.said})
                if state != before:
                    yield f"data: {state}\n\n".encode()
                    before = state
                if job.state != "running":
                    return
                await asyncio.sleep(POLL_S)

        return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    def job_points(request: Request) -> Response:
        try:
            points = tabled(page.jobs.path(request.path_params["name"]))
        except InputFileError as error:
            return Response(str(error), 404)
        return Response(json.dumps(points), media_type="application/json")

    def job_report(request: Request) -> Response:
        try:
            path = page.jobs.path(request.path_params["name"]) / "report.html"
        except InputFileError as error:
            return Response(str(error), 404)
        if not path.is_file():
            return Response("no report yet", 404)
        return Response(path.read_bytes(), media_type="text/html", headers={"content-security-policy": REPORT_POLICY})

    def download(request: Request) -> Response:
        try:
            content, media, name = page.download(request.path_params["name"], request.path_params["kind"])
        except UserError as error:
            return Response(str(error), 404)
        return Response(content, media_type=media, headers={"content-disposition": f'attachment; filename="{name}"'})

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name in REPORT_PARTS:
            text = "\n".join(page_template(part).render() for part in REPORT_PARTS[name])
            media = "text/css" if name.endswith(".css") else "text/javascript"
        elif name in STATIC:
            text, media = (files("windtunnel.ui") / "static" / name).read_text(encoding="utf-8"), STATIC[name]
        else:
            return Response("no such file", 404)
        return Response(text, media_type=media, headers={"cache-control": "max-age=60"})

    routes = [
        Route("/", shows(lambda request: page.ask(values_of(request)))),
        Route("/answer", shows(lambda request: page.answer(values_of(request)))),
        Route("/advice", shows(lambda request: page.advice(values_of(request)))),
        Route("/keep", does(keep), methods=["POST"]),
        Route("/vary", shows(lambda request: page.vary(values_of(request)))),
        Route("/points", shows(lambda request: page.points(values_of(request)))),
        Route("/runs", shows(lambda request: page.list_runs(values_of(request), False))),
        Route("/runs/rows", shows(lambda request: page.list_runs(values_of(request), True))),
        Route("/runs/delete", does(delete_runs), methods=["POST"]),
        Route("/compare", shows(lambda request: page.compare(request.query_params.getlist("run")))),
        Route("/runs/{name}", shows(lambda request: page.show_run(request.path_params["name"]))),
        Route("/runs/{name}/tags", does(tag_run), methods=["POST"]),
        Route("/runs/{name}/file/{kind}", download),
        Route("/studies", shows(lambda request: page.studies(values_of(request)))),
        Route("/studies/start", does(start_job), methods=["POST"]),
        Route("/studies/{name}", shows(lambda request: page.job(request.path_params["name"], False))),
        Route("/studies/{name}/state", shows(lambda request: page.job(request.path_params["name"], True))),
        Route("/studies/{name}/watch", watch),
        Route("/studies/{name}/stop", does(stop_job), methods=["POST"]),
        Route("/studies/{name}/delete", does(delete_job), methods=["POST"]),
        Route("/studies/{name}/report", job_report),
        Route("/studies/{name}/points", job_points),
        Route("/uploads", upload, methods=["POST"]),
        Route("/static/{name}", static),
    ]
    return Guard(Starlette(routes=routes), hosts, token)
