"""`flashrt rollout`: episodes of a task in simulated time, and what they came to."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.policies import PolicySettings
from flashrt_ros.control.seams import SeamKind, Seams
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.control.warm_start import WarmStart
from flashrt_ros.sim.latency import parse_latency
from flashrt_ros.sim.rollout import EpisodeResult, RolloutSettings, rollout, rollout_pool
from flashrt_ros.sim.rollout_report import contact_sheet, summarize, table, write_video

RECORDED_EPISODES = 12
"""Episodes whose pictures are kept for a video or a sheet: the first ones."""
_RATE_HZ = 30.0


def run_rollout(given: argparse.Namespace) -> int:
    """Run what the command line asks for. Returns the exit code.

    Raises:
        ValueError: an option that is out of range or does not fit.
    """
    if given.episodes < 1:
        raise ValueError(f"--episodes: expected at least 1, found {given.episodes}")
    if given.workers < 0:
        raise ValueError(f"--workers: expected 0 or more, found {given.workers}")
    endings = (("--video", given.video, (".gif", ".mp4")), ("--sheet", given.sheet, (".png",)))
    for option, file, allowed in endings:
        if file is not None and file.suffix not in allowed:
            raise ValueError(
                f"{option} {file}: expected a name that ends in {' or '.join(allowed)}"
            )
    settings = _settings(given)
    seeds = range(given.first_seed, given.first_seed + given.episodes)
    recorded = min(RECORDED_EPISODES, len(seeds)) if given.video or given.sheet else 0
    workers = min(given.workers or len(os.sched_getaffinity(0)), len(seeds))
    results: list[EpisodeResult] = []
    with rollout_pool(workers) as pool, _bar(len(seeds)) as tick:
        for part, keep in ((seeds[:recorded], True), (seeds[recorded:], False)):
            chosen = replace(settings, record=keep)
            for result in rollout(given.task, part, chosen, pool=pool):
                results.append(result)
                tick(results)
    summary = summarize(given.task, results, settings)
    print(table(summary))
    if given.json:
        summary["results"] = [result.to_json() for result in results]
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        print(f"written: {given.json}")
    if given.sheet:
        _save_picture(given.sheet, contact_sheet(results[:recorded]))
        print(f"written: {given.sheet}")
    if given.video:
        given.video.parent.mkdir(parents=True, exist_ok=True)
        write_video(given.video, results[:recorded], _RATE_HZ)
        print(f"written: {given.video}")
    return 0


def _settings(given: argparse.Namespace) -> RolloutSettings:
    session = SessionSettings(
        seams=Seams(SeamKind(given.seam)),
        warm_start=WarmStart(enabled=given.warm_start > 0, steps=max(given.warm_start, 1)),
    )
    return RolloutSettings(
        policy=PolicySettings(
            checkpoint=given.checkpoint,
            device=given.device,
            steps=given.steps,
            seed=given.seed,
        ),
        latency=parse_latency(given.latency),
        replan=given.replan,
        session=session,
        image_size=given.image_size,
        belt_speed_m_s=given.belt_speed,
        blind=given.blind,
        wrong_instruction=given.wrong_instruction,
    )


@contextmanager
def _bar(total: int) -> Iterator[Callable[[list[EpisodeResult]], None]]:
    """A progress bar on stderr with the successes so far; nothing where tqdm is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda results: None
        return
    with tqdm(total=total, desc="episodes", ncols=80, disable=not sys.stderr.isatty()) as bar:

        def tick(results: list[EpisodeResult]) -> None:
            bar.set_postfix_str(f"{sum(r.success for r in results)} succeeded", refresh=False)
            bar.update()

        yield tick


def _save_picture(file: Path, picture: NDArray[np.uint8]) -> None:
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(file)
