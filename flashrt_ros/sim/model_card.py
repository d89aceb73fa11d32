"""The model card of a policy of the belt world: what it was trained on and how, and what it can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flashrt_ros.models.checkpoint import FLASHRT_FILE, WEIGHTS_FILE
from flashrt_ros.sim.evaluation import LATENCIES_MS
from flashrt_ros.sim.tasks import NOMINAL_BELT_SPEED_M_S, TASKS

CARD_FILE = "README.md"
CURVES_FILE = "training.png"
EVALUATION_FILE = "evaluation.json"
_TASKS_SAY = {
    "reach": "touch the named block at rest",
    "intercept": "touch it on a belt that changes its speed, and stay on it",
    "switch": "the instruction names another block on the way",
    "nudge": "the named block is pushed away on the way",
    "flash": "a lamp lights for 100 ms and tells which block",
}


def write_card(folder: Path) -> None:
    """Write README.md and training.png beside a checkpoint of `sim.train` that was evaluated.

    Raises:
        FileNotFoundError: the folder lacks the checkpoint or its evaluation.
    """
    described = json.loads((folder / FLASHRT_FILE).read_text(encoding="utf-8"))
    evaluation = json.loads((folder / EVALUATION_FILE).read_text(encoding="utf-8"))
    training = described["training"]
    _draw_curves(folder / CURVES_FILE, training["log"])
    size_mb = (folder / WEIGHTS_FILE).stat().st_size / 1e6
    parts = [
        _introduction(folder.name, described["model"], size_mb),
        _abilities(evaluation),
        _latencies(evaluation),
        _controls(evaluation),
        _training(training),
    ]
    (folder / CARD_FILE).write_text("\n".join(parts), encoding="utf-8")


def _introduction(name: str, model: dict[str, Any], size_mb: float) -> str:
    return f"""# {name}: a small π0.5 for the belt world

The network of π0.5 with smaller numbers: two pictures of {model["image_size"]}×{model["image_size"]} in patches of \
{model["patch"]}, vision {model["vision_depth"]} layers of {model["vision_width"]}, prefix
{model["depth"]} layers of {model["width"]}, actions {model["depth"]} layers of {model["expert_width"]}; chunks of \
{model["horizon"]} actions of {model["action_dim"]} joints at 30 Hz, from the moment of the
observation on. {size_mb:.1f} MB, bfloat16.

It knows the belt world of `flashrt_ros/sim` only (cameras `overhead` and `wrist`) and understands "touch the red
block", with `reach` and `press`, `cube`, the colours red, green, blue and yellow, and "touch the flashing block". It is
there to judge latency and shortcuts in a closed loop; it moves no real robot. Trained from random weights on scripted
demonstrations; Apache-2.0 like the rest. This page is made by `flashrt_ros/sim/model_card.py`.
"""


def _abilities(evaluation: dict[str, Any]) -> str:
    first = evaluation[TASKS[0]]
    settings = first["settings"]
    begin, end = first["seeds"]
    lines = [
        "## What it can do\n",
        f"{first['episodes']} episodes a task (seeds {begin} to {end}, none of them in the training), "
        f"{settings['steps']} steps, no latency, a new chunk every\n{settings['replan']} actions, pictures of "
        f"{settings['image_size']} pixels, "
        f"{settings['precision']} on a CPU. `intercept`: mean belt speed {NOMINAL_BELT_SPEED_M_S:g} m/s.\n",
        "| task | success | 95 % interval (Wilson) | time to success, median |",
        "|---|---|---|---|",
    ]
    for task in TASKS:
        cell = evaluation[task]
        times = cell["time_to_success_s"]
        seconds = f"{times['p50']:.2f} s" if times else "–"
        lines.append(f"| `{task}`: {_TASKS_SAY[task]} | {_success(cell)} | {seconds} |")
    flash = evaluation["flash"]
    if flash["missed_events"]:
        lines.append(
            f"\nIn `flash`, no inference saw the lamp lit in {flash['missed_events']} of {flash['events']} "
            "episodes: it is lit for 3 periods,\nand a picture is taken every 4."
        )
    return "\n".join([*lines, ""])


def _success(cell: dict[str, Any]) -> str:
    low, high = cell["success_interval_95"]
    return f"{100 * cell['success']:.1f} % | {100 * low:.1f} to {100 * high:.1f} %"


def _latencies(evaluation: dict[str, Any]) -> str:
    lines = [
        "## What latency does to it\n",
        "`intercept`, the same episodes; latency is from capture to publication of a chunk, in simulated time.\n",
        "| latency | success | 95 % interval | age of an applied action, median |",
        "|---|---|---|---|",
    ]
    for latency_ms in LATENCIES_MS:
        cell = evaluation[f"intercept {latency_ms} ms" if latency_ms else "intercept"]
        lines.append(f"| {latency_ms} ms | {_success(cell)} | {cell['age_ms']['p50']:.0f} ms |")
    return "\n".join([*lines, ""])


def _controls(evaluation: dict[str, Any]) -> str:
    lines = [
        "## What must fail\n",
        "| | episodes | success | 95 % interval |",
        "|---|---|---|---|",
    ]
    for cell in evaluation.values():
        if cell["settings"]["blind"] or cell["settings"]["wrong_instruction"]:
            said = f"`{cell['task']}`, {'black pictures' if cell['settings']['blind'] else 'another block named'}"
            lines.append(f"| {said} | {cell['episodes']} | {_success(cell)} |")
    return "\n".join([*lines, ""])


def _training(training: dict[str, Any]) -> str:
    settings, log = training["settings"], training["log"]
    first_seed = settings["seed"] * 10_000_000
    command = (
        f"python -m flashrt_ros.sim.train --out pi05_belt --episodes {training['episodes']}"
        f" --batch {settings['batch']} \\\n  --seed {settings['seed']}"
    )
    command += (
        f" --steps {settings['steps']} --time-limit-min {settings['time_limit_min']:g}"
        if settings["time_limit_min"]
        else f" --steps {settings['steps']}"
    )
    return f"""## How it was trained

| | |
|---|---|
| data | {training["episodes"]} demonstrations (seeds {first_seed} to {first_seed + training["episodes"] - 1}), \
{training["observations"]} observations: the scripted law with the simulator's knowledge, in a world where blocks are \
pushed, the belt changes its speed, the instruction changes, and the arm is disturbed while the recorded action \
stays the right one |
| augmentation | light, contrast, white balance and noise of each picture; a black wrist picture now and then; noise \
of the joint positions; wordings |
| loss | flow matching, t from Beta(1.5, 1), {settings["draws"]} draws for each observation |
| optimiser | AdamW, learning rate {settings["learning_rate"]:g} with warm-up and cosine, weight decay \
{settings["weight_decay"]:g}, batch {settings["batch"]}, {log["step"]} steps; the weights are the running average \
({settings["ema"]:g}) |
| time | {log["seconds"] / 60:.1f} minutes of training |
| hardware | {training["hardware"]} |
| loss at the end | {log["losses"][-1][1]:.4f}; {log["validation"][-1][1]:.4f} on demonstrations not trained on |

![loss over the training]({CURVES_FILE})

```
{command}
```
"""


def _draw_curves(file: Path, log: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        *zip(*log["losses"], strict=True), lw=1.2, color="#3568a8", label="training, augmented"
    )
    axes.plot(
        *zip(*log["validation"], strict=True), "o-", ms=4, lw=1.2, color="#c4572b",
        label="averaged weights on held-out demonstrations",
    )  # fmt: skip
    axes.set(xlabel="step", ylabel="flow-matching loss", yscale="log", xlim=(0, None))
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=110)
