"""Every parameter of every node, declared once: the nodes, `config/*.yaml` and the documentation read this table.

Nothing here imports ROS, so that the documentation can be made without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = bool | int | float | str | list[str]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. Its type is the type of its default."""

    name: str
    default: Any
    description: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[str] = ()
    live: bool = False
    """Takes effect while the node runs; the others at the next configure (or start)."""

    @property
    def type_name(self) -> str:
        """As `ros2 param` calls it."""
        if isinstance(self.default, list):
            return "string_array"
        kinds = {bool: "bool", int: "integer", float: "double", str: "string"}
        return kinds[type(self.default)]

    @property
    def range_text(self) -> str:
        """Range or choices, for people."""
        if self.choices:
            return " | ".join(self.choices)
        if self.minimum is None and self.maximum is None:
            return ""
        low = "-∞" if self.minimum is None else f"{self.minimum:.10g}"
        high = "∞" if self.maximum is None else f"{self.maximum:.10g}"
        return f"{low} to {high}"

    def check(self, value: Any) -> Any:
        """The value in this parameter's type; an integer is taken for a double.

        Raises:
            ValueError: another type, or out of range; names the parameter, what is expected and what was found.
        """
        if isinstance(self.default, float) and type(value) is int:
            value = float(value)
        if isinstance(self.default, list):
            fits = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            value = list(value) if fits else value
        else:
            fits = type(value) is type(self.default)
        inside = fits and (
            (not self.choices or value in self.choices)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
        )
        if not inside:
            allowed = f", {self.range_text}" if self.range_text else ""
            unit = f" {self.unit}" if self.unit else ""
            raise ValueError(
                f"parameter {self.name}: expected {self.type_name}{allowed}{unit}, found {value!r}"
            )
        return value


_ROBOT = Parameter("robot", "so101", "Robot contract: a file, or the name of one in config/robots.")
_MAX_AGE = 500.0
_STOP = Parameter(
    "stop_ms",
    0.0,
    "How long a motion takes to come to rest when its actions run out or are too old; 0: it holds at the last one.",
    "ms",
    0.0,
    5000.0,
    live=True,
)

CONTINUATION = (
    Parameter(
        "max_action_age_ms",
        _MAX_AGE,
        "Actions due longer than this after the capture are not applied: the robot holds, or stops within stop_ms.",
        "ms",
        10.0,
        60_000.0,
        live=True,
    ),
    Parameter(
        "replan",
        "newest",
        "What an inference waits for: an observation, replan_actions of the plan, or its last replan_remaining_ms.",
        choices=("newest", "actions", "remaining"),
        live=True,
    ),
    Parameter(
        "replan_actions",
        4,
        "Actions of the plan that lie behind before the next inference.",
        "actions",
        1,
        200,
        live=True,
    ),
    Parameter(
        "replan_remaining_ms",
        200.0,
        "Time that the plan still has when the next inference begins.",
        "ms",
        0.0,
        60_000.0,
        live=True,
    ),
    Parameter(
        "warm_start",
        False,
        "Denoise in warm_steps from what is left of the chunk before instead of from noise.",
        live=True,
    ),
    Parameter("warm_steps", 1, "Denoising steps of a warm start.", "", 1, 100, live=True),
    Parameter(
        "warm_alpha",
        0.5,
        "Share of the chunk before in a warm start; the rest is noise.",
        "",
        0.05,
        0.95,
        live=True,
    ),
    Parameter(
        "reset_divergence",
        0.5,
        "A warm chunk this far from its start is thrown away and denoised with all steps: root mean square.",
        "normalised action",
        0.0,
        100.0,
        live=True,
    ),
    Parameter(
        "reset_state_jump",
        0.05,
        "Reset when a joint moved this much further than its maximum velocity allows; share of its range; 0: never.",
        "",
        0.0,
        1.0,
        live=True,
    ),
    Parameter(
        "reset_view_change",
        100.0,
        "Reset when a picture differs by this from the one before, mean over its pixels; 0: never.",
        "grey levels of 255",
        0.0,
        255.0,
        live=True,
    ),
    Parameter(
        "reset_gap_ms",
        0.0,
        "Reset when the observation before is longer ago; 0: than the chunk lasts.",
        "ms",
        0.0,
        60_000.0,
        live=True,
    ),
    Parameter(
        "seam",
        "replace",
        "How a chunk follows the one before: as it is, blended, as the mean of all, or denoised to fit.",
        choices=("replace", "blend", "ensemble", "rtc"),
        live=True,
    ),
    Parameter(
        "blend_actions",
        4,
        "Actions over which `blend` goes from one chunk to the next.",
        "actions",
        1,
        200,
        live=True,
    ),
    Parameter(
        "ensemble_coefficient",
        0.01,
        "Of `ensemble`: the i-th oldest prediction weighs exp(-coefficient · i).",
        "",
        0.0,
        10.0,
        live=True,
    ),
    Parameter(
        "rtc_horizon",
        10,
        "Of `rtc`: actions, from the chunk's first, that are drawn to the chunk before.",
        "actions",
        1,
        200,
        live=True,
    ),
    Parameter(
        "rtc_schedule",
        "exponential",
        "Of `rtc`: how that weakens behind the frozen actions.",
        choices=("linear", "exponential", "ones", "zeros"),
        live=True,
    ),
    Parameter(
        "rtc_strength",
        "bounded",
        "Of `rtc`: never beyond the target, or as LeRobot computes it, which overshoots with few steps.",
        choices=("bounded", "lerobot"),
        live=True,
    ),
    Parameter(
        "rtc_max_strength",
        10.0,
        "Of `rtc`: bound of the guidance at each step.",
        "",
        0.0,
        1000.0,
        live=True,
    ),
    Parameter(
        "delay_estimate",
        "quantile",
        "How the next chunk's delay, capture to publication, is foreseen from the last ones.",
        choices=("last", "median", "quantile"),
        live=True,
    ),
    Parameter("delay_quantile", 0.9, "Of delay_estimate quantile.", "", 0.0, 1.0, live=True),
    Parameter("delay_window", 32, "Delays that count.", "chunks", 1, 1000, live=True),
    Parameter(
        "delay_forget_s",
        10.0,
        "Delays measured longer ago do not count.",
        "s",
        0.1,
        3600.0,
        live=True,
    ),
    Parameter(
        "limit_tolerance",
        0.05,
        "How far outside a limit an action is clipped, share of the joint's range; beyond it the chunk is refused.",
        "",
        0.0,
        1.0,
        live=True,
    ),
    Parameter(
        "ease_in_ms",
        500.0,
        "Time over which a motion that begins may become as fast as the limits allow.",
        "ms",
        0.0,
        10_000.0,
        live=True,
    ),
)
"""How chunks go on from each other."""

POLICY = (
    _ROBOT,
    Parameter(
        "checkpoint",
        "pi05_belt",
        "What infers: folder of a π0 or π0.5 checkpoint (openpi, LeRobot, converted); `pi05_belt`, the small one that "
        "comes along; or `expert`, the scripted one.",
    ),
    Parameter(
        "device",
        "auto",
        "Where the network runs: cpu, cuda, cuda:1; auto: a GPU where there is one.",
    ),
    Parameter(
        "precision",
        "auto",
        "Arithmetic of the network; auto: bfloat16 on a GPU, else float32.",
        choices=("auto", "float32", "bfloat16"),
    ),
    Parameter("steps", 10, "Denoising steps of an inference.", "", 1, 100),
    Parameter("seed", 0, "Seed of the noise that actions are denoised from.", "", 0, 2**31 - 1),
    Parameter(
        "tokenizer", "", "Tokenizer file (.model or tokenizer.json), where the checkpoint has none."
    ),
    Parameter(
        "runtime",
        "auto",
        "What computes: the plain functions, the fused kernels, or auto: these where there is a GPU.",
        choices=("auto", "reference", "fused"),
    ),
    Parameter(
        "selection",
        "verdicts",
        "Kernels: as earlier verdicts for this machine say, else none; now: also judged at configure where there are "
        "no verdicts (minutes, once); off: none.",
        choices=("verdicts", "now", "off"),
    ),
    Parameter(
        "unbuilt_shape",
        "build",
        "A picture size, set of cameras or prompt that was not built for: build it then (seconds on a GPU), or refuse.",
        choices=("build", "refuse"),
    ),
    Parameter("instruction", "", "What the robot shall do; empty: nothing.", live=True),
    Parameter(
        "sync_policy",
        "newest",
        "Which synchronised set is inferred: the newest, every one in order (bounded), or the newest of equal stamps.",
        choices=("newest", "fifo", "exact"),
    ),
    Parameter(
        "slop_ms", 20.0, "Largest difference of capture stamps within a set.", "ms", 0.0, 1000.0
    ),
    Parameter(
        "queue_depth", 8, "Frames of each camera that may wait for partners.", "frames", 1, 100
    ),
    Parameter("fifo_depth", 4, "Sets that may wait for inference under `fifo`.", "sets", 1, 100),
    Parameter(
        "max_future_ms",
        50.0,
        "A frame stamped further ahead of this node's clock is rejected.",
        "ms",
        0.0,
        10_000.0,
    ),
    Parameter(
        "jump_back_ms",
        1000.0,
        "A stamp further back than this is a clock that jumped: queues are emptied.",
        "ms",
        10.0,
        60_000.0,
    ),
    Parameter(
        "absent_after_ms",
        200.0,
        "How long an optional camera is waited for after its last frame.",
        "ms",
        0.0,
        10_000.0,
    ),
    Parameter(
        "reliability",
        "best_effort",
        "QoS of the inputs. best_effort also hears reliable publishers; reliable does not hear best-effort ones.",
        choices=("best_effort", "reliable"),
    ),
    Parameter(
        "max_age_ms",
        _MAX_AGE,
        "Oldest observation that is inferred, and longest silence of an input before the robot is held.",
        "ms",
        10.0,
        60_000.0,
        live=True,
    ),
    Parameter(
        "max_state_age_ms",
        100.0,
        "Largest distance in time between a picture and the joint state that goes with it.",
        "ms",
        1.0,
        10_000.0,
    ),
    Parameter(
        "start",
        "aligned",
        "When action 0 is meant: at the capture (what passed since is skipped), or at publication.",
        choices=("aligned", "now"),
        live=True,
    ),
    *CONTINUATION,
    _STOP,
    Parameter("dry_run", False, "Publish chunks and no trajectory: nothing moves.", live=True),
    Parameter(
        "autostart", False, "Configure and activate by itself, each as the state before is reached."
    ),
    Parameter("diagnostics_rate", 1.0, "How often /diagnostics is published.", "Hz", 0.1, 20.0),
)

AGE_LOGGER = (
    Parameter(
        "log_file",
        "",
        "File of the run's log; a number is added where it exists; empty: no log is written.",
    ),
    Parameter("window_s", 5.0, "Time over which statistics are taken.", "s", 0.5, 600.0),
    Parameter(
        "warn_age_ms",
        200.0,
        "Diagnostics warn when the P99 of the ages within the window is above this.",
        "ms",
        0.0,
        60_000.0,
        live=True,
    ),
    Parameter(
        "error_age_ms",
        400.0,
        "Diagnostics report an error when the P99 of the ages within the window is above this.",
        "ms",
        0.0,
        60_000.0,
        live=True,
    ),
    Parameter("rate", 1.0, "How often statistics are published.", "Hz", 0.1, 20.0),
)

ACTION_PLAYER = (
    _ROBOT,
    Parameter(
        "rate", 200.0, "How often it is checked whether an action is due.", "Hz", 10.0, 1000.0
    ),
    Parameter(
        "max_age_ms",
        _MAX_AGE,
        "Oldest observation whose actions are still applied; then the robot holds.",
        "ms",
        10.0,
        60_000.0,
        live=True,
    ),
    _STOP,
    Parameter(
        "interface",
        "joint_state",
        "Command message: sensor_msgs/JointState by name, or std_msgs/Float64MultiArray in the contract's order.",
        choices=("joint_state", "multi_array"),
    ),
)

_WORLD = (
    Parameter(
        "seed", 0, "Seed of the world: order, places and colours of the blocks.", "", 0, 2**31 - 1
    ),
    Parameter("image_height", 224, "Rows of a picture.", "px", 32, 2160),
    Parameter("image_width", 224, "Columns of a picture.", "px", 32, 3840),
)

SIM_ROBOT = (
    *_WORLD,
    Parameter("belt_speed", 0.04, "Speed of the belt.", "m/s", -0.5, 0.5),
    Parameter("state_rate", 100.0, "How often joint states are published.", "Hz", 1.0, 500.0),
    Parameter("camera_rate", 30.0, "How often each camera's shutter opens.", "Hz", 1.0, 120.0),
    Parameter("cameras", ["overhead", "wrist"], "Cameras whose shutters are driven."),
    Parameter(
        "camera_skew_ms",
        0.0,
        "Each camera's shutter opens this much after the one before.",
        "ms",
        0.0,
        100.0,
    ),
    Parameter("task_log", "", "File for a JSON line for each block reached; empty: none."),
)

SIM_CAMERA = (
    *_WORLD,
    Parameter("cameras", ["overhead", "wrist"], "Cameras rendered by this process."),
    Parameter(
        "delay_ms", 0.0, "Added between capture and publication.", "ms", 0.0, 2000.0, live=True
    ),
    Parameter(
        "jitter_ms",
        0.0,
        "Standard deviation of a normal delay, cut at 0.",
        "ms",
        0.0,
        500.0,
        live=True,
    ),
    Parameter("drop", 0.0, "Share of pictures that are not published.", "", 0.0, 1.0, live=True),
)

BAG_RECORDER = (
    Parameter("bag", "", "Folder of the recording; must not exist."),
    Parameter(
        "storage",
        "mcap",
        "Format; of an mcap that is killed all but the last second can be read, of sqlite3 nothing.",
        choices=("mcap", "sqlite3"),
    ),
    Parameter("topics", [], "Full names of the topics to record; empty: all that appear."),
)

BAG_PLAYER = (
    _ROBOT,
    Parameter("bag", "", "Recording to play: a folder, or an .mcap or .db3 file."),
    Parameter(
        "topics",
        [],
        "Full names of the topics to play; empty: cameras, joint states and instruction of the robot.",
    ),
    Parameter(
        "robot_namespace", "", "Namespace of the robot in the recording; empty: found by itself."
    ),
    Parameter("rate", 1.0, "How fast time passes.", "", 0.01, 100.0),
    Parameter("clock_rate", 1000.0, "How often /clock is published.", "Hz", 1.0, 5000.0),
    Parameter(
        "wait_s",
        60.0,
        "How long each topic is waited for to have a subscriber before the first message.",
        "s",
        0.0,
        3600.0,
    ),
    Parameter("drain_s", 1.0, "How long /clock goes on after the last message.", "s", 0.0, 60.0),
)

NODES: dict[str, tuple[Parameter, ...]] = {
    "policy": POLICY,
    "age_logger": AGE_LOGGER,
    "action_player": ACTION_PLAYER,
    "sim_robot": SIM_ROBOT,
    "sim_camera": SIM_CAMERA,
    "bag_recorder": BAG_RECORDER,
    "bag_player": BAG_PLAYER,
}
"""Parameters by node."""


class ParameterValues:
    """Values of one node's parameters where no node holds them: in a replay.

    Args:
        node: name in `NODES`.
        given: values by name; the others have their defaults.

    Raises:
        ValueError: an unknown name, or a value that does not fit.
    """

    def __init__(self, node: str, given: Mapping[str, Any]) -> None:
        self._table = {parameter.name: parameter for parameter in NODES[node]}
        self._values = {name: parameter.default for name, parameter in self._table.items()}
        for name, value in given.items():
            self.set(name, value)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def ns(self, name: str) -> int:
        """A duration parameter in nanoseconds."""
        return duration_ns(name, self[name])

    def set(self, name: str, value: Any) -> None:
        """Change one value.

        Raises:
            ValueError: an unknown name, or it does not fit.
        """
        if name not in self._table:
            raise ValueError(f"parameter {name}: expected one of {', '.join(self._table)}")
        self._values[name] = self._table[name].check(value)


def duration_ns(name: str, value: float) -> int:
    """Nanoseconds of a duration parameter, by the unit in its name (`_ms` or `_s`)."""
    return round(value * (1e6 if name.endswith("_ms") else 1e9))


def read_parameter_file(path: Path, node: str) -> dict[str, Any]:
    """What a ROS parameter file sets for a node of this name, in whatever namespace.

    Raises:
        ValueError: not such a file.
        FileNotFoundError: no such file.
    """
    # Those who only want the table need no YAML.
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping from node names to ros__parameters")
    values: dict[str, Any] = {}
    for pattern, entry in content.items():
        if str(pattern).rpartition("/")[2] in (node, "**"):
            if not isinstance(entry, dict) or not isinstance(entry.get("ros__parameters"), dict):
                raise ValueError(f"{path}: {pattern}: expected ros__parameters: with a mapping")
            values |= entry["ros__parameters"]
    return values


def yaml_text(node: str) -> str:
    """A parameter file for one node with every default and its comment."""
    return "\n".join(_yaml_lines(node)) + "\n"


def _yaml_lines(node: str) -> Iterator[str]:
    yield f"/**/{node}:"
    yield "  ros__parameters:"
    for parameter in NODES[node]:
        notes = [parameter.description]
        if parameter.unit:
            notes.append(f"[{parameter.unit}]")
        if parameter.range_text:
            notes.append(f"({parameter.range_text})")
        if parameter.live:
            notes.append("Live.")
        yield f"    # {' '.join(notes)}"
        yield f"    {parameter.name}: {_yaml_value(parameter.default)}"


def _yaml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(value) + "]"
    return str(value)


def markdown_table(node: str) -> str:
    """The table of one node's parameters, for the documentation."""
    rows = [
        "| parameter | type | default | unit | range | live | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in NODES[node]:
        allowed = p.range_text.replace("|", "/")
        rows.append(
            f"| `{p.name}` | {p.type_name} | `{_yaml_value(p.default)}` | {p.unit} | {allowed} | "
            f"{'yes' if p.live else ''} | {p.description} |"
        )
    return "\n".join(rows) + "\n"
