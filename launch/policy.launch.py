"""The policy node and its companion, the age logger."""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import EnvironmentVariable
from launch_ros.actions import LifecycleNode, Node
from launch_ros.parameter_descriptions import ParameterValue

from flashrt_ros.demo import profile_variable
from flashrt_ros.paths import config_path

ARGUMENTS = [
    DeclareLaunchArgument(
        "params_file",
        default_value=str(config_path("policy.yaml")),
        description="Parameter file of both nodes.",
    ),
    DeclareLaunchArgument("namespace", default_value="", description="Namespace of both nodes."),
    DeclareLaunchArgument(
        "use_sim_time",
        default_value="false",
        choices=["true", "false"],
        description="Take the time from /clock.",
    ),
    DeclareLaunchArgument(
        "log_level",
        default_value="info",
        choices=["debug", "info", "warn", "error", "fatal"],
        description="What is logged, and worse.",
    ),
    DeclareLaunchArgument(
        "autostart",
        default_value="true",
        choices=["true", "false"],
        description="Bring the policy to active, each transition as the state before is reached; "
        "false: it waits unconfigured for transitions from outside.",
    ),
    DeclareLaunchArgument(
        "robot",
        default_value="",
        description="Robot contract: a file, or the name of one in config/robots; "
        "empty: as in params_file.",
    ),
    DeclareLaunchArgument(
        "checkpoint",
        default_value="",
        description="Folder of a checkpoint, `pi05_belt`, the small one that comes along, or `expert`, the scripted "
        "policy; empty: as in params_file.",
    ),
    DeclareLaunchArgument(
        "instruction",
        default_value="",
        description="What the robot shall do; empty: as in params_file.",
    ),
    DeclareLaunchArgument(
        "log_dir",
        default_value="",
        description="Folder for the age log, ages.jsonl (numbered where it exists); "
        "empty: as in params_file.",
    ),
]


def _nodes(context: LaunchContext) -> list[Node]:
    given = context.launch_configurations
    chosen = {name: given[name] for name in ("robot", "checkpoint", "instruction") if given[name]}
    log = {"log_file": f"{given['log_dir']}/ages.jsonl"} if given["log_dir"] else {}
    shared = {
        "package": "flashrt_ros",
        "namespace": given["namespace"],
        "output": "screen",
        "ros_arguments": ["--log-level", given["log_level"]],
    }
    use_sim_time = {"use_sim_time": given["use_sim_time"] == "true"}
    # The node starts itself by its parameter: transitions sent from here could only follow the node's transition
    # events, which are lost until discovery has matched them. The action is a LifecycleNode all the same, so that a
    # file that includes this one can send ChangeState and hear OnStateTransition.
    policy = LifecycleNode(
        executable="policy",
        name="policy",
        parameters=[
            given["params_file"],
            use_sim_time | {"autostart": given["autostart"] == "true"} | _texts(chosen),
        ],
        **shared,
    )
    age_logger = Node(
        executable="age_logger",
        name="age_logger",
        parameters=[given["params_file"], use_sim_time | _texts(log)],
        **shared,
    )
    # In this order: launch's own ROS node, which comes with the first LifecycleNode, is then the last to be shut down,
    # and a second Ctrl-C that trips over it leaves no process without its signal.
    return [policy, age_logger]


def _texts(values: dict[str, str]) -> dict[str, ParameterValue]:
    """Parameters that stay strings whatever they look like; launch would make a number of `5`."""
    return {name: ParameterValue(value, value_type=str) for name, value in values.items()}


def generate_launch_description() -> LaunchDescription:
    variable = profile_variable()
    profile = EnvironmentVariable(variable, default_value=str(config_path("fastdds.xml")))
    return LaunchDescription(
        [
            *ARGUMENTS,
            SetEnvironmentVariable(variable, profile),
            OpaqueFunction(function=_nodes),
        ]
    )
