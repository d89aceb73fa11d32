"""What a rollout came to: figures with intervals, a table, one JSON; pictures as a sheet, a GIF or an MP4."""

from __future__ import annotations

import math
import subprocess
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.sim.rollout import EpisodeResult, RolloutSettings

_Z_95 = 1.959963984540054


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a success rate (E. B. Wilson, JASA 22, 1927). ValueError without trials."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials}: expected at least one trial")
    rate, z2 = successes / trials, _Z_95**2
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z_95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def summarize(
    task: str, results: Sequence[EpisodeResult], settings: RolloutSettings
) -> dict[str, Any]:
    """All figures of one task's episodes, ready for JSON.

    Times are of simulated seconds; `infer_ms` is this machine's own. ValueError without episodes.
    """
    successes = sum(result.success for result in results)
    low, high = wilson_interval(successes, len(results))
    times = [result.time_s for result in results if result.time_s is not None]
    refused: Counter[str] = Counter()
    for result in results:
        refused.update(result.refused)
    brief = sum(len(result.episode.brief) for result in results)
    policy = settings.policy
    return {
        "task": task,
        "episodes": len(results),
        "seeds": [results[0].episode.seed, results[-1].episode.seed],
        "success": successes / len(results),
        "success_interval_95": [low, high],
        "verdicts": dict(Counter(result.verdict for result in results)),
        "time_to_success_s": _percentiles(times),
        "jerk_rad2_s5": _percentiles([result.jerk_rad2_s5 for result in results]),
        "age_ms": _percentiles(np.concatenate([result.ages_ns for result in results]) / 1e6),
        "infer_ms": _percentiles(np.concatenate([result.infer_ns for result in results]) / 1e6),
        "missed_events": sum(result.missed_events for result in results) if brief else None,
        "events": brief or None,
        "refused": dict(refused),
        "settings": {
            "checkpoint": policy.checkpoint,
            "device": policy.device,
            "precision": policy.precision,
            "steps": policy.steps,
            "latency": str(settings.latency),
            "replan": settings.replan,
            "image_size": settings.image_size,
            "belt_speed_m_s": settings.belt_speed_m_s if task == "intercept" else None,
            "blind": settings.blind,
            "wrong_instruction": settings.wrong_instruction,
        },
    }


def _percentiles(values: Sequence[float] | NDArray[Any]) -> dict[str, float] | None:
    if len(values) == 0:
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99), "max": float(np.max(values))}


def table(summary: dict[str, Any]) -> str:
    """The summary in at most 80 columns."""
    low, high = summary["success_interval_95"]
    settings = summary["settings"]
    lines = [
        f"{summary['task']}: {summary['success']:.1%} of {summary['episodes']} episodes "
        f"(95 % interval {low:.1%} to {high:.1%})",
        f"  {settings['checkpoint']}, {settings['steps']} steps, latency {settings['latency']}, "
        f"replan every {settings['replan']} actions",
        "  " + ", ".join(f"{name} {count}" for name, count in summary["verdicts"].items()),
        f"  {'':22}{'P50':>10}{'P95':>10}{'P99':>10}{'max':>10}",
    ]
    for name, key, scale in (
        ("time to success [s]", "time_to_success_s", 1.0),
        ("age [ms]", "age_ms", 1.0),
        ("jerk [1e6 rad²/s⁵]", "jerk_rad2_s5", 1e-6),
        ("inference here [ms]", "infer_ms", 1.0),
    ):
        if summary[key] is not None:
            row = "".join(f"{summary[key][p] * scale:10.2f}" for p in ("p50", "p95", "p99", "max"))
            lines.append(f"  {name:22}{row}")
    if summary["events"]:
        lines.append(f"  events missed: {summary['missed_events']} of {summary['events']}")
    if summary["refused"]:
        lines.append(f"  chunks refused: {summary['refused']}")
    return "\n".join(part for line in lines for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 80, subsequent_indent="    ", drop_whitespace=False) or [line]


def contact_sheet(
    results: Sequence[EpisodeResult], columns: int = 10, rows: int = 12
) -> NDArray[np.uint8]:
    """Recorded episodes as a picture [H, W, 3], uint8: one a row, moments evenly spaced, red bar
    where it failed."""
    strips = []
    for result in results[:rows]:
        chosen = np.linspace(0, len(result.pictures) - 1, columns).round().astype(int)
        strip = np.concatenate([result.pictures[at] for at in chosen], axis=1)
        bar = np.zeros((len(strip), 6, 3), np.uint8)
        bar[:] = (30, 160, 60) if result.success else (200, 40, 30)
        strips.append(np.concatenate([bar, strip], axis=1))
    return np.concatenate(strips, axis=0)


def write_video(
    file: Path, results: Sequence[EpisodeResult], rate_hz: float, scale: int = 3
) -> None:
    """Recorded episodes one after the other, as .gif or (where ffmpeg is installed) .mp4.

    Raises:
        ValueError: another ending, or nothing was recorded.
        FileNotFoundError: no ffmpeg for an .mp4.
    """
    pictures = [picture for result in results for picture in result.pictures]
    if not pictures:
        raise ValueError("video: expected recorded episodes, found none")
    pictures = [picture.repeat(scale, axis=0).repeat(scale, axis=1) for picture in pictures]
    if file.suffix == ".gif":
        from PIL import Image

        images = [Image.fromarray(picture) for picture in pictures]
        images[0].save(
            file, save_all=True, append_images=images[1:], duration=round(1e3 / rate_hz), loop=0
        )
    elif file.suffix == ".mp4":
        _write_mp4(file, pictures, rate_hz)
    else:
        raise ValueError(f"{file}: expected a name that ends in .gif or .mp4")


def _write_mp4(file: Path, pictures: Sequence[NDArray[np.uint8]], rate_hz: float) -> None:
    program = which("ffmpeg")
    if program is None:
        raise FileNotFoundError(
            f"{file}: writing an MP4 needs ffmpeg (`apt install ffmpeg`); name a .gif instead"
        )
    height, width = pictures[0].shape[:2]
    command = [program, "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{rate_hz:g}", "-i", "-"]
    command += ["-pix_fmt", "yuv420p", str(file)]
    data = b"".join(picture.tobytes() for picture in pictures)
    subprocess.run(command, input=data, check=True)
