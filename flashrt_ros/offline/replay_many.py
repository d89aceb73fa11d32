"""Replays one recording after the other, several at a time, or on the machines of a Ray cluster: the same results."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from flashrt_ros.offline.replay import ReplaySettings, replay
from flashrt_ros.offline.replay_table import bag_row, many_table, result_lines
from flashrt_ros.offline.report import PAGE_NAME, write_report

INDEX_NAME = "replays.json"


def replay_bags(
    bags: Sequence[Path],
    folder: Path | None,
    *,
    workers: int = 1,
    cluster: str | None = None,
    **settings: Any,
) -> int:
    """Replay recordings, show progress and results.

    With a fixed or drawn latency the results do not depend on how many run at a time; with a real one inference is
    slower where it shares the machine.

    Args:
        bags: what to replay.
        folder: results, one folder for each bag within where there are several; None: below runs/.
        workers: processes at a time on this machine.
        cluster: address of a Ray cluster, `auto` or `local`; None: none.
        settings: the other fields of `ReplaySettings`.

    Returns:
        Exit code: 0, or 1 when a bag could not be replayed; the others were.

    Raises:
        ValueError: settings that fit no bag, or two bags of the same name.
    """
    if workers < 1:
        raise ValueError(f"--workers: expected at least 1, found {workers}")
    jobs = [
        ReplaySettings(bag=bag, folder=target, **settings)
        for bag, target in _targets(bags, folder).items()
    ]
    if len(jobs) == 1 and cluster is None:
        print("\n".join(result_lines(_with_bar(jobs[0]), jobs[0].folder)))
        return 0
    if cluster is not None:
        stream = _on_cluster(jobs, cluster)
    elif workers == 1:
        stream = ((job, *_attempt(job)) for job in jobs)
    else:
        stream = _in_processes(jobs, workers)
    outcomes: dict[Path, tuple[dict[str, Any] | None, str]] = {}
    for job, result, error in _bar(stream, len(jobs)):
        outcomes[job.bag] = (result, error)
    rows = [bag_row(job.bag, *outcomes[job.bag]) for job in jobs]
    root = jobs[0].folder.parent
    root.mkdir(parents=True, exist_ok=True)
    (root / INDEX_NAME).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(many_table(rows))
    print(f"\n{INDEX_NAME} and one folder for each bag: {root}")
    return int(any(row["error"] for row in rows))


def _targets(bags: Sequence[Path], folder: Path | None) -> dict[Path, Path]:
    """Folder of results by bag."""
    names = [bag.resolve().name.removesuffix(bag.suffix) for bag in bags]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"bags: expected different names, found several {', '.join(doubled)}")
    if len(bags) == 1:
        return {bags[0]: folder or Path("runs") / f"replay_{names[0]}"}
    root = folder or Path("runs") / "replay"
    return {bag: root / name for bag, name in zip(bags, names, strict=True)}


def _replay_with_page(
    job: ReplaySettings, progress: Callable[[float], None] = lambda share: None
) -> dict[str, Any]:
    """Replay one bag and write its page beside the results, where there is matplotlib."""
    result = replay(job, progress)
    try:
        write_report([job.folder], job.folder)
    except ImportError:
        result["bag"]["notes"].append(f"no {PAGE_NAME}: pip install matplotlib")
    return result


def _attempt(job: ReplaySettings) -> tuple[dict[str, Any] | None, str]:
    """Result, or why there is none: one bag's trouble is not the next one's."""
    try:
        return _replay_with_page(job), ""
    except (ValueError, OSError) as error:
        return None, str(error)


Outcome = tuple[ReplaySettings, dict[str, Any] | None, str]


def _in_processes(jobs: Sequence[ReplaySettings], workers: int) -> Iterator[Outcome]:
    # Fresh processes: a fork would take torch's and OpenCV's threads without their threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
        futures = {pool.submit(_attempt, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], *future.result()


def _on_cluster(jobs: Sequence[ReplaySettings], address: str) -> Iterator[Outcome]:
    try:
        import ray
    except ImportError as error:
        raise ImportError("--cluster needs Ray: pip install 'ray[default]'") from error
    # `local` starts a cluster on this machine; any other address must be there already.
    ray.init(address=None if address == "local" else address, log_to_driver=False)
    try:
        attempt = ray.remote(_attempt)
        waiting = {attempt.remote(job): job for job in jobs}
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1)
            for reference in done:
                result, error_text = ray.get(reference)
                yield waiting.pop(reference), result, error_text
    finally:
        ray.shutdown()


@contextlib.contextmanager
def share_bar(what: str) -> Iterator[Callable[[str, float], None]]:
    """A bar that is told what is being done and the share of it that is."""
    from tqdm import tqdm

    shape = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=1.0, desc=what, bar_format=shape, disable=_quiet()) as bar:
        doing = what

        def progress(now: str, share: float) -> None:
            nonlocal doing
            if now != doing:
                doing = now
                bar.set_description_str(now)
                bar.reset(1.0)
            # Each message calls: the bar moves by whole percents.
            if share - bar.n >= 0.01 or share >= 1.0:
                bar.update(share - bar.n)

        yield progress


def _with_bar(job: ReplaySettings) -> Mapping[str, Any]:
    """One bag, with the share of it that is done."""
    with share_bar(job.bag.name) as progress:
        return _replay_with_page(job, lambda share: progress(job.bag.name, share))


def _bar(stream: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    from tqdm import tqdm

    return iter(tqdm(stream, total=total, unit="bag", disable=_quiet()))


def _quiet() -> bool:
    return not sys.stderr.isatty()
