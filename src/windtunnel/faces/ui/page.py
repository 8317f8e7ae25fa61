"""What the page shows: each method draws one page, or a part of one, of the runs, the jobs and an answer.

Answers are computed one at a time, under a lock; long ones are processes (`jobs.py`).
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Lock
from urllib.parse import urlencode

from windtunnel.errors import SpecError, UnknownNameError, UserError
from windtunnel.faces.report.draw.page import body_of, page_of, page_template
from windtunnel.faces.report.plans import plans_document
from windtunnel.faces.report.prediction.views import advice_views, prediction_document
from windtunnel.faces.report.run_list import RunList, runs_document
from windtunnel.faces.ui.form import FILE, FIRST, SECOND, SLIDERS, START, FormQuestion, asked_of, plan_fields
from windtunnel.faces.ui.jobs import VERBS, Job, JobList
from windtunnel.faces.ui.swept import address_of, shown
from windtunnel.faces.ui.variations import VARIED, points
from windtunnel.physics.step.result import Result
from windtunnel.questions import QUESTIONS
from windtunnel.questions.form import Input, inputs, of_form
from windtunnel.questions.old import question_of_command
from windtunnel.questions.words import words as words_of
from windtunnel.studies.planning.answers.plans import Planned, Plans
from windtunnel.views import Document

SHOWN_MOST = 100  # runs on one page of the list
KEPT_MOST = 32  # answers
LAYOUT = ("tp", "pp", "cp", "ep", "etp", "dp")
FIRST_VIEWS = 2  # the verdict and the main figures, which stand before the advice
FORM = {"labels": VARIED, "sliders": SLIDERS}
# Which files a field of this name takes beside one as its example; and where each verb stands in the list.
FILES = {
    "log": "out log txt jsonl",
    "trace": "gz et parquet json",
    "traces": "gz et parquet json",
    "config": "yaml sh",
    "model": "sh toml args json",
}
AREAS = {
    "Training: plans, cost, failures": ("plan", "decide", "survive", "techniques"),
    "A run of my own": ("diagnose", "check", "explain"),
    "Serving": ("serve",),
    "Reinforcement learning": ("rl",),
    "Many jobs on one cluster": ("fleet",),
    "Parts: a model, a network, a NIC": ("model", "fabric", "nic"),
    "Tables": ("sweep", "calibrate", "validate"),
}
# What a search for plans leaves as it was asked; the layout is what it looks for.
SEARCH_KEEPS = ("global_batch", "seq_len", "precision", "framework", "optimizer")


class Page:
    """What the routes share: the runs, the jobs, and a lock around the one prediction at a time."""

    def __init__(self, root: Path) -> None:
        self.runs, self.jobs, self.lock = RunList(root), JobList(root), Lock()
        self.root = root
        self._answered: OrderedDict[Hashable, Result] = OrderedDict()

    def draw(self, template: str, /, **parts: object) -> str:
        """A template of this package with its parts."""
        return page_template(template, "windtunnel.faces.ui").render(**parts)

    def result(self, form: FormQuestion) -> Result:
        """The answer to a question; the last ones are kept, since keeping, going back and advice ask the same again."""
        files = self.jobs.uploads  # a file that is dropped again may answer otherwise
        key = (repr(form), files.stat().st_mtime_ns if files.is_dir() else 0)
        with self.lock:
            if key not in self._answered:
                self._answered[key] = form.answer()
            self._answered.move_to_end(key)
            while len(self._answered) > KEPT_MOST:
                self._answered.popitem(last=False)
            return self._answered[key]

    # Ask

    def ask(self, values: Mapping[str, str]) -> str:
        """The form, filled."""
        from windtunnel.physics.hardware.catalogue import cluster_names, gpu_names
        from windtunnel.physics.model.catalogue import catalogue_names

        fields = plan_fields()
        return self.draw(
            "ask.html.j2",
            title="Ask",
            here="ask",
            **FORM | {"values": dict(values) or START},
            models=[*catalogue_names(), *(name for name in self.jobs.files() if name.endswith(".json"))],
            machines=[*gpu_names(), *cluster_names(), *(n for n in self.jobs.files() if n.endswith((".yaml", ".yml")))],
            first=[fields[name] for name in FIRST],
            second=[fields[name] for name in SECOND],
            more=[field for name, field in fields.items() if name not in (*FIRST, *SECOND)],
        )

    def answer(self, values: Mapping[str, str]) -> str:
        """The answer to a filled form, or what is wrong with it."""
        try:
            form = asked_of(values, self.jobs.uploads)
            result = self.result(form)
            python, yaml = form.as_python(), form.as_yaml()
        except UserError as error:
            field = field_of(error)
            remedy = "; or press Find the best plan, which chooses the layout" if field in LAYOUT else ""
            return self.draw("mistake.html.j2", text=f"{error}{remedy}", field=field)
        document = prediction_document(result)
        return self.draw(
            "answer.html.j2",
            reproduce=result.reproduce,
            first=body_of(replace(document, views=document.views[:FIRST_VIEWS], details=[], command="")),
            body=body_of(replace(document, views=document.views[FIRST_VIEWS:]), heading=False),
            resolved=resolved_of(result),
            python=python,
            yaml=yaml,
        )

    def advice(self, values: Mapping[str, str]) -> str:
        """What would make a filled form's step shorter, or make it fit; nothing where the form is wrong."""
        try:
            form = asked_of(values, self.jobs.uploads)
            with self.lock:
                result = form.answer(advice=True)
        except UserError:
            return ""  # the answer beside it says what is wrong
        views = advice_views(result)
        return body_of(Document("advice", "", views), heading=False) if views else ""

    def keep(self, values: Mapping[str, str]) -> str:
        """Save the answer to a filled form as a run folder; its name."""
        from windtunnel.faces.report.run_folder import save

        return save(self.result(asked_of(values, self.jobs.uploads)), self.root).name

    def kept(self, values: Mapping[str, str]) -> str:
        """Save the answer, and say where it is."""
        return self.draw("kept.html.j2", name=self.keep(values))

    def search(self, values: Mapping[str, str]) -> str:
        """Begin a search for the best plan of a filled form's model on its cluster; the job's name."""
        form = asked_of(values, self.jobs.uploads)
        form.question()  # says what is wrong before anything runs
        settings = form.plan_fields()
        words = [Path(form.model).name, "--cluster", Path(form.cluster).name]  # a dropped file by its name alone
        for name in SEARCH_KEEPS:
            if name in settings:
                words += [f"--{name.replace('_', '-')}", shown(settings[name])]
        words += [word for text in form.sets for word in ("--set", text)]
        words += [word for text in form.scenario.slow for word in ("--slow", Path(text).name)]
        return self.jobs.start("plan", shlex.join(words))

    # Vary

    def vary(self, values: Mapping[str, str]) -> str:
        """The page that varies one field."""
        fields = [plan_fields()[name] for name in VARIED if name in plan_fields()]
        form = FORM | {"values": dict(values) or START, "vary": values.get("vary", "tp"), "varied": VARIED}
        return self.draw("vary.html.j2", title="What if", here="vary", fields=fields, **form)

    def points(self, values: Mapping[str, str]) -> str:
        """Answers over the values of one field, as small multiples."""
        try:
            price = float(values.get("price", "").strip() or 2.5)
            if not 0.0 <= price < math.inf:
                raise ValueError
            form = asked_of(values, self.jobs.uploads)
            with self.lock:
                answers = points(values.get("vary", "tp"), values, self.jobs.uploads)
        except UserError as error:
            return self.draw("mistake.html.j2", text=str(error), field=field_of(error))
        except ValueError:
            return self.draw("mistake.html.j2", text="price: give a number of dollars per GPU-hour", field="price")
        try:
            resolved = resolved_of(self.result(form))
        except UserError:  # its own line of the table says so
            resolved = {}
        answered = [point for point in answers if point.result]
        now = next((point.result for point in answered if point.now), None)
        fitting = [point for point in answered if point.result and point.result.status == "ok"]
        return self.draw(
            "points.html.j2",
            vary=VARIED[values.get("vary", "tp")],
            price=price,
            resolved=resolved,
            slow=values.get("vary") == "slow",
            points=answers,
            best=min(fitting, key=lambda point: point.step_time_s, default=None),
            now=now,
            longest_ns=max((point.result.step_time_p95_ns for point in answered if point.result), default=1) or 1,
            fullest=max([1.0, *(point.memory_share for point in answered)]),
            dearest=max((point.dollars_per_million_tokens(price) for point in answered), default=1.0) or 1.0,
        )

    # Runs

    def list_runs(self, values: Mapping[str, str], part: bool) -> str:
        """The list, or its rows alone."""
        search, tag = values.get("search", "").strip(), values.get("tag", "")
        if search or tag:
            runs = self.runs.matching(search, tag)
            count = len(runs)
        else:
            runs, count = self.runs.newest(SHOWN_MOST)
        tags = self.runs.tags()
        body = body_of(runs_document(runs[:SHOWN_MOST], tags, "", some=False, page=True), heading=False)
        parts = {"body": body, "count": count, "most": SHOWN_MOST}
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
            body=body_of(prediction_document(result)),
        )

    def compare(self, names: list[str]) -> str:
        """Two runs or more side by side; of two, what explains the difference."""
        from windtunnel.faces.report.comparison.views import runs_document

        if not 2 <= len(names) <= 8:
            raise SpecError("run", len(names), "choose two to eight runs in the list")
        runs = {self.runs.find_run(name): self.runs.result(name) for name in names}
        body = body_of(runs_document(runs))
        return self.draw("run.html.j2", title="Compare", here="runs", name="", tags="", body=body)

    def download(self, name: str, kind: str) -> tuple[bytes, str, str]:
        """(content, media type, file name) of a run as one HTML file, a Perfetto trace or JSON."""
        result = self.runs.result(name)
        if kind == "html":
            return page_of(prediction_document(result)).encode(), "text/html", f"{name}.html"
        if kind == "trace":
            from windtunnel.faces.report.prediction.trace import trace_bytes

            return trace_bytes(result), "application/gzip", f"{name}.json.gz"
        if kind == "json":
            return self.runs.result_path(name).read_bytes(), "application/json", f"{name}.json"
        raise SpecError("kind", kind, "use html, trace or json")

    # Studies

    def studies(self, values: Mapping[str, str]) -> str:
        """A form for a long question, made of the fields that it has, and the list of those asked."""
        verb = values.get("verb", "plan")
        if verb not in VERBS:
            raise SpecError("verb", verb, f"use one of {', '.join(VERBS)}")
        example = QUESTIONS[verb].example
        question = question_of_command(f"windtunnel {verb} {example}") if example else None
        fields = list(inputs(verb, question))
        if set(values) <= {"verb"}:  # a form that nobody has filled begins with a question that people ask
            started = {field.name: field.value for field in fields if not FILE.fullmatch(field.value)}
            values = {**started, **values}
        groups: dict[str, list[Input]] = {}
        for field in fields:
            groups.setdefault("rare" if field.rare else field.group, []).append(field)
        return self.draw(
            "studies.html.j2",
            title="Studies",
            here="studies",
            areas={
                area: {name: QUESTIONS[name].text.partition("\n")[0] for name in VERBS if name.split()[0] in those}
                for area, those in AREAS.items()
            },
            verb=verb,
            takes={
                field.name: " ".join([*FILE.findall(field.value), FILES.get(field.label, "")]).strip()
                for field in fields
            },
            values=values,
            rare=groups.pop("rare", []),
            groups=groups,
            labels={f"plan.{name}": label for name, label in VARIED.items()},
            jobs=self.jobs.all(),
            files=self.jobs.files(),
        )

    def start(self, form: Mapping[str, str]) -> str:
        """Begin what a study's form asks, or the words of its command line; the job's name. Raises UserError."""
        verb, line = form.get("verb", ""), form.get("words", "").strip()
        if not line and verb in VERBS:
            texts = {name: text.strip() for name, text in form.items() if name not in ("verb", "words")}
            line = shlex.join(words_of(of_form(verb, texts)))
        return self.jobs.start(verb, line)

    def job(self, name: str, part: bool) -> str:
        """One long question: how far it is, and its answer."""
        job, folder = self.jobs.get(name), self.jobs.path(name)
        answer = ""
        if job.state in ("done", "failed") and (folder / "answer.json").is_file():
            answer = (folder / "answer.json").read_text(errors="replace")
        return self.draw(
            "job_state.html.j2" if part else "job.html.j2",
            title=job.verb,
            here="studies",
            job=job,
            plans=plans_of(answer) if job.verb == "plan" else "",
            answer=answer[:ANSWER_MOST],
            again=urlencode(form_of(job)),
            drawn=job.report and job.verb != "plan",
            began_s=round(time.time() - job.begun_s),
        )


ANSWER_MOST = 200_000


def form_of(job: Job) -> dict[str, str]:
    """The fields of a study's form as they were when it was asked; its words where those are no question's."""
    try:
        question = question_of_command(job.command)
    except UserError:
        return {"verb": job.verb, "words": shlex.join(job.words)}
    return {"verb": job.verb, **{field.name: field.value for field in inputs(job.verb, question) if field.value}}


def resolved_of(result: Result) -> dict[str, str]:
    """What was filled in for the fields that a form left open."""
    plan = result.spec.get("plan", {})
    return {name: shown(value) for name, value in plan.items() if value is not None} | {"gpus": str(result.n_gpus)}


def plans_of(answer: str) -> str:
    """What `plan --json` found as its report shows it, each plan linked to Ask; empty for anything else."""
    try:
        document = json.loads(answer)
        for plan in (
            *document["plans"],
            *document["front"],
        ):  # JSON's keys are sorted; a plan is said as a form shows it
            plan["plan"] = {name: plan["plan"][name] for name in plan_fields() if name in plan["plan"]}
        return body_of(plans_document(Plans.from_dict(document), "", plan_address), heading=False)
    except (ValueError, KeyError, TypeError):
        return ""


def plan_address(plan: Planned) -> str:
    """Where Ask shows a plan that was found."""
    words = shlex.split(plan.reproduce)
    sets = [value for flag, value in pairwise(words) if flag == "--set"]
    values = {"model": words[2], **plan.plan, **({"set": "\n".join(sets)} if sets else {})}
    return f"/?{address_of(words[words.index('--cluster') + 1], values)}"


def field_of(error: UserError) -> str:
    """The field of the form that an error is about; "" where it names none."""
    if isinstance(error, SpecError):
        name = error.field.removeprefix("plan.").removeprefix("--").replace("-", "_").partition(".")[0]
        return {"cluster": "gpu", "n_gpus": "gpus"}.get(name, name)
    if isinstance(error, UnknownNameError):
        return {"model": "model", "GPU": "gpu", "pipeline schedule": "schedule"}.get(error.kind, "")
    text = str(error)
    names = (*plan_fields(), "gpus")
    return next((name for name in names if text.startswith((f"{name} ", f"{name}:"))), "")
