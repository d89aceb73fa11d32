"""Named buffers with versions, and stages that run only when something that they read has moved.

Every buffer is declared first; then one allocation holds them all, so that addresses never change and what is kept
between calls is one contiguous range. A version belongs to a name and moves when the content does. A stage remembers
the versions that it last read: as long as they hold, its output is what running it again would give, bit for bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count

import torch
from torch import Tensor

ALIGNMENT_BYTES = 256


class ContractError(ValueError):
    """A buffer or stage that contradicts the contract; names it, what was expected and what was found."""


class Rate(Enum):
    """How often a buffer's content is new, in the order in which buffers lie in memory."""

    CHECKPOINT = "checkpoint"
    INSTRUCTION = "instruction"
    OBSERVATION = "observation"
    STEP = "step"


RETAINED = (Rate.INSTRUCTION, Rate.OBSERVATION)
"""What a later call may reuse, and a capsule holds."""


@dataclass(frozen=True)
class Buffer:
    """A declared buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rate: Rate
    staged: bool = False
    """Has a twin in pinned host memory that it is filled from, or copied to."""

    @property
    def nbytes(self) -> int:
        """Size without padding."""
        return math.prod(self.shape) * self.dtype.itemsize


class Buffers:
    """Buffers of one plan: `declare` and `mark` first, then `allocate` once, then tensors by name.

    On a CPU a staged buffer and its host twin are the same memory.
    """

    def __init__(self) -> None:
        self._declared: dict[str, Buffer] = {}
        self._versions: dict[str, int] = {}
        self._clock = count(1)
        self._tensors: dict[str, Tensor] = {}
        self._host: dict[str, Tensor] = {}
        self._memory: Tensor | None = None
        self._host_memory: Tensor | None = None
        self._ranges: dict[Rate, tuple[int, int]] = {}

    def declare(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        rate: Rate,
        *,
        staged: bool = False,
    ) -> None:
        """Ask for a buffer; it holds zeros after `allocate`.

        Raises:
            ContractError: the name is taken, a size is not positive, or memory is allocated already.
        """
        if self._memory is not None:
            raise ContractError(f"buffer {name!r}: declared after the allocation")
        if min(shape, default=1) < 1:
            raise ContractError(f"buffer {name!r}: expected sizes above 0, found {list(shape)}")
        self._new_name(name)
        self._declared[name] = Buffer(name, tuple(shape), dtype, rate, staged)

    def mark(self, name: str) -> None:
        """Give a version of its own to something that is no whole buffer: rows of one, or a choice.

        Raises:
            ContractError: the name is taken.
        """
        self._new_name(name)

    def allocate(self, device: torch.device) -> None:
        """Allocate everything declared, once: on the device, and the twins of staged buffers in pinned memory.

        Raises:
            ContractError: called a second time.
        """
        if self._memory is not None:
            raise ContractError("buffers are allocated once")
        order = [b for rate in Rate for b in self._declared.values() if b.rate is rate]
        offsets, total = _layout(order)
        self._memory = torch.zeros(total, dtype=torch.uint8, device=device)
        for rate in Rate:
            of_rate = [b for b in order if b.rate is rate]
            start = offsets[of_rate[0].name] if of_rate else 0
            end = offsets[of_rate[-1].name] + _padded(of_rate[-1].nbytes) if of_rate else 0
            self._ranges[rate] = (start, end)
        self._tensors = {b.name: _slice(self._memory, offsets[b.name], b) for b in order}
        staged = [b for b in order if b.staged]
        if device.type == "cpu":
            self._host = {b.name: self._tensors[b.name] for b in staged}
            return
        offsets, total = _layout(staged)
        self._host_memory = torch.zeros(max(total, 1), dtype=torch.uint8, pin_memory=True)
        self._host = {b.name: _slice(self._host_memory, offsets[b.name], b) for b in staged}

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of a buffer, at the same address for as long as the buffers live."""
        try:
            return self._tensors[name]
        except KeyError:
            raise ContractError(
                f"buffer {name!r}: expected one of {sorted(self._tensors)}"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._declared

    def host(self, name: str) -> Tensor:
        """The host twin of a staged buffer."""
        try:
            return self._host[name]
        except KeyError:
            raise ContractError(f"buffer {name!r}: expected one of {sorted(self._host)}") from None

    def version(self, name: str) -> int:
        """Moves with each `touch`, never back; 0 before the first."""
        return self._versions[name]

    def touch(self, name: str) -> None:
        """Say that the content moved."""
        if name not in self._versions:
            raise ContractError(f"{name!r}: neither a buffer nor a mark")
        self._versions[name] = next(self._clock)

    def of_rate(self, rate: Rate) -> list[Buffer]:
        """Declared buffers of one rate."""
        return [b for b in self._declared.values() if b.rate is rate]

    def region(self, rate: Rate) -> Tensor:
        """uint8 view of all buffers of one rate, padding included."""
        start, end = self._ranges[rate]
        return self._all()[start:end]

    @property
    def retained(self) -> Tensor:
        """uint8 view of everything of the rates in `RETAINED`: one contiguous range."""
        spans = [self._ranges[rate] for rate in RETAINED if self._ranges[rate][1]]
        return self._all()[min(s for s, _ in spans) : max(e for _, e in spans)]

    @property
    def host_memory(self) -> Tensor | None:
        """uint8, all host twins; None on a CPU, where they are the buffers themselves."""
        return self._host_memory

    @property
    def nbytes(self) -> int:
        """Size of the one allocation on the device."""
        return self._all().numel()

    @property
    def layout(self) -> tuple[object, ...]:
        """Names, shapes, types, rates and addresses: equal for the same buffers only."""
        declared = ((b.name, b.shape, str(b.dtype), b.rate.value) for b in self._declared.values())
        return (self._all().data_ptr(), *declared)

    def versions(self) -> dict[str, int]:
        """All versions now."""
        return dict(self._versions)

    def restore_versions(self, versions: Mapping[str, int]) -> None:
        """Set versions back together with the content that they stand for; later ones are new all the same."""
        self._versions.update(versions)
        self._clock = count(max(next(self._clock), *versions.values()) + 1)

    def _new_name(self, name: str) -> None:
        if name in self._versions:
            raise ContractError(f"{name!r}: declared twice")
        self._versions[name] = 0

    def _all(self) -> Tensor:
        if self._memory is None:
            raise ContractError("buffers: not allocated yet")
        return self._memory


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _layout(buffers: Iterable[Buffer]) -> tuple[dict[str, int], int]:
    """Offset of each buffer [bytes], and the size of all."""
    offsets, end = {}, 0
    for buffer in buffers:
        offsets[buffer.name] = end
        end += _padded(buffer.nbytes)
    return offsets, end


def _slice(memory: Tensor, offset: int, buffer: Buffer) -> Tensor:
    return memory[offset : offset + buffer.nbytes].view(buffer.dtype).view(buffer.shape)


@dataclass(frozen=True)
class Stage:
    """What a stage reads and writes, by names of buffers or marks."""

    name: str
    rate: Rate
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Contract:
    """Runs stages when they are due, and counts what ran and what was reused.

    Args:
        buffers: with every name that a stage reads or writes.
        stages: in the order in which data flows.

    Raises:
        ContractError: a stage's name is not unique, or it reads or writes an unknown name.
    """

    def __init__(self, buffers: Buffers, stages: Sequence[Stage]) -> None:
        self._buffers = buffers
        self._stages = {stage.name: stage for stage in stages}
        self._seen: dict[str, tuple[int, ...]] = {}
        self.ran: Counter[str] = Counter()
        """Executions by stage."""
        self.reused: Counter[str] = Counter()
        """Calls that found a stage's output valid, by stage."""
        if len(self._stages) != len(stages):
            raise ContractError(f"stages: names twice in {[stage.name for stage in stages]}")
        known = buffers.versions()
        for stage in stages:
            unknown = [name for name in (*stage.reads, *stage.writes) if name not in known]
            if unknown:
                raise ContractError(f"stage {stage.name!r}: unknown names {unknown}")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in order."""
        return tuple(self._stages.values())

    def due(self, name: str) -> bool:
        """Whether a stage must run: it never did, or something that it reads moved since."""
        return self._seen.get(name) != self._reads(name)

    def run(self, names: Sequence[str], body: Callable[[], None]) -> None:
        """Run stages that are due by one body that does the work of all of them.

        An exception in the body leaves them due.
        """
        for name in names:
            self._seen.pop(name, None)
        body()
        for name in names:
            self.ran[name] += 1
            self._done(name)

    def reuse(self, name: str) -> None:
        """Count a stage whose output is valid."""
        self.reused[name] += 1

    def update(self, name: str, body: Callable[[], None]) -> bool:
        """Run one stage if it is due, else count its reuse. Returns whether it ran."""
        if not self.due(name):
            self.reuse(name)
            return False
        self.run([name], body)
        return True

    def adopt(self, name: str) -> None:
        """Take a stage's output for valid: the caller put there what the stage would have written."""
        self.reuse(name)
        self._done(name)

    def forget(self) -> None:
        """Nothing that was computed counts any longer. The counters stay."""
        self._seen.clear()

    def memory(self) -> dict[str, tuple[int, ...]]:
        """Versions that each stage last read."""
        return dict(self._seen)

    def restore_memory(self, seen: Mapping[str, tuple[int, ...]]) -> None:
        """Set back what each stage last read, together with buffers and versions."""
        self._seen = dict(seen)

    def _reads(self, name: str) -> tuple[int, ...]:
        return tuple(self._buffers.version(read) for read in self._stages[name].reads)

    def _done(self, name: str) -> None:
        self._seen[name] = self._reads(name)
        for written in self._stages[name].writes:
            self._buffers.touch(written)
