"""What ranks that share their gradients must have alike, and whether a step reaches the model at all.

Where the gradients of all parameters that an optimizer steps were reduced among the same ranks, these hold the same
parameters: they begin with the same numbers, and take each step with the same rates. What each rank has is noted here,
and compared by `rank_classes/replicas.py`. Noted of a rank alone is an optimizer of which no parameter gets a gradient,
while others do that nobody writes: it was made of parameters that have been replaced since.
"""

from __future__ import annotations

import weakref
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

from windtunnel.real.capture.fake_tensors.control_flow import call_site
from windtunnel.real.capture.recorder.call_tensors import local_part
from windtunnel.real.capture.recorder.rows import AFTER, Rows
from windtunnel.real.capture.torch_private.distributed import outside_modes
from windtunnel.studies.programs.program_file import runs_of
from windtunnel.studies.programs.rank_classes.findings import CORRUPT, Finding, GroupEntry
from windtunnel.studies.programs.rank_classes.replicas import SharedStep

if TYPE_CHECKING:
    from windtunnel.real.operator_call import Keywords
    from windtunnel.studies.programs.communication import Communication

_ON_THE_WAY = frozenset(  # from the numbers that were drawn to the parameter
    f"aten.{name}" for name in ("_to_copy", "clone", "mul", "mul_", "div", "div_", "add_", "sub_", "erfinv_", "clamp_")
)
_LONGEST_WAY = 8
_RATES = ("betas", "lr", "momentum", "weight_decay")  # other numbers of a group may be a rank's own notes


class Replicas:
    """Of one recorder."""

    def __init__(self, rank: int, world_size: int, rows: Rows) -> None:
        self._rank, self._world_size, self._rows, self._ledger = rank, world_size, rows, rows.ledger
        self._seeds: dict[int, tuple[int, str]] = {}  # op that drew numbers before the first step -> seed, line
        self._drawn: dict[int, tuple[int, tuple[int, str]]] = {}  # id of a parameter -> its writer, what that drew
        self._reduced: dict[int, tuple[tuple[int, ...], str]] = {}  # storage -> among whom, line; since the last step
        self._exchanges: set[int] = set()  # ops that fill a tensor with what others have
        self._steps: dict[int, int] = {}  # id of an optimizer -> its steps
        self._unwritten: dict[int, dict[int, int | None]] = {}  # the same -> writers of what is trained and not its own
        self._last: dict[int, tuple[weakref.ref[torch.optim.Optimizer], SharedStep]] = {}  # of each: its last fact
        self._meshes: dict[int, tuple[object, tuple[int, ...]]] = {}  # id -> the mesh, its ranks
        self._is_begun = False
        self.facts: list[SharedStep] = []
        self.findings: list[Finding] = []

    def drew(self, into: object, kwargs: Keywords) -> None:
        """The next op draws numbers, into a tensor or as another is."""
        if not self._is_begun:
            generator = kwargs.get("generator")
            device = kwargs.get("device") or getattr(into, "device", "cpu")
            of_device = torch.cuda.initial_seed if torch.device(device).type == "cuda" else torch.initial_seed
            seed = generator.initial_seed() if isinstance(generator, torch.Generator) else of_device()
            self._seeds[self._rows.count()] = (int(seed), call_site(3))

    def begin(self, roots: Iterable[torch.nn.Module]) -> None:
        """The first step begins, and rows of before are still there."""
        self._is_begun = True
        writer = self._ledger.writer
        for parameter in (p for root in roots for p in root.parameters()):
            number = self._ledger.number_if_known(local_part(parameter))
            op = writer.get(number, -1) if number is not None else -1
            if (drawn := self._drawn_at(op)) is not None:
                self._drawn[id(parameter)] = op, drawn
        self._seeds.clear()

    def _drawn_at(self, op: int) -> tuple[int, str] | None:
        for _ in range(_LONGEST_WAY):
            row = self._rows.rows[op - self._rows.base] if op >= self._rows.base else None
            if op in self._seeds or row is None or row[0] not in _ON_THE_WAY or len(row[AFTER]) != 1:
                break
            op = row[AFTER][0]
        return self._seeds.get(op)

    def exchanged(self, call: Communication, op: int, tensors: Iterable[torch.Tensor], line: str) -> None:
        """A communication fills these tensors."""
        self._exchanges.add(op)
        if call.kind == "all_reduce":  # all of a group have the same in them
            for tensor in tensors:
                self._reduced[self._ledger.number(tensor)] = (call.members, line)

    # ---- steps

    def step(self, optimizer: torch.optim.Optimizer, roots: Iterable[torch.nn.Module]) -> None:
        """An optimizer steps."""
        number = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        roots = list(roots)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        stepped = [p for p in parameters if p.grad is not None]
        if stepped:
            self._unwritten.pop(id(optimizer), None)
            self._note_step(optimizer, number, stepped, roots)
        else:
            self._look_for_others(optimizer, parameters, roots)

    def note_next(self) -> None:
        """The script is stopped where the next step would begin: with what it would be taken."""
        for reference, step in self._last.values():
            optimizer = reference()
            if optimizer is None or step.number != self._steps.get(id(optimizer)):
                continue
            if self._are_given(p for group in optimizer.param_groups for p in group["params"]):
                self._forget(step.order)
                continue
            self.facts.append(
                step._replace(number=step.number + 1, rates=_rates(optimizer), draws=[], stopped_at=call_site(2))
            )

    def forget_reduced(self) -> None:
        """The optimizers have stepped."""
        self._reduced.clear()

    def _are_given(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether parameters came from others since the last step, whatever this rank had made of them."""
        numbers = (self._ledger.number_if_known(local_part(p)) for p in parameters)
        return any(n is not None and self._ledger.writer.get(n) in self._exchanges for n in numbers)

    def _forget(self, order: int) -> None:
        self.facts = [fact for fact in self.facts if fact.order != order]

    def _note_step(
        self,
        optimizer: torch.optim.Optimizer,
        number: int,
        stepped: list[torch.Tensor],
        roots: list[torch.nn.Module],
    ) -> None:
        shared = [self._shared(p) for p in stepped]
        wrapped = [root for root in roots if isinstance(root, DistributedDataParallel)]
        if None in shared and len(wrapped) == 1 and {id(p) for p in wrapped[0].parameters()} >= set(map(id, stepped)):
            members = tuple(torch.distributed.get_process_group_ranks(wrapped[0].process_group))
            shared = [(members, "")]
        among = {of[0] if of is not None else () for of in shared}
        if len(among) != 1 or len(members := among.pop()) < 2:
            return
        order = list(self._steps).index(id(optimizer))
        if number > 1 and self._are_given(stepped):
            self._forget(order)
            return
        names: dict[int, str] = {}  # the longest, where a part of a model was called as well
        for root in roots:
            for name, p in root.named_parameters():
                names[id(p)] = max(names.get(id(p), ""), name, key=lambda text: (len(text), text))
        if any(id(p) not in names for p in stepped):
            return
        parameters = zlib.crc32(repr([(names[id(p)], tuple(p.shape)) for p in stepped]).encode())
        drawn = [self._drawn_still(p) for p in stepped] if number == 1 and shared[0] and shared[0][1] else []
        lines = call_site(4), shared[0][1] if shared[0] else ""
        self.facts.append(SharedStep(runs_of(members), order, number, parameters, _rates(optimizer), drawn, *lines))
        self._last[order] = (weakref.ref(optimizer), self.facts[-1])

    def _drawn_still(self, parameter: torch.Tensor) -> tuple[int, str] | None:
        """With what its numbers were drawn, if nothing was written to it since."""
        op, drawn = self._drawn.get(id(parameter), (-1, None))
        number = self._ledger.number_if_known(local_part(parameter))
        return drawn if number is not None and self._ledger.writer.get(number) == op else None

    def _shared(self, parameter: torch.Tensor) -> tuple[tuple[int, ...], str] | None:
        """Among whom its gradient was reduced, and where; a DTensor is of its mesh."""
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            if id(mesh) not in self._meshes:
                with outside_modes():
                    self._meshes[id(mesh)] = mesh, tuple(mesh.mesh.flatten().tolist())
            return self._meshes[id(mesh)][1], ""
        number = self._ledger.number_if_known(parameter.grad) if parameter.grad is not None else None
        return self._reduced.get(number) if number is not None else None

    def _look_for_others(
        self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], roots: list[torch.nn.Module]
    ) -> None:
        """It has nothing to step on; whether others of the same shapes have gradients and stay as they are, from one
        step to the next.
        """
        trained = [p for root in roots for p in root.parameters() if p.grad is not None]
        numbers = [n for p in trained if (n := self._ledger.number_if_known(local_part(p))) is not None]
        writers = {n: self._ledger.writer.get(n) for n in numbers}
        before = self._unwritten.get(id(optimizer))
        self._unwritten[id(optimizer)] = writers
        if not writers or before != writers or self.findings or not any(p.requires_grad for p in parameters):
            return
        if not Counter(p.shape for p in trained) <= Counter(p.shape for p in parameters):
            return
        line = call_site(4)
        text = (
            f"rank {self._rank}: the optimizer that steps at {line} has {len(parameters):,} parameters without a"
            f" gradient, and {len(writers):,} others have gradients and are never written: make the optimizer of the"
            " model's parameters once the model is wrapped or sharded, or nothing is trained"
        )
        group = GroupEntry("", tuple(range(self._world_size)), 0).text(self._world_size)
        self.findings.append(Finding("optimizer", (self._rank,), group, line, text, CORRUPT))


def _rates(optimizer: torch.optim.Optimizer) -> list[tuple[str, object]]:
    return [
        (name, value)
        for group in optimizer.param_groups
        for name, value in sorted(group.items())
        if name in _RATES and isinstance(value, float | tuple)
    ]
