"""A technique's real twin in a script that does not know of it (`windtunnel run --technique sparse_gradients`).

What can be put into a script from outside is what `DistributedDataParallel` offers a place for: its communication hook.
So every one that the script makes gets the technique's, right after it was made:

    sparse_gradients          chosen chunks only, with error feedback
    collective_partitioning   all-reduce by group where nodes hold several ranks (group=true), else by primitive

The other techniques change the model, the optimizer or the loop, and are called by the script itself. A script without
a DistributedDataParallel, or with a communication hook of its own, is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

from windtunnel.errors import LayoutError, SpecError
from windtunnel.studies.techniques.parameters import PartitionPlan, SparsePlan
from windtunnel.studies.techniques.registry import TECHNIQUES, legal, parse_technique

if TYPE_CHECKING:
    import torch

    from windtunnel.real.operator_call import Arguments
    from windtunnel.real.techniques.collective_partitioning.ddp_hook import PartitionState
    from windtunnel.real.techniques.sparse_gradients.ddp_hook import State

PARTS_ARE_MINE = "peers' shards of gradients are made from this rank's: times are the job's, losses are not"
APPLIED = ("collective_partitioning", "sparse_gradients")
KNOWN = {name for technique in TECHNIQUES for name in (technique.name, *technique.aliases)}


def checked(texts: Sequence[str]) -> None:
    """Raise UserError where these are not techniques that can be put into a script."""
    techniques = [parse_technique(text) for text in texts]
    legal([technique for technique, _ in techniques])
    for technique, plan in techniques:
        if technique.name not in APPLIED:
            remedy = (
                f"run applies {' and '.join(APPLIED)}, through a communication hook of DistributedDataParallel;"
                f" {technique.name} is called in the script itself, from windtunnel.real.techniques"
            )
            raise SpecError("--technique", technique.name, remedy)
        if isinstance(plan, PartitionPlan):
            for name in ("pieces", "late_weights"):
                if getattr(plan, name) is not None:
                    remedy = "run cuts gradients' all-reduces alone; chunked linears are called in the script"
                    raise SpecError(f"--technique {technique.name}:{name}", getattr(plan, name), remedy)
    if len(techniques) > 1:
        names = " and ".join(technique.name for technique, _ in techniques)
        raise SpecError("--technique", names, "DistributedDataParallel has one communication hook: give one technique")


def none_behind_the_script(arguments: Sequence[str]) -> None:
    """Raise SpecError where the script's own words ask for a technique: it would be left out without a word."""
    for word, next_word in pairwise((*arguments, "")):
        option, equals, value = word.partition("=")
        text = value if equals else next_word
        if option == "--technique" and text.partition(":")[0].strip().lower().replace("-", "_") in KNOWN:
            remedy = "put --technique before the script: what follows the script is given to the script"
            raise SpecError("--technique", text, remedy)


class Applied:
    """What became of a technique in one process."""

    def __init__(self, text: str, local_world_size: int) -> None:
        technique, self.plan = parse_technique(text)
        self.name, self.local = technique.name, local_world_size
        self.states: list[State | PartitionState] = []
        self.sparse: list[State] = []  # those of them that sparsify

    def to_dict(self) -> dict[str, object]:
        """Name, parameters as they were, how many modules have it, and the share of elements that was sent."""
        document = {"name": self.name, "parameters": asdict(self.plan), "modules": len(self.states)}
        if self.name == "sparse_gradients":
            dense = sum(state.dense for state in self.sparse)
            document["share_sent"] = sum(state.sent for state in self.sparse) / dense if dense else 1.0
        return document

    def hook_for(self, module: torch.nn.Module) -> tuple[object, object]:
        """State and hook for a DistributedDataParallel."""
        state: State | PartitionState
        if isinstance(self.plan, SparsePlan):
            from windtunnel.real.techniques.sparse_gradients.ddp_hook import State, hook

            state = State(module.module, self.plan, group=module.process_group)
            self.states.append(state)
            self.sparse.append(state)
            return state, hook
        from windtunnel.real.techniques.collective_partitioning.ddp_hook import PartitionState, partitioned_hook

        state = PartitionState.from_plan(self.plan, self.local, module.process_group)
        self.states.append(state)
        return state, partitioned_hook

    def missing(self) -> LayoutError:
        """Nothing was found to apply it to."""
        remedy = "wrap the model in torch.nn.parallel.DistributedDataParallel, or leave the technique out"
        return LayoutError(f"--technique {self.name} found no DistributedDataParallel in the script", remedy)


@contextmanager
def applied(text: str, local_world_size: int) -> Iterator[Applied]:
    """While inside, every DistributedDataParallel that is made gets the technique's communication hook.

    Raises LayoutError at the first optimizer step, or at the end, if there is none.
    """
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from windtunnel.real.capture.replacements import Replacements

    technique = Applied(text, local_world_size)
    init, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook

    @functools.wraps(init)
    def with_hook(self: object, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        register(self, *technique.hook_for(self))

    def refuse_hook(self: object, state: object, hook: object) -> None:
        remedy = "leave one of them out: a module has one"
        raise LayoutError(
            f"the script registers a communication hook, and so does --technique {technique.name}", remedy
        )

    def before_step(optimizer: torch.optim.Optimizer, args: Arguments, kwargs: Mapping[str, object]) -> None:
        if not technique.states:
            raise technique.missing()

    replaced = Replacements()
    replaced.set(DistributedDataParallel, "__init__", with_hook)
    replaced.set(DistributedDataParallel, "register_comm_hook", refuse_hook)
    watching = register_optimizer_step_pre_hook(before_step)
    try:
        yield technique
        if not technique.states:
            raise technique.missing()
    finally:
        watching.remove()
        replaced.undo()
