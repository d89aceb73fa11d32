"""Capsules: what an engine retains between calls, copied, and put back later into the same engine.

    before = snapshot(engine)
    ...                            # anything else: other pictures, another instruction
    restore(engine, before)        # the next actions are those that would have followed the snapshot, bit for bit
    other = fork(before, seed=7)   # the same moment with other noise ahead

A capsule lives in its process: it fits the buffers that it was copied from, at their addresses, and nothing else. That
makes a restore one copy on the device, and one more of the host's twins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.host_state import HostState


class CapsuleError(ValueError):
    """A capsule that does not fit an engine; names what differs."""


@dataclass(frozen=True)
class Fingerprint:
    """What must agree for a capsule to fit."""

    weights: str
    """Hash of all weights."""
    network: str
    """Sizes, as JSON."""
    processing: str
    """Everything between observation and network, as JSON."""
    precision: str
    device: str
    candidates: tuple[tuple[str, str], ...]
    """The candidate in use, by site: another one rounds otherwise."""
    buffers: tuple[object, ...]
    """Names, shapes and addresses."""


@dataclass(frozen=True)
class Capsule:
    """A moment of a session. Never written to, so that forks may share its memory."""

    fingerprint: Fingerprint
    memory: Tensor
    """uint8 copy of `Buffers.retained`, on the device."""
    host_memory: Tensor | None
    """uint8 copy of the twins; None on a CPU, where they are the buffers themselves."""
    versions: dict[str, int]
    seen: dict[str, tuple[int, ...]]
    """Versions that each stage last read."""
    host: HostState
    generator: Tensor
    """State of the engine's generator."""
    ran: Counter[str]
    reused: Counter[str]

    @property
    def nbytes(self) -> int:
        """Size on the device."""
        return self.memory.numel()


def fingerprint(engine: FlowEngine) -> Fingerprint:
    """What a capsule of this engine is marked with. The weights are hashed once for an engine."""
    policy = engine.policy
    weights, network, processing = engine.identity
    return Fingerprint(
        weights=weights,
        network=network,
        processing=processing,
        precision=policy.precision,
        device=str(policy.device),
        candidates=tuple(sorted(engine.operators.choices().items())),
        buffers=engine.buffers.layout,
    )


def snapshot(engine: FlowEngine) -> Capsule:
    """Copy all that the next call may depend on: retained buffers, versions, previous chunk, generator, counters."""
    marked = fingerprint(engine)
    with engine.plan.stream():
        memory = engine.buffers.retained.clone()
    engine.plan.wait()
    host = engine.buffers.host_memory
    kept = None
    if host is not None:
        kept = torch.empty_like(host, pin_memory=True)
        kept.copy_(host)
    return Capsule(
        fingerprint=marked,
        memory=memory,
        host_memory=kept,
        versions=engine.buffers.versions(),
        seen=engine.contract.memory(),
        host=engine.host,
        generator=engine.generator.get_state(),
        ran=engine.contract.ran.copy(),
        reused=engine.contract.reused.copy(),
    )


def restore(engine: FlowEngine, capsule: Capsule) -> None:
    """Put a moment back; counters, too.

    Raises:
        CapsuleError: the capsule is of another engine, or of other candidates; the engine is left as it was.
    """
    _check(fingerprint(engine), capsule.fingerprint)
    engine.plan.wait()  # an upload may still read the twins
    with engine.plan.stream():
        engine.buffers.retained.copy_(capsule.memory, non_blocking=True)
    host = engine.buffers.host_memory
    if host is not None and capsule.host_memory is not None:
        host.copy_(capsule.host_memory)
    engine.buffers.restore_versions(capsule.versions)
    engine.contract.restore_memory(capsule.seen)
    engine.contract.ran = capsule.ran.copy()
    engine.contract.reused = capsule.reused.copy()
    engine.generator.set_state(capsule.generator)
    engine.restore_host(capsule.host)
    engine.plan.wait()


def fork(capsule: Capsule, seed: int) -> Capsule:
    """The same moment with the noise of another seed ahead; shares the memory of the first."""
    return replace(capsule, generator=torch.Generator().manual_seed(seed).get_state())


def _check(expected: Fingerprint, found: Fingerprint) -> None:
    for field in fields(Fingerprint):
        here, there = getattr(expected, field.name), getattr(found, field.name)
        if here == there:
            continue
        if field.name == "buffers":
            raise CapsuleError(
                "buffers: expected a capsule of this engine's own, found one of other addresses or shapes"
            )
        raise CapsuleError(f"{field.name}: expected {here}, found {there}: a foreign capsule")
