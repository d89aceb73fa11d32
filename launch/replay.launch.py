"""A recording played into the live policy, its player and its companion, under the recording's time."""

from pathlib import Path

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    IncludeLaunchDescription,
    OpaqueFunction,
    Shutdown,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

# First, so that these defaults stand before those of policy.launch.py; its other arguments can be given as well.
ARGUMENTS = [
    DeclareLaunchArgument("bag", description="Recording: a folder, or an .mcap or .db3 file."),
    DeclareLaunchArgument("rate", default_value="1.0", description="How fast time passes."),
    DeclareLaunchArgument(
        "use_sim_time",
        default_value="true",
        choices=["true"],
        description="The recording's time is the only one that fits.",
    ),
    DeclareLaunchArgument(
        "robot_namespace",
        default_value="",
        description="Namespace of the robot in the recording; empty: found by itself.",
    ),
    DeclareLaunchArgument(
        "record", default_value="", description="Folder for a recording of it all; empty: none."
    ),
]


def _nodes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    given = context.launch_configurations
    chosen = {"robot": _text(given["robot"])} if given["robot"] else {}

    def node(name: str, **parameters: ParameterValue | float | bool) -> Node:
        return Node(
            package="flashrt_ros",
            executable=name,
            name=name,
            namespace=given["namespace"],
            output="screen",
            parameters=[given["params_file"], parameters],
            ros_arguments=["--log-level", given["log_level"]],
            # The player ends by itself when all is played.
            on_exit=OpaqueFunction(function=_end, args=[name]),
        )

    player = node(
        "bag_player",
        bag=_text(given["bag"]),
        rate=float(given["rate"]),
        robot_namespace=_text(given["robot_namespace"]),
        **chosen,
    )
    recorder = (
        [node("bag_recorder", bag=_text(given["record"]), use_sim_time=True)]
        if given["record"]
        else []
    )
    return [*recorder, node("action_player", use_sim_time=True, **chosen), player]


def _text(value: str) -> ParameterValue:
    """Text stays text, even where it looks like a number."""
    return ParameterValue(value, value_type=str)


def _end(context: LaunchContext, name: str) -> list[LaunchDescriptionEntity]:
    """The end of one part is the end of all. A second shutdown would make launch fail in its own."""
    return [] if context.is_shutdown else [Shutdown(reason=f"{name} ended")]


def generate_launch_description() -> LaunchDescription:
    policy = Path(__file__).with_name("policy.launch.py")
    return LaunchDescription(
        [
            *ARGUMENTS,
            IncludeLaunchDescription(PythonLaunchDescriptionSource(str(policy))),
            OpaqueFunction(function=_nodes),
        ]
    )
