"""An engine ready to run: operators by name, candidates by verdict, every plan built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Literal

import torch

from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.runtime import selection as selections
from flashrt_ros.runtime.engine import FlowEngine, MakeOperators
from flashrt_ros.runtime.operators import ReferenceOperators
from flashrt_ros.runtime.selection import SelectionError, Timer, Verdicts, wall_clock
from flashrt_ros.runtime.settings import EngineSettings
from flashrt_ros.runtime.trial import (
    EngineTrial,
    expected_chunks,
    make_samples,
    selection_fingerprint,
)

Runtime = Literal["auto", "reference", "fused"]
"""What computes: the plain functions, the kernels, or the kernels where there is a GPU."""

Selection = Literal["verdicts", "now", "off"]
"""Candidates by the verdicts that are kept, or the reference where there are none; by a selection now where there are
none; or the reference for all."""


class RuntimeSetupError(ValueError):
    """What was asked for cannot run here; says why, and what can."""


def operators_for(runtime: Runtime, device: torch.device) -> tuple[str, MakeOperators]:
    """Name and constructor of what computes on a device.

    Raises:
        RuntimeSetupError: fused kernels were asked for where they cannot run.
    """
    if runtime == "reference" or (runtime == "auto" and device.type != "cuda"):
        return "reference", ReferenceOperators
    if device.type != "cuda":
        raise RuntimeSetupError(
            f"runtime: fused kernels need a CUDA device, found {str(device)!r}: set runtime to auto or reference"
        )
    try:
        # Only here: it imports triton, which those who run on a CPU need not have.
        make: MakeOperators = import_module("flashrt_ros.runtime.fused").FusedOperators
    except ImportError as error:
        if runtime == "auto":
            return "reference", ReferenceOperators
        raise RuntimeSetupError(
            f"runtime: fused kernels cannot be imported ({error}): install triton, or set runtime to auto"
        ) from error
    return "fused", make


def build_engine(
    policy: FlowPolicy,
    settings: EngineSettings,
    *,
    make_operators: MakeOperators = ReferenceOperators,
    selection: Selection = "verdicts",
    timer: Timer = wall_clock,
    pairs: int = selections.DEFAULT_PAIRS,
    progress: Callable[[str], None] = lambda text: None,
) -> FlowEngine:
    """Make an engine, choose its candidates and build its plans.

    Args:
        policy: network and processing.
        settings: what to build for.
        make_operators: see `operators_for`.
        selection: where candidates come from.
        timer, pairs: for a selection, see `select_candidates`.
        progress: told of each step that takes a while.

    Raises:
        ValueError: settings that do not fit the policy.
    """
    engine = FlowEngine(policy, settings, make_operators=make_operators, progress=progress)
    if engine.operators.sites() and selection != "off":
        verdicts = _kept_verdicts(engine, progress)
        if selection == "now" and not _complete(engine, verdicts):
            verdicts = select_candidates(
                engine, timer=timer, pairs=pairs, progress=progress, keep=True
            )
        for site, candidate in (verdicts.choices() if verdicts else {}).items():
            engine.choose(site, candidate)
    engine.build()
    return engine


def select_candidates(
    engine: FlowEngine,
    *,
    timer: Timer = wall_clock,
    pairs: int = selections.DEFAULT_PAIRS,
    progress: Callable[[str], None] = lambda text: None,
    keep: bool = False,
) -> Verdicts:
    """Judge every candidate of an engine's operators on whole calls; the engine is left with what was adopted.

    Args:
        engine: with the candidates.
        timer: what a call costs.
        pairs: timed pairs of calls for each candidate.
        progress: told of each candidate, and of each site that was judged.
        keep: verdicts are kept after each site, and a selection that was interrupted goes on behind those that are.

    Raises:
        SelectionError: the reference itself is beyond its bound.
    """
    policy, settings = engine.policy, engine.settings
    steps = settings.flows[0][0]
    fingerprint = selection_fingerprint(policy, settings)
    path = selections.verdicts_path(fingerprint)
    begun = _begun(engine) if keep else None
    if begun is not None:
        progress(f"selecting: going on behind {len(begun.choices())} sites that were judged")
    progress("selecting: computing what chunks must be")
    samples = make_samples(policy, settings.cameras)
    expected, bound = expected_chunks(policy, samples, steps)
    with engine.building():
        verdicts = selections.select(
            EngineTrial(engine, samples, steps),
            fingerprint=fingerprint,
            chunk_bound=bound,
            expected=expected,
            timer=timer,
            pairs=pairs,
            progress=lambda text: progress(f"selecting: {text}"),
            begun=begun,
            keep=partial(selections.keep_verdicts, path) if keep else lambda verdicts: None,
        )
    engine.drop_other_choices()
    return verdicts


def _load_kept(engine: FlowEngine) -> Verdicts:
    """Verdicts that hold for this machine, network and shape, of all sites or of some. Raises SelectionError."""
    fingerprint = selection_fingerprint(engine.policy, engine.settings)
    verdicts = selections.load_verdicts(selections.verdicts_path(fingerprint), fingerprint)
    selections.check(verdicts, engine.operators.sites())
    return verdicts


def _kept_verdicts(engine: FlowEngine, progress: Callable[[str], None]) -> Verdicts | None:
    """Verdicts that hold; None where there are none. That, or what is missing of them, is said aloud."""
    try:
        verdicts = _load_kept(engine)
    except SelectionError as error:
        progress(f"no kernel is selected by a verdict: {error}")
        return None
    waiting = selections.unjudged(verdicts, engine.operators.sites())
    if waiting:
        progress(f"the selection was interrupted, no verdicts yet for {', '.join(waiting)}")
    return verdicts


def _begun(engine: FlowEngine) -> Verdicts | None:
    """Verdicts of a selection that was interrupted."""
    try:
        verdicts = _load_kept(engine)
    except SelectionError:
        return None
    return None if _complete(engine, verdicts) else verdicts


def _complete(engine: FlowEngine, verdicts: Verdicts | None) -> bool:
    return verdicts is not None and not selections.unjudged(verdicts, engine.operators.sites())
