"""The whole pipeline on the simulated robot: `flashrt demo` without its report."""

from pathlib import Path

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    IncludeLaunchDescription,
    OpaqueFunction,
    SetEnvironmentVariable,
    Shutdown,
    TimerAction,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import EnvironmentVariable
from launch_ros.actions import Node

from flashrt_ros.paths import config_path

# First, so that these defaults stand before those of policy.launch.py; its other arguments can be given as well.
ARGUMENTS = [
    DeclareLaunchArgument(
        "duration",
        default_value="0",
        description="Seconds from the start until everything is shut down; 0: for ever.",
    ),
    DeclareLaunchArgument(
        "params_file",
        default_value=str(config_path("demo.yaml")),
        description="Parameter file of all nodes.",
    ),
    DeclareLaunchArgument(
        "instruction",
        default_value="touch the red block",
        description="What the robot shall do.",
    ),
    DeclareLaunchArgument("seed", default_value="0", description="Seed of the world."),
    DeclareLaunchArgument("belt_speed", default_value="0.04", description="Belt speed [m/s]."),
    DeclareLaunchArgument(
        "camera_delay_ms", default_value="0", description="Added to every picture [ms]."
    ),
    DeclareLaunchArgument(
        "follow",
        default_value="player",
        choices=["player", "trajectory"],
        description="What moves the arm: action_player, or the policy's joint trajectories.",
    ),
]


def _simulation(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    given = context.launch_configurations
    use_sim_time = {"use_sim_time": given["use_sim_time"] == "true"}

    def node(name: str, remapping: tuple[str, str] | None = None, **parameters: float) -> Node:
        return Node(
            package="flashrt_ros",
            executable=name,
            name=name,
            namespace=given["namespace"],
            output="screen",
            parameters=[given["params_file"], use_sim_time | parameters],
            remappings=[remapping] if remapping else [],
            ros_arguments=["--log-level", given["log_level"]],
            on_exit=OpaqueFunction(function=_end, args=[name]),
        )

    seed = int(given["seed"])
    if given["follow"] == "player":
        driver = [node("action_player")]
        follow = ("~/command", "action_player/command")
    else:
        driver = []
        follow = ("~/joint_trajectory", "policy/joint_trajectory")
    duration_s = float(given["duration"])
    end = Shutdown(reason=f"the duration of {duration_s:g} s is over")
    return [
        *driver,
        node("sim_camera", seed=seed, delay_ms=float(given["camera_delay_ms"])),
        node("sim_robot", follow, seed=seed, belt_speed=float(given["belt_speed"])),
        *([TimerAction(period=duration_s, actions=[end])] if duration_s > 0 else []),
    ]


def _end(context: LaunchContext, name: str) -> list[LaunchDescriptionEntity]:
    """With one part missing the others run for nothing. A second shutdown would make launch fail in its own."""
    return [] if context.is_shutdown else [Shutdown(reason=f"{name} ended")]


def generate_launch_description() -> LaunchDescription:
    policy = Path(__file__).with_name("policy.launch.py")
    return LaunchDescription(
        [
            *ARGUMENTS,
            SetEnvironmentVariable(
                "MUJOCO_GL", EnvironmentVariable("MUJOCO_GL", default_value="egl")
            ),
            # Five processes share the machine: no thread pool wider than the work.
            SetEnvironmentVariable(
                "OMP_NUM_THREADS", EnvironmentVariable("OMP_NUM_THREADS", default_value="1")
            ),
            IncludeLaunchDescription(PythonLaunchDescriptionSource(str(policy))),
            OpaqueFunction(function=_simulation),
        ]
    )
