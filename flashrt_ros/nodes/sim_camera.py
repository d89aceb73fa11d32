"""The simulated cameras: render what a shutter caught and publish it, late or not at all if so asked."""

from __future__ import annotations

import array
import random
import sys
import threading
import time
from queue import PriorityQueue
from typing import Any

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

from flashrt_ros.control.parameters import SIM_CAMERA
from flashrt_ros.nodes.base import RELIABLE, Parameters, run, sensor_qos
from flashrt_ros.sim.world import BeltWorld


class SimCamera(Node):
    """Publishes `<camera>/image_raw` for each of its cameras, stamped when the shutter opened."""

    def __init__(self) -> None:
        super().__init__("sim_camera")
        self._settings = Parameters(self, SIM_CAMERA)
        self._world = BeltWorld(
            seed=self._settings["seed"],
            image_size=(self._settings["image_height"], self._settings["image_width"]),
        )
        self._random = random.Random(self._settings["seed"])
        self._images = {
            camera: self.create_publisher(Image, f"{camera}/image_raw", sensor_qos(4))
            for camera in self._settings["cameras"]
        }
        for camera in self._images:
            # The first picture takes a while: have it before a shutter opens, and fail here if there is no OpenGL.
            self._world.render(camera)
        self._late: PriorityQueue[tuple[float, int, str, Any]] = PriorityQueue()
        self._sent = 0
        self._stopping = threading.Event()
        self._postman = threading.Thread(target=self._deliver_late, daemon=True)
        self._postman.start()
        self.create_subscription(JointState, "sim_robot/shutter", self._on_shutter, RELIABLE)

    def close(self) -> None:
        """Stop delivering and free the OpenGL context."""
        self._stopping.set()
        self._late.put((0.0, 0, "", None))
        self._postman.join()
        self._world.close()

    def _on_shutter(self, message: JointState) -> None:
        camera = message.header.frame_id
        if camera not in self._images or self._random.random() < self._settings["drop"]:
            return
        self._world.set_state(np.frombuffer(message.position, dtype=np.float64))
        pixels = self._world.render(camera)
        height, width, channels = pixels.shape
        image = Image(
            header=message.header,
            height=height,
            width=width,
            encoding="rgb8",
            step=width * channels,
        )
        image.data = array.array("B", pixels.tobytes())
        delay_ms = self._settings["delay_ms"]
        jitter_ms = self._settings["jitter_ms"]
        wait_s = max(0.0, self._random.gauss(delay_ms, jitter_ms)) / 1e3
        if wait_s == 0.0:
            self._images[camera].publish(image)
            return
        self._sent += 1
        self._late.put((time.monotonic() + wait_s, self._sent, camera, image))

    def _deliver_late(self) -> None:
        while True:
            due_s, number, camera, image = self._late.get()
            if self._stopping.is_set():
                return
            wait_s = due_s - time.monotonic()
            if wait_s > 0.001:
                # Something that is due earlier may come meanwhile: look again soon.
                self._late.put((due_s, number, camera, image))
                time.sleep(min(wait_s, 0.001))
                continue
            self._images[camera].publish(image)


def main() -> int:
    """Run the node."""
    return run(SimCamera)


if __name__ == "__main__":
    sys.exit(main())
