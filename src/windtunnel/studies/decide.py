"""The answer to `decide`: clusters and models side by side, each figure that of the verb that is named beside it.

    plan        best plan in the time that is given     -> step, band, head-room
    survive     on the same failures by GPU and hour    -> share of the time that trains
    days        tokens / (tokens/s x that share)
    cost        days x GPUs x price; break-even: the price at which it costs what the cheapest other one does
    energy      at the GPUs' rated power, as `plan` counts it

Two are told apart only where their bands of days (or of cost) do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.hardware import Cluster
from windtunnel.questions.asked.decide import Decide
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.plan import open_plan
from windtunnel.questions.asked.search import Search
from windtunnel.questions.asked.survive import Survive
from windtunnel.questions.header import Answer
from windtunnel.questions.reading import plain_part
from windtunnel.questions.typed import plain_fields
from windtunnel.questions.words import command
from windtunnel.studies.plan import plans
from windtunnel.studies.planning.answer import Planned
from windtunnel.studies.predict import answer_at_first
from windtunnel.studies.survive import answer as survived
from windtunnel.studies.training.question import cluster_of
from windtunnel.units import parse_number

DAY_S = 86_400.0
TOKENS_PER_STEP = 4_194_304  # where no batch is given: as models of 2023 to 2026 are trained with
SEQUENCE = 8192
DAYS_MOST = 3650.0
ESTIMATED = ("fitted", "roofline")


@dataclass(frozen=True, slots=True)
class Option:
    """One model on one cluster. Times in seconds or days; money in the question's currency, None without a price."""

    model: str
    cluster: str
    gpus: int
    fits: bool
    reason: str = ""  # why it does not
    plan: Mapping[str, object] | None = None
    step_time_s: float | None = None
    step_time_p5_s: float | None = None
    step_time_p95_s: float | None = None
    mfu: float | None = None
    tokens_per_s: float | None = None
    head_room_bytes: int | None = None
    memory_capacity_bytes: int | None = None
    effective_share: float | None = None  # of the time that trains, with failures
    policy: str = ""
    days: float | None = None  # with failures
    days_p5: float | None = None
    days_p95: float | None = None
    days_without_failures: float | None = None
    gpu_hours: float | None = None
    energy_mwh: float | None = None
    estimated_share: float | None = None  # of the busy time, that rests on no measured kernel
    price: float | None = None
    cost: float | None = None
    cost_p5: float | None = None
    cost_p95: float | None = None
    cost_per_million_tokens: float | None = None
    break_even_price: float | None = None
    told_apart: bool = True  # from the first of the table
    predict: str = ""  # the lines that give these figures one by one
    survive: str = ""


@dataclass(frozen=True, slots=True)
class Decision(Answer):
    """Options, best first: by cost where prices are given, else by days; what does not fit last."""

    options: tuple[Option, ...]
    sentence: str
    by: str  # "cost" or "days"
    currency: str
    tokens: int
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What was assumed."""
        return self.notes

    def to_dict(self) -> Mapping[str, object]:
        """The study's own part."""
        return plain_fields(self)


def answer(question: Decide) -> Decision:
    """The decision. Raises UserError."""
    words = [word.strip() for word in question.clusters.split(",") if word.strip()]
    clusters = [cluster_of(ClusterPart(base=word)) for word in words]
    prices = [_price(question.price, cluster, word) for word, cluster in zip(words, clusters, strict=True)]
    _check_prices(question.price, clusters, words)
    failures = question.failures if question.mtbf is None else f"{question.mtbf!r}s@{clusters[0].n_gpus}"
    notes: list[str] = []
    fields = dict(plain_part(question.plan))
    if "seq_len" not in fields:
        fields["seq_len"] = SEQUENCE
        notes.append(f"sequences of {SEQUENCE:,} tokens: give --seq-len")
    if "global_batch" not in fields:
        fields["global_batch"] = max(1, TOKENS_PER_STEP // fields["seq_len"])
        notes.append(
            f"{fields['global_batch']:,} sequences a step, {TOKENS_PER_STEP / 1e6:.1f}M tokens: give --global-batch"
        )
    found = [
        _option(question, model, word, cluster, price, fields, failures)
        for model in question.models
        for word, cluster, price in zip(words, clusters, prices, strict=True)
    ]
    by = "cost" if all(price is not None for price in prices) else "days"
    ordered = sorted(found, key=lambda one: (not one.fits, getattr(one, by) or 0.0, one.model, one.cluster))
    options = tuple(_beside(one, ordered, by) for one in ordered)
    return Decision(options, _sentence(options, by, question), by, question.currency, question.tokens, tuple(notes))


def _price(text: str, cluster: Cluster, word: str) -> float | None:
    """Of a GPU of a cluster; None where none is given. Raises SpecError."""
    for part in (one.strip() for one in text.split(",") if one.strip()):
        name, equals, value = part.rpartition("=")
        if not equals or name in (cluster.gpu.name, word.rpartition(":")[0], word):
            price = parse_number(value, "--price")
            if price < 0.0:
                raise SpecError("--price", text, "give money for an hour of one GPU, 0 or more")
            return price
    return None


def _check_prices(text: str, clusters: Sequence[Cluster], words: Sequence[str]) -> None:
    known = {
        name
        for cluster, word in zip(clusters, words, strict=True)
        for name in (cluster.gpu.name, word.rpartition(":")[0], word)
    }
    for part in text.split(","):
        name, equals, _ = part.strip().rpartition("=")
        if equals and name not in known:
            raise SpecError("--price", part.strip(), f"no cluster is called so: {', '.join(sorted(known - {''}))}")


def _option(
    question: Decide,
    model: str,
    word: str,
    cluster: Cluster,
    price: float | None,
    fields: Mapping[str, object],
    failures: str,
) -> Option:
    named = ModelPart(base=model), ClusterPart(base=word)
    search = Search(
        model=named[0], cluster=named[1], plan=open_plan(**fields), top=1, within=question.within, price=price
    )
    bare = Option(model=model, cluster=word, gpus=cluster.n_gpus, fits=False)
    try:
        found = plans(search)
    except UserError as error:
        return replace(bare, reason=str(error))
    if not found.plans:
        return replace(bare, reason="no plan fits in memory")
    best = found.plans[0]
    return _with_failures(question, bare, best, named, cluster, price, failures)


def _with_failures(
    question: Decide,
    bare: Option,
    best: Planned,
    named: tuple[ModelPart, ClusterPart],
    cluster: Cluster,
    price: float | None,
    failures: str,
) -> Option:
    from windtunnel.questions import read

    asked = read(
        {"question": "predict", "model": plain_part(named[0]), "cluster": plain_part(named[1]), "plan": dict(best.plan)}
    )
    result, _ = answer_at_first(asked)
    bare_s = question.tokens / result.tokens_per_s
    survive = Survive(
        model=named[0],
        cluster=named[1],
        plan=open_plan(**dict(best.plan)),
        days=min(DAYS_MOST, max(1.0, bare_s / DAY_S)),
        failures=failures,
        policy=question.policy,
        seeds=question.seeds,
    )
    entry = max(survived(survive).entries, key=lambda one: one.ettr)
    days = bare_s / DAY_S / entry.ettr if entry.ettr else float("inf")
    low, high = (one / result.step_time_ns for one in (result.step_time_p5_ns, result.step_time_p95_ns))
    share = {name: value for name, value in result.provenance.items() if name in ESTIMATED}
    hours = days * 24.0 * cluster.n_gpus
    cost = None if price is None else hours * price
    watts = cluster.gpu.tdp_w * cluster.n_gpus
    return replace(
        bare,
        fits=True,
        plan=dict(best.plan),
        step_time_s=result.step_time_s,
        step_time_p5_s=result.step_time_p5_ns / 1e9,
        step_time_p95_s=result.step_time_p95_ns / 1e9,
        mfu=result.mfu,
        tokens_per_s=result.tokens_per_s,
        head_room_bytes=best.memory_capacity_bytes - best.peak_memory_bytes,
        memory_capacity_bytes=best.memory_capacity_bytes,
        effective_share=entry.ettr,
        policy=entry.policy,
        days=days,
        days_p5=days * low,
        days_p95=days * high,
        days_without_failures=bare_s / DAY_S,
        gpu_hours=hours,
        energy_mwh=watts * days * 24.0 / 1e6,
        estimated_share=sum(share.values()),
        price=price,
        cost=cost,
        cost_p5=None if cost is None else cost * low,
        cost_p95=None if cost is None else cost * high,
        cost_per_million_tokens=None if cost is None else cost / question.tokens * 1e6,
        predict=command(asked),
        survive=command(survive),
    )


def _beside(one: Option, options: Sequence[Option], by: str) -> Option:
    """An option beside the others: whether it is told apart from the first, and the price that would make it even."""
    if not one.fits:
        return one
    first = options[0]
    mine, best = ((getattr(each, f"{by}_p5"), getattr(each, f"{by}_p95")) for each in (one, first))
    apart = one is first or mine[0] > best[1] or mine[1] < best[0]
    others = [each.cost for each in options if each is not one and each.model == one.model and each.cost is not None]
    even = min(others) / one.gpu_hours if others and one.gpu_hours else None
    return replace(one, told_apart=apart, break_even_price=even)


def _sentence(options: Sequence[Option], by: str, question: Decide) -> str:
    able = [one for one in options if one.fits]
    if not able:
        return "None of them can train it: see the reasons in the table."
    first = able[0]
    money = "" if first.cost is None else f" for {question.currency}{first.cost:,.0f}"
    said = f"{first.cluster} trains {first.model} in {first.days:.3g} days{money}, with failures"
    if len(able) == 1:
        return f"{said}; no other one can."
    second = able[1]
    mine, theirs = getattr(first, by), getattr(second, by)
    less = (
        f"{1.0 - mine / theirs:.0%} less {'money' if by == 'cost' else 'time'} than {second.model} on {second.cluster}"
    )
    if not second.told_apart:
        return f"{said}; {less}, which is not told apart: their bands overlap."
    return f"{said}; {less}, beyond what the bands leave open."
