"""The answer to `decide`: clusters and models side by side, each figure that of the verb that is named beside it.

    plan        best plan in the time that is given     -> step, band, head-room
    survive     on the same failures by GPU and hour    -> share of the time that trains
    days        tokens / (tokens/s x that share), and `survive` asked again for so many days
    cost        as `survive` counts it: days x (GPUs + those of standbys) x price, so its band is that of the days;
                break-even: the price at which it costs what the cheapest other one does
    energy      of the GPUs: what the step draws, and what waiting draws in the time that failures take

Two are told apart only where their bands of days (or of cost) do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.cost.power import draw_of
from windtunnel.physics.hardware import Cluster, get_gpu, parse_cluster
from windtunnel.physics.hardware.catalogue import COUNT_FIRST
from windtunnel.physics.step.result_of import ROOFLINE_WORTH_SAYING
from windtunnel.questions.asked.decide import Decide
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import open_plan
from windtunnel.questions.asked.search import Search
from windtunnel.questions.asked.survive import Survive
from windtunnel.questions.header import Answer
from windtunnel.questions.reading import plain_part
from windtunnel.questions.words import command
from windtunnel.studies.plan import plans
from windtunnel.studies.planning.answers.plans import Planned
from windtunnel.studies.predict import answer_at_first
from windtunnel.studies.resilience import survive as survived
from windtunnel.studies.survive import job_of
from windtunnel.studies.training.question import cluster_of, model_of
from windtunnel.units import exact_text, format_many, parse_number

DAY_S = 86_400.0
TOKENS_PER_STEP = 4_194_304  # where no batch is given: as models of 2023 to 2026 are trained with
SEQUENCE = 8192
DAYS_MOST = 3650.0
ESTIMATED = ("fitted", "roofline")
GAP_WORTH_SAYING = 0.01


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
    standbys: int | None = None  # machines that the policy keeps: paid, and in `gpu_hours`
    days: float | None = None  # with failures
    days_p5: float | None = None
    days_p95: float | None = None
    days_without_failures: float | None = None
    gpu_hours: float | None = None
    energy_mwh: float | None = None
    estimated_share: float | None = None  # of the busy time, that rests on no measured kernel
    roofline_share: float | None = None  # of the busy time, for which not even a formula was fitted: `predict` warns
    price: float | None = None
    cost: float | None = None
    cost_p5: float | None = None
    cost_p95: float | None = None
    cost_per_million_tokens: float | None = None
    break_even_price: float | None = None
    gap: float = 0.0  # by what part of its time the plan could be slower than the best: the search stopped early
    told_apart: bool = True  # from the first of the table, by what the table is ordered by
    days_told_apart: bool = True  # by days
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


def answer(question: Decide) -> Decision:
    """The decision. Raises UserError."""
    words = [word.strip() for word in question.clusters.split(",") if word.strip()]
    clusters = [cluster_of(ClusterPart(base=word)) for word in words]
    _check_models(question, clusters[0].n_gpus)
    prices = _prices(question.price, clusters, words)
    failures = (
        question.failures if question.mtbf is None else f"{exact_text(question.mtbf, 'time')}@{clusters[0].n_gpus}"
    )
    notes: list[str] = []
    fields = dict(plain_part(question.plan))
    if "seq_len" not in fields:
        fields["seq_len"] = SEQUENCE
        notes.append(f"sequences of {SEQUENCE:,} tokens: give --seq-len")
    if "global_batch" not in fields:
        usual, shared = max(1, TOKENS_PER_STEP // fields["seq_len"]), lcm(*(cluster.n_gpus for cluster in clusters))
        fields["global_batch"] = usual if shared > 2 * usual else max(1, round(usual / shared)) * shared
        notes.append(
            f"{fields['global_batch']:,} sequences a step, {fields['global_batch'] * fields['seq_len'] / 1e6:.1f}M"
            " tokens: give --global-batch"
        )
    batch = fields["global_batch"]
    notes += [
        f"{batch:,} sequences a step cannot be shared out over the {odd} of {word}'s GPUs, which layers or heads must"
        f" be then: give a multiple of {odd}, or fewer GPUs"
        for word, cluster in zip(words, clusters, strict=True)
        if batch % (odd := cluster.n_gpus // (cluster.n_gpus & -cluster.n_gpus))
    ]
    candidates = [
        _option(question, model, word, cluster, price, fields, failures)
        for model in question.models
        for word, cluster, price in zip(words, clusters, prices, strict=True)
    ]
    notes += [
        f"the plan of {option.model} on {option.cluster} could be {option.gap:.1%} slower than the best:"
        " give more --within"
        for option in candidates
        if option.fits and option.gap >= GAP_WORTH_SAYING
    ]
    by = "cost" if all(price is not None for price in prices) else "days"
    ordered = sorted(
        candidates, key=lambda option: (not option.fits, getattr(option, by) or 0.0, option.model, option.cluster)
    )
    options = tuple(_beside(option, ordered, by) for option in ordered)
    return Decision(options, _sentence(options, by, question), by, question.currency, question.tokens, tuple(notes))


def _check_models(question: Decide, gpus: int) -> None:
    """Names that are no model are wrong, not models that fit nowhere. Raises UserError."""
    for model in question.models:
        try:
            model_of(ModelPart(base=model), gpus)
        except UserError:
            try:
                parse_cluster(model)
            except UserError:
                pass
            else:
                joined = ",".join([question.clusters.strip(", "), model])
                raise SpecError("models", model, f"is a cluster: join them by commas, --clusters {joined}") from None
            raise


def _name(word: str) -> str:
    """A cluster without its count, before or behind."""
    first = COUNT_FIRST.fullmatch(word)
    return first[2] if first else word.rpartition(":")[0] or word


def _prices(text: str, clusters: Sequence[Cluster], words: Sequence[str]) -> list[float | None]:
    """Of a GPU of each cluster; None where none is given. Raises SpecError."""
    bare: list[float] = []
    by_name: dict[str, float] = {}
    for part in (word.strip() for word in text.split(",") if word.strip()):
        name, equals, value = part.rpartition("=")
        price = parse_number(value, "--price")
        if price < 0.0:
            raise SpecError("--price", part, "give money for an hour of one GPU, 0 or more")
        if equals:
            by_name[name.strip()] = price
        else:
            bare.append(price)
    if len(bare) > 1 and (by_name or len(bare) != len(clusters)):
        example = ",".join(f"{_name(word)}=.." for word in words)
        raise SpecError(
            "--price", text, f"give one for all, one for each of the {len(clusters)} clusters, or {example}"
        )
    prices: list[float | None] = list(bare) if len(bare) > 1 else [bare[0] if bare else None] * len(clusters)
    for name, price in by_name.items():
        meant = [
            place
            for place, (cluster, word) in enumerate(zip(clusters, words, strict=True))
            if name in (word, _name(word), cluster.gpu.name) or _gpu_name(name) == cluster.gpu.name
        ]
        if not meant:
            names = sorted({_name(word) for word in words})
            raise SpecError("--price", f"{name}={price:g}", f"no cluster is called so: {', '.join(names)}")
        for place in meant:
            prices[place] = price
    return prices


def _gpu_name(name: str) -> str | None:
    """The GPU that an alias means; None where there is none."""
    try:
        return get_gpu(name).name
    except UserError:
        return None


def _option(
    question: Decide,
    model: str,
    word: str,
    cluster: Cluster,
    price: float | None,
    fields: Mapping[str, object],
    failures: str,
) -> Option:
    parts = ModelPart(base=model), ClusterPart(base=word)
    search = Search(
        model=parts[0], cluster=parts[1], plan=open_plan(**fields), top=1, within=question.within, price=price
    )
    bare = Option(model=model, cluster=word, gpus=cluster.n_gpus, fits=False)
    try:
        planned = plans(search)
    except UserError as error:
        return replace(bare, reason=str(error))
    bare = replace(bare, gap=planned.gap)
    if not planned.plans:
        early = (
            f"no plan was found in {question.within:g} s: give --within" if planned.gap else "no plan fits in memory"
        )
        return replace(bare, reason=early)
    best = planned.plans[0]
    return _with_failures(question, bare, best, parts, cluster, price, failures)


def _with_failures(
    question: Decide,
    bare: Option,
    best: Planned,
    parts: tuple[ModelPart, ClusterPart],
    cluster: Cluster,
    price: float | None,
    failures: str,
) -> Option:
    from windtunnel.questions import read

    predict = read(
        {"question": "predict", "model": plain_part(parts[0]), "cluster": plain_part(parts[1]), "plan": dict(best.plan)}
    )
    result, _ = answer_at_first(predict)
    bare_s = question.tokens / result.tokens_per_s
    survive = Survive(
        model=parts[0],
        cluster=parts[1],
        plan=open_plan(**dict(best.plan)),
        days=_askable(bare_s / DAY_S),
        failures=failures,
        policy=question.policy,
        seeds=question.seeds,
        price=price,
    )
    _, job = job_of(survive)
    entry = max(survived(job).entries, key=lambda policy_entry: policy_entry.ettr)
    if not entry.ettr:
        return replace(bare, reason=f"failures leave no time to train, with {entry.policy}")
    days = bare_s / DAY_S / entry.ettr
    survive = replace(survive, days=_askable(days))
    entry = max(survived(replace(job, days=survive.days)).entries, key=lambda policy_entry: policy_entry.ettr)
    low, high = (number / result.step_time_ns for number in (result.step_time_p5_ns, result.step_time_p95_ns))
    share = {name: value for name, value in result.provenance.items() if name in ESTIMATED}
    times = days / survive.days  # 1 but for runs that are shorter or longer than what `survive` is asked
    cost = None if entry.cost_usd is None else entry.cost_usd * times
    lost = 1.0 - entry.ettr
    watts = (result.gpu_watts * entry.ettr + cluster.gpu.tdp_w * draw_of(cluster.gpu).waiting * lost) * cluster.n_gpus
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
        standbys=entry.standbys,
        days=days,
        days_p5=days * low,
        days_p95=days * high,
        days_without_failures=bare_s / DAY_S,
        gpu_hours=entry.gpu_hours * times,
        energy_mwh=watts * days * 24.0 / 1e6,
        estimated_share=sum(share.values()),
        roofline_share=share.get("roofline", 0.0),
        price=price,
        cost=cost,
        cost_p5=None if cost is None else cost * low,
        cost_p95=None if cost is None else cost * high,
        cost_per_million_tokens=None if cost is None else cost / question.tokens * 1e6,
        predict=command(predict),
        survive=command(survive),
    )


def _askable(days: float) -> float:
    """Days that `survive` can be asked for: a share of less than one is of hardly any failure."""
    return min(DAYS_MOST, max(1.0, days))


def _beside(own: Option, options: Sequence[Option], by: str) -> Option:
    """An option beside the others: whether it is told apart from the first, and the price that would make it even."""
    if not own.fits:
        return own
    first = options[0]
    others = [
        option.cost for option in options if option is not own and option.model == own.model and option.cost is not None
    ]
    even = min(others) / own.gpu_hours if others and own.gpu_hours else None
    apart, by_days = _apart(own, first, by), _apart(own, first, "days")
    return replace(own, told_apart=apart, days_told_apart=by_days, break_even_price=even)


def _apart(own: Option, first: Option, by: str) -> bool:
    """Whether the bands of two leave open which is better."""
    mine, best = ((getattr(option, f"{by}_p5"), getattr(option, f"{by}_p95")) for option in (own, first))
    return own is first or mine[0] > best[1] or mine[1] < best[0]


def _sentence(options: Sequence[Option], by: str, question: Decide) -> str:
    able = [option for option in options if option.fits]
    if not able:
        return "None of them can train it: see the reasons in the table."
    first = able[0]
    money = "" if first.cost is None else f" for {question.currency}{first.cost:,.0f}"
    paid = ", paid as well" if money else ""
    standbys = f" on {format_many(first.standbys, 'machine')} more{paid}" if first.standbys else ""
    text = f"{first.cluster} trains {first.model} in {first.days:.3g} days{money}, with failures met by {first.policy}"
    lead = f"; {_lead(able, by)}" if len(options) > 1 else "."
    return " ".join([f"{text}{standbys}{lead}", *_unmeasured(able[:2])])


def _lead(able: Sequence[Option], by: str) -> str:
    """What the first is ahead of the second by, and what the bands say of it."""
    first, second = able[0], able[1] if len(able) > 1 else None
    if second is None:
        return "no other one can."
    mine, theirs = getattr(first, by), getattr(second, by)
    less = (
        f"{1.0 - mine / theirs:.0%} less {'money' if by == 'cost' else 'time'} than {second.model} on {second.cluster}"
    )
    if not second.told_apart:
        return f"{less}, which is not told apart: their bands overlap."
    if not second.days_told_apart:
        return f"{less}, beyond what the bands leave open; by days they are not told apart."
    return f"{less}, beyond what the bands leave open."


def _unmeasured(options: Sequence[Option]) -> Iterator[str]:
    """The warning of `predict`, of those that are held against each other."""
    for option in options:
        if (option.roofline_share or 0.0) > ROOFLINE_WORTH_SAYING:
            yield (
                f"{option.roofline_share:.0%} of the busy time of {option.model} on {option.cluster} is priced by"
                " roofline: no measured kernels for it."
            )
