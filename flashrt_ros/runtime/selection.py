"""Which candidate computes each site: proof against the reference first, then paired timing of the whole call.

A candidate is adopted only if, in this order,
1. its outputs agree with the reference's on the site's representative inputs, within the site's bound;
2. the whole action chunk agrees with what is expected within its bound, and repeats bit for bit;
3. the whole call became faster: both ways are timed in turn, and three of four pairs must favour the candidate.
Else what was in use stays. Each trial builds on the candidates adopted before it, so that the last one stood the whole
proof with all others in place. Verdicts hold for one machine, code, network and shape (`fingerprint`). They are kept
site by site: those of a selection that was interrupted can be used, the other sites being on their references as in
the trials, and the next selection goes on behind them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from flashrt_ros.runtime.operators import Site

logger = logging.getLogger(__name__)

Outcome = Literal["reference", "adopted", "wrong", "slow", "failed"]
Timer = Callable[[Callable[[], object]], float]
"""Runs a call and returns its cost; only ratios are used, so that the unit does not matter."""

FORMAT = 1
DEFAULT_PAIRS = 30


class SelectionError(ValueError):
    """Verdicts that cannot be used; says why."""


@dataclass(frozen=True)
class Ratio:
    """Cost of the whole call with a candidate over the cost without, of each pair of calls."""

    median: float
    low: float
    """A quarter of the pairs is below."""
    high: float
    """A quarter of the pairs is above."""
    pairs: int


@dataclass(frozen=True)
class Verdict:
    """What became of one candidate, and the figures that decided."""

    site: str
    candidate: str
    outcome: Outcome
    reason: str = ""
    error: float | None = None
    """Relative L2 error of the site's output, the worst of its inputs."""
    bound: float | None = None
    chunk_error: float | None = None
    """Relative L2 error of the whole chunk, the worst of the samples."""
    ratio: Ratio | None = None


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of one selection, and what they hold for."""

    fingerprint: Mapping[str, Any]
    chunk_bound: float
    verdicts: tuple[Verdict, ...]

    def choices(self) -> dict[str, str]:
        """The candidate in use after the selection, by site."""
        chosen = {}
        for verdict in self.verdicts:
            if verdict.outcome in ("reference", "adopted"):
                chosen[verdict.site] = verdict.candidate
        return chosen


class Trial(Protocol):
    """What a selection works on: sites, and whole calls with the candidates that are chosen."""

    def sites(self) -> list[Site]:
        """Places with more than one candidate, reference first."""
        ...

    def choose(self, site: str, candidate: str) -> None:
        """Use a candidate in the calls that follow."""
        ...

    def chunks(self) -> list[Tensor]:
        """Action chunks of every sample, float32 [H, A], computed anew."""
        ...

    def prepare(self) -> None:
        """Make the next `call` as quick as the ones after it."""
        ...

    def call(self) -> object:
        """One whole call, the thing that is timed; ends when its actions are on the host."""
        ...


def wall_clock(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def relative_l2(found: Tensor, expected: Tensor) -> float:
    """`|found - expected| / |expected|` in float64; infinite for anything that is not finite."""
    a, b = found.detach().double(), expected.detach().double().to(found.device)
    if a.shape != b.shape:
        raise ValueError(f"expected a result of {list(b.shape)}, found {list(a.shape)}")
    difference = (a - b).norm()
    if not bool(torch.isfinite(difference)):
        return float("inf")
    norm = float(b.norm())
    if norm == 0.0:
        return 0.0 if float(difference) == 0.0 else float("inf")
    return float(difference) / norm


def select(
    trial: Trial,
    *,
    fingerprint: Mapping[str, Any],
    chunk_bound: float,
    expected: Sequence[Tensor] | None = None,
    timer: Timer = wall_clock,
    pairs: int = DEFAULT_PAIRS,
    progress: Callable[[str], None] = lambda text: None,
    begun: Verdicts | None = None,
    keep: Callable[[Verdicts], None] = lambda verdicts: None,
) -> Verdicts:
    """Prove and time every candidate of every site; the trial is left with what was adopted.

    Args:
        trial: what is called.
        fingerprint: what the verdicts hold for.
        chunk_bound: largest relative L2 error of a chunk.
        expected: chunk of each sample; default: what the reference candidates compute.
        timer: what a call costs.
        pairs: timed pairs of calls for each candidate.
        progress: told of each candidate, and of each site that was judged.
        begun: verdicts of a selection that was interrupted; their sites are not judged again.
        keep: given the verdicts so far after each site.

    Raises:
        SelectionError: the reference candidates themselves are beyond the bound.
    """
    sites = trial.sites()
    expected = _expected(trial, sites, chunk_bound, expected)
    known = begun.verdicts if begun else ()
    chosen = begun.choices() if begun else {}
    for name, candidate in chosen.items():
        trial.choose(name, candidate)
    verdicts = Verdicts(fingerprint, chunk_bound, known)
    for number, site in enumerate(sites, start=1):
        if site.name in chosen:
            continue
        of_site = _judge_site(trial, site, expected, chunk_bound, timer, pairs, progress)
        verdicts = replace(verdicts, verdicts=(*verdicts.verdicts, *of_site))
        keep(verdicts)
        current = verdicts.choices()[site.name]
        progress(f"{site.name}: stays with {current}, site {number} of {len(sites)}")
    return verdicts


def _expected(
    trial: Trial, sites: Sequence[Site], bound: float, expected: Sequence[Tensor] | None
) -> Sequence[Tensor]:
    """What chunks must be, after the reference candidates met it."""
    for site in sites:
        trial.choose(site.name, next(iter(site.candidates)))
    reference = trial.chunks()
    expected = reference if expected is None else expected
    error = _worst(reference, expected)
    if not error <= bound:
        raise SelectionError(
            f"the reference's own chunk: expected an error of at most {bound:.3g}, found {error:.3g}"
        )
    return expected


def _judge_site(
    trial: Trial,
    site: Site,
    expected: Sequence[Tensor],
    chunk_bound: float,
    timer: Timer,
    pairs: int,
    progress: Callable[[str], None],
) -> list[Verdict]:
    """All candidates of a site; the trial is left with the one that was adopted."""
    candidates = list(site.candidates)
    current = candidates[0]
    verdicts = [Verdict(site.name, current, "reference", bound=site.bound)]
    for number, candidate in enumerate(candidates[1:], start=1):
        progress(f"{site.name}: {candidate} ({number} of {len(candidates) - 1})")
        verdict = _judge(trial, site, current, candidate, expected, chunk_bound, timer, pairs)
        verdicts.append(verdict)
        if verdict.outcome == "adopted":
            current = candidate
    trial.choose(site.name, current)
    return [_superseded(v, current) for v in verdicts]


def _judge(
    trial: Trial,
    site: Site,
    current: str,
    candidate: str,
    expected: Sequence[Tensor],
    chunk_bound: float,
    timer: Timer,
    pairs: int,
) -> Verdict:
    """One candidate against the one in use."""
    known: dict[str, Any] = {"bound": site.bound}
    try:
        with torch.no_grad():
            # Copied: a site's candidates may all leave their results in one place.
            wanted = [x.clone() for x in site.candidates[next(iter(site.candidates))]()]
            known["error"] = error = _worst(site.candidates[candidate](), wanted)
        if not error <= site.bound:
            return Verdict(site.name, candidate, "wrong", "site beyond its bound", **known)
        trial.choose(site.name, candidate)
        first, again = trial.chunks(), trial.chunks()
        known["chunk_error"] = error = _worst(first, expected)
        if not error <= chunk_bound:
            return Verdict(site.name, candidate, "wrong", "chunk beyond its bound", **known)
        if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
            return Verdict(site.name, candidate, "wrong", "another chunk each time", **known)
        known["ratio"] = ratio = _paired(trial, site.name, current, candidate, timer, pairs)
    except Exception as error:  # whatever a candidate does, the reference is there
        logger.exception("candidate %s of %s failed", candidate, site.name)
        return Verdict(site.name, candidate, "failed", f"{type(error).__name__}: {error}", **known)
    if ratio.high < 1.0:
        return Verdict(site.name, candidate, "adopted", "", **known)
    return Verdict(site.name, candidate, "slow", f"no faster than {current}", **known)


def _worst(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    if len(found) != len(expected) or not found:
        raise ValueError(f"expected {len(expected)} results, found {len(found)}")
    return max(relative_l2(a, b) for a, b in zip(found, expected, strict=True))


def _paired(
    trial: Trial, site: str, current: str, candidate: str, timer: Timer, pairs: int
) -> Ratio:
    """Time both in turn, the order changing from pair to pair, so that drift favours neither."""
    ratios = []
    for pair in range(pairs):
        cost = {}
        for name in (current, candidate) if pair % 2 else (candidate, current):
            trial.choose(site, name)
            trial.prepare()
            cost[name] = timer(trial.call)
        ratios.append(cost[candidate] / cost[current])
    low, high = np.quantile(ratios, (0.25, 0.75))
    return Ratio(statistics.median(ratios), float(low), float(high), pairs)


def _superseded(verdict: Verdict, current: str) -> Verdict:
    """An adopted candidate that a later one was still faster than."""
    if verdict.outcome != "adopted" or verdict.candidate == current:
        return verdict
    return replace(verdict, outcome="slow", reason=f"{current} is faster still")


# ------------------------------------------------------------------ files and tables


def verdicts_path(fingerprint: Mapping[str, Any]) -> Path:
    """Where verdicts for a fingerprint are kept: below `$XDG_CACHE_HOME`, or `~/.cache`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    text = json.dumps(fingerprint, sort_keys=True).encode()
    return cache / "flashrt_ros" / "verdicts" / f"{hashlib.sha256(text).hexdigest()[:20]}.json"


def save_verdicts(path: Path, verdicts: Verdicts) -> None:
    """Write JSON, whole or not at all."""
    values = {"format": FORMAT, **asdict(verdicts)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


def keep_verdicts(path: Path, verdicts: Verdicts) -> None:
    """Write the verdicts of a selection under way, unless those that are kept already are of more sites."""
    try:
        kept = load_verdicts(path, verdicts.fingerprint)
    except SelectionError:
        kept = replace(verdicts, verdicts=())
    if len(verdicts.choices()) >= len(kept.choices()):
        save_verdicts(path, verdicts)


def load_verdicts(path: Path, fingerprint: Mapping[str, Any]) -> Verdicts:
    """Read verdicts that hold for a fingerprint.

    Raises:
        SelectionError: there are none, or they are another machine's, network's or shape's; says which.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = values["fingerprint"]
        if values["format"] != FORMAT:
            raise SelectionError(f"{path}: format: expected {FORMAT}, found {values['format']}")
        verdicts = tuple(
            Verdict(**{**v, "ratio": Ratio(**v["ratio"]) if v["ratio"] else None})
            for v in values["verdicts"]
        )
        bound = float(values["chunk_bound"])
    except FileNotFoundError:
        raise SelectionError(f"{path}: no verdicts for this machine, network and shape") from None
    except (OSError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise SelectionError(f"{path}: expected verdicts as JSON, found: {error!r}") from None
    expected = json.loads(json.dumps(fingerprint))
    for key in sorted(set(expected) | set(found)):
        if expected.get(key) != found.get(key):
            raise SelectionError(
                f"{path}: {key}: expected {expected.get(key)}, found {found.get(key)}"
            )
    return Verdicts(found, bound, verdicts)


def check(verdicts: Verdicts, sites: Sequence[Site]) -> None:
    """Raise SelectionError unless each site has verdicts for all of its candidates, or none, and there is no other."""
    judged = {(v.site, v.candidate) for v in verdicts.verdicts}
    waiting = unjudged(verdicts, sites)
    offered = {(s.name, name) for s in sites if s.name not in waiting for name in s.candidates}
    if judged != offered:
        raise SelectionError(
            f"verdicts: without one for {sorted(offered - judged)}, for nothing {sorted(judged - offered)}"
        )


def unjudged(verdicts: Verdicts, sites: Sequence[Site]) -> list[str]:
    """Sites without a verdict, in a selection that was interrupted: they stay on their references."""
    judged = {verdict.site for verdict in verdicts.verdicts}
    return [site.name for site in sites if site.name not in judged]


def table(verdicts: Verdicts) -> str:
    """Site, candidate, error, ratio and verdict, at most 80 columns wide where names are short."""
    head = ("site", "candidate", "error", "chunk", "ratio", "verdict")
    rows = [head, *map(_row, verdicts.verdicts)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    notes = [
        f"{v.site}, {v.candidate}: {v.reason}"
        for v in verdicts.verdicts
        if v.outcome in ("wrong", "failed")
    ]
    return "\n".join(
        [
            *lines,
            f"error, chunk: relative L2; a chunk may have {verdicts.chunk_bound:.2g}. ratio: whole",
            "call with over without, median and half the spread of the middle half.",
            *notes,
        ]
    )


def _row(verdict: Verdict) -> tuple[str, ...]:
    ratio = verdict.ratio
    spread = "" if ratio is None else f"{ratio.median:.3f}±{(ratio.high - ratio.low) / 2:.3f}"
    numbers = ("" if x is None else f"{x:.1e}" for x in (verdict.error, verdict.chunk_error))
    return (verdict.site, verdict.candidate, *numbers, spread, verdict.outcome)
