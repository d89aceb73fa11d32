"""The MJCF of the belt world: arm, table, belt, blocks, cameras, light; primitive shapes only.

Blocks slide in the plane (x, y, yaw) and are carried by velocity actuators whose force limit is the
friction of the belt: a finger can hold or push a block, and none can fall off. Rendering stays
cheap because there are no meshes, shadows or multisampling.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashrt_ros.sim import kinematics as arm
from flashrt_ros.sim.camera import (
    BELT_CENTRE_X_M,
    BELT_HALF_WIDTH_M,
    BELT_TOP_M,
    BELT_VISIBLE_HALF_LENGTH_M,
    BLOCK_CENTRE_M,
    BLOCK_HALF_SIZE_M,
    COLOURS,
    OVERHEAD,
    PinholeCamera,
)

TIMESTEP_S = 1.0 / 600.0  # divides the periods of 30 Hz cameras and 100 Hz joint states
# The slots of mjData.userdata: what the state holds beyond MuJoCo's own.
USERDATA = (
    "belt_speed_m_s",
    "belt_phase_m",
    "light",
    "lamp",  # 0: dark, n: lit in the n-th of the scene's colours
    *(f"{name}_target" for name in arm.JOINT_NAMES),
)

BELT_HALF_LENGTH_M = (
    0.38  # where a block leaves, hidden in a housing, and enters again at the other end
)
MARK_PITCH_M = 0.0760  # a whole number of them is the belt's length
MAX_BELT_SPEED_M_S = 0.20
GAUGE_HALF_LENGTH_M = 0.14
GAUGE_X_M = 0.375
LAMP_Y_M = 0.215  # beside the gauge
LAMP_DARK_RGBA = (0.07, 0.07, 0.08, 1.0)
FINGERTIP_RADIUS_M = 0.007

# Servos like a 3 N m hobby bus servo: stiff, near critically damped, 5 rad/s without load, where
# the damping uses up the whole torque. Lag behind a moving target: (kv + damping) / kp.
SERVO_KP = 60.0
SERVO_KV = 2.4
SERVO_DAMPING = 0.6
SERVO_TORQUE_N_M = 3.0
SERVO_SPEED_RAD_S = 3.0  # the profile speed: a far target is approached at this pace
SERVO_LAG_S = (SERVO_KV + SERVO_DAMPING) / SERVO_KP

_BLOCK_MASS_KG = 0.06
_BELT_GRIP_N = 0.8 * _BLOCK_MASS_KG * 9.81


def mjcf(colours: Sequence[str], image_height: int, image_width: int) -> str:
    """The whole model as an MJCF string, with one block for each of `colours`."""
    blocks = "".join(_block(colour) for colour in colours)
    drives = "".join(_block_drives(colour) for colour in colours)
    return f"""
<mujoco model="belt_world">
  <compiler angle="radian"/>
  <option timestep="{TIMESTEP_S!r}" integrator="implicitfast" iterations="20" ls_iterations="20"/>
  <size nuserdata="{len(USERDATA)}"/>
  <visual>
    <global offwidth="{image_width}" offheight="{image_height}"/>
    <quality shadowsize="0" offsamples="0"/>
    <headlight ambient="0.36 0.36 0.37" diffuse="0.18 0.18 0.18" specular="0 0 0"/>
    <map znear="0.02" zfar="8"/>
  </visual>
  <statistic extent="1" center="0.2 0 0.1"/>
  <default>
    <geom contype="0" conaffinity="0" density="0"/>
    <joint armature="0.02" damping="{SERVO_DAMPING}"/>
    <position kp="{SERVO_KP}" kv="{SERVO_KV}" forcerange="{-SERVO_TORQUE_N_M} {SERVO_TORQUE_N_M}"
              inheritrange="1"/>
  </default>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.82 0.86 0.90" rgb2="0.55 0.60 0.66"
             width="64" height="64"/>
    <material name="table" rgba="0.74 0.73 0.71 1" specular="0.1"/>
    <material name="belt" rgba="0.17 0.18 0.20 1" specular="0.1"/>
    <material name="mark" rgba="0.62 0.63 0.60 1" specular="0"/>
    <material name="steel" rgba="0.58 0.60 0.63 1" specular="0.4"/>
    <material name="housing" rgba="0.30 0.33 0.38 1" specular="0.3"/>
    <material name="white" rgba="0.93 0.93 0.91 1" specular="0.4"/>
    <material name="motor" rgba="0.13 0.13 0.14 1" specular="0.5"/>
    <material name="needle" rgba="0.97 0.97 0.95 1" specular="0"/>
    <material name="lamp" specular="0" emission="0.6"/>
  </asset>
  <worldbody>
    <light name="sun" directional="true" pos="0.4 -0.5 1.4" dir="-0.25 0.35 -1"
           diffuse="0.56 0.55 0.53" specular="0.25 0.25 0.25" castshadow="false"/>
    {_camera("overhead", OVERHEAD)}
    <geom name="table" type="box" pos="0.02 0 -0.02" size="0.52 0.56 0.02" material="table"
          conaffinity="1"/>
    {_belt()}
    {_arm()}
    {blocks}
  </worldbody>
  <actuator>
    {"".join(f'<position name="{name}" joint="{name}"/>' for name in arm.JOINT_NAMES)}
    {drives}
  </actuator>
</mujoco>
"""


def _camera(name: str, camera: PinholeCamera) -> str:
    right, up, _ = camera.axes
    axes = " ".join(f"{value:.17g}" for value in (*right, *up))
    position = " ".join(f"{value:.17g}" for value in camera.position_m)
    return f'<camera name="{name}" pos="{position}" xyaxes="{axes}" fovy="{camera.fovy_deg}"/>'


def _belt() -> str:
    centre, half_width, visible = BELT_CENTRE_X_M, BELT_HALF_WIDTH_M, BELT_VISIBLE_HALF_LENGTH_M
    hood = 0.5 * (BELT_HALF_LENGTH_M + 0.03 - visible)
    parts = [
        f'<geom name="belt" type="box" pos="{centre} 0 {BELT_TOP_M / 2}" material="belt"'
        f' conaffinity="1" size="{half_width} {BELT_HALF_LENGTH_M} {BELT_TOP_M / 2}"/>'
    ]
    for side in (-1, 1):
        parts.append(
            f'<geom type="box" pos="{centre + side * (half_width + 0.006)} 0 0.014"'
            f' material="steel" size="0.006 {BELT_HALF_LENGTH_M} 0.014"/>'
        )
        parts.append(
            f'<geom type="box" pos="{centre} {side * (visible + hood)} 0.04" material="housing"'
            f' size="{half_width + 0.02} {hood} 0.04"/>'
        )
    parts += [_gauge(), _lamp()]
    marks = []
    count = round(2 * BELT_HALF_LENGTH_M / MARK_PITCH_M)
    for index in range(count):
        y = -BELT_HALF_LENGTH_M + index * MARK_PITCH_M
        for side in (-1, 1):
            marks.append(
                f'<geom type="box" pos="{side * 0.036} {y} 0" euler="0 0 {-side * 0.44}"'
                f' material="mark" size="0.040 0.006 0.0004"/>'
            )
    parts.append(
        f'<body name="belt_marks" mocap="true" pos="{centre} 0 {BELT_TOP_M}">'
        f"{''.join(marks)}</body>"
    )
    return "\n    ".join(parts)


def _gauge() -> str:
    """A scale beside the belt whose needle tells the belt's speed: one picture is then enough to
    know it."""
    ticks = "".join(
        f'<geom type="box" pos="{GAUGE_X_M} {GAUGE_HALF_LENGTH_M * step / 4} 0.0046"'
        f' material="mark" size="{0.009 if step % 4 == 0 else 0.005} 0.0015 0.0004"/>'
        for step in range(-4, 5)
    )
    return f"""<geom type="box" pos="{GAUGE_X_M} 0 0.002" material="motor"
      size="0.016 {GAUGE_HALF_LENGTH_M + 0.012} 0.0024"/>{ticks}
    <body name="gauge_needle" mocap="true" pos="{GAUGE_X_M} 0 0.005">
      <geom type="box" material="needle" size="0.014 0.006 0.004"/></body>"""


def _lamp() -> str:
    """A lamp that can tell a colour for a moment."""
    dark = " ".join(map(str, LAMP_DARK_RGBA))
    return (
        f'<geom type="cylinder" pos="{GAUGE_X_M} {LAMP_Y_M} 0.006" material="motor"'
        ' size="0.032 0.006"/>'
        f'<geom name="lamp" type="ellipsoid" pos="{GAUGE_X_M} {LAMP_Y_M} 0.012" material="lamp"'
        f' size="0.027 0.027 0.016" rgba="{dark}"/>'
    )


def _arm() -> str:
    limits = {
        name: f'range="{low} {high}"'
        for name, (low, high) in zip(arm.JOINT_NAMES, arm.JOINT_LIMITS_RAD, strict=True)
    }
    upper, fore, hand = arm.UPPER_ARM_M, arm.FOREARM_M, arm.HAND_M
    shoulder = arm.SHOULDER_HEIGHT_M
    tip = FINGERTIP_RADIUS_M
    touch = 'contype="1" conaffinity="2" friction="0.3 0.005 0.0001"'
    return f"""<body name="base" gravcomp="1">
      <geom type="cylinder" size="0.045 0.012" pos="0 0 0.012" material="motor"/>
      <geom type="cylinder" size="0.034 0.026" pos="0 0 0.05" material="white"/>
      <body name="turret" gravcomp="1">
        <joint name="shoulder_pan" axis="0 0 1" {limits["shoulder_pan"]}/>
        <inertial pos="0 0 0.09" mass="0.1" diaginertia="1e-4 1e-4 1e-4"/>
        <geom type="box" size="0.022 0.024 0.022" pos="0 0 0.098" material="white"/>
        <body name="upper_arm" pos="0 0 {shoulder}" gravcomp="1">
          <joint name="shoulder_lift" axis="0 1 0" {limits["shoulder_lift"]}/>
          <inertial pos="0 0 {upper / 2}" mass="0.1" diaginertia="2e-4 2e-4 5e-5"/>
          <geom type="cylinder" size="0.020 0.024" euler="1.5708 0 0" material="motor"/>
          <geom type="capsule" size="0.0145" fromto="0 0 0.02 0 0 {upper - 0.018}"
                material="white"/>
          <body name="forearm" pos="0 0 {upper}" gravcomp="1">
            <joint name="elbow_flex" axis="0 1 0" {limits["elbow_flex"]}/>
            <inertial pos="{fore / 2} 0 0" mass="0.08" diaginertia="5e-5 2e-4 2e-4"/>
            <geom type="cylinder" size="0.018 0.022" euler="1.5708 0 0" material="motor"/>
            <geom type="capsule" size="0.0125" fromto="0.018 0 0 {fore - 0.016} 0 0"
                  material="white"/>
            <body name="wrist" pos="{fore} 0 0" gravcomp="1">
              <joint name="wrist_flex" axis="0 1 0" {limits["wrist_flex"]}/>
              <inertial pos="0.01 0 0" mass="0.03" diaginertia="2e-5 2e-5 2e-5"/>
              <geom type="cylinder" size="0.015 0.018" euler="1.5708 0 0" material="motor"/>
              <body name="hand" gravcomp="1">
                <joint name="wrist_roll" axis="1 0 0" {limits["wrist_roll"]}/>
                <inertial pos="0.05 0 0" mass="0.03" diaginertia="1e-5 2e-5 2e-5"/>
                <camera name="wrist" pos="0.048 0 0.05" xyaxes="0 -1 0 0.52 0 0.854" fovy="75"/>
                <geom type="box" size="0.012 0.010 0.008" pos="0.034 0 0.05" material="motor"/>
                <geom type="box" size="0.018 0.016 0.012" pos="0.034 0 0" material="white"/>
                <geom name="finger" type="capsule" size="0.006" material="steel" {touch}
                      fromto="0.05 0 0 {hand - 0.006} 0 0"/>
                <geom name="fingertip" type="sphere" size="{tip}" pos="{hand} 0 0" material="motor"
                      {touch}/>
                <site name="tip" pos="{hand} 0 0" size="0.002" rgba="0 0 0 0"/>
                <body name="jaw" pos="0.05 0.014 0" gravcomp="1">
                  <joint name="gripper" axis="0 0 1" {limits["gripper"]}/>
                  <inertial pos="0.025 0 0" mass="0.01" diaginertia="5e-6 5e-6 5e-6"/>
                  <geom type="capsule" size="0.0045" fromto="0 0 0 0.058 0 0" material="steel"/>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>"""


def _block(colour: str) -> str:
    red, green, blue = COLOURS[colour]
    half = BLOCK_HALF_SIZE_M
    slack = BELT_HALF_WIDTH_M - 1.42 * half  # half a diagonal stays between the rails
    between_rails = f'range="{BELT_CENTRE_X_M - slack} {BELT_CENTRE_X_M + slack}"'
    return f"""<body name="{colour}" pos="0 0 {BLOCK_CENTRE_M}">
      <joint name="{colour}_x" type="slide" axis="1 0 0" armature="0" damping="0" {between_rails}/>
      <joint name="{colour}_y" type="slide" axis="0 1 0" armature="0" damping="0"/>
      <joint name="{colour}_yaw" type="hinge" axis="0 0 1" armature="0" damping="0"/>
      <geom name="{colour}" type="box" size="{half} {half} {half}" rgba="{red} {green} {blue} 1"
            mass="{_BLOCK_MASS_KG}" contype="2" conaffinity="3" friction="0.3 0.005 0.0001"/>
    </body>
    """


def _block_drives(colour: str) -> str:
    grip, turn = _BELT_GRIP_N, _BELT_GRIP_N * BLOCK_HALF_SIZE_M * 0.7
    return f"""<velocity name="{colour}_x" joint="{colour}_x" kv="30" forcerange="{-grip} {grip}"/>
    <velocity name="{colour}_y" joint="{colour}_y" kv="30" forcerange="{-grip} {grip}"/>
    <velocity name="{colour}_yaw" joint="{colour}_yaw" kv="0.01" forcerange="{-turn} {turn}"/>
    """
