"""Every parameter of every node, declared once: the nodes, `config/*.yaml` and the documentation read this table."""

from __future__ import annotations

from flashrt_ros.control.parameter import Parameter

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
