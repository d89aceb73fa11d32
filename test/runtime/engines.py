"""Engines on the golden policies, for the tests of this room, on any device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from flashrt_ros.models.policy import load_policy
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.operators import ReferenceOperators
from flashrt_ros.runtime.settings import EngineSettings

from ..models.golden import recorded

NOISE = torch.randn(10, 32, generator=torch.Generator().manual_seed(5))
INSTRUCTIONS = ("pick up the cup", "put the cup on the shelf and then close the door")


@lru_cache
def policy_of(name, precision="float32", device="cpu"):
    run = recorded(name)
    return load_policy(run.folder, options=run.options, precision=precision, device=device)


def engine_of(
    name, *, precision="float32", device="cpu", make_operators=ReferenceOperators, **settings
):
    policy, images = policy_of(name, precision, device), recorded(name).images
    settings.setdefault("cameras", {camera: i.shape[:2] for camera, i in images.items()})
    engine = FlowEngine(policy, EngineSettings(**settings), make_operators=make_operators)
    engine.build()
    return engine


def pictures(name, seed=0, shape=None):
    """Noise of the recorded pictures' sizes, or of another height and width."""
    generator = np.random.default_rng(seed)
    return {
        camera: generator.integers(0, 256, (*(shape or image.shape[:2]), 3), np.uint8)
        for camera, image in recorded(name).images.items()
    }


def ran(engine, call):
    """Stages that a call ran, with how often each."""
    before = engine.contract.ran.copy()
    call()
    return dict(engine.contract.ran - before)


def walk_beside(name, lazy, eager, *, calls=30, shape=None):
    """Change everything in turn, and compare an engine with one that forgets before each call, bit for bit."""
    random = np.random.default_rng(3)
    images, state = pictures(name, shape=shape), recorded(name).state.copy()
    cameras, texts = list(images), [*INSTRUCTIONS, "wait"]
    instruction, present = texts[0], cameras
    for call in range(calls):
        change = call % 5
        if change == 0:
            instruction = texts[random.integers(3)]
        if change == 1:
            camera = cameras[random.integers(2)]
            images[camera] = images[camera].copy()
            images[camera][0, -1, 0] ^= 1
        if change == 2:
            state = state + random.normal(size=state.shape).astype(np.float32)
        if change == 3:
            present = [cameras, cameras[:1], cameras[1:]][random.integers(3)]
        if change == 4:
            lazy.see(cameras[0], images[cameras[0]])
        seen = {camera: images[camera] for camera in present}
        eager.forget()
        steps = int(random.integers(1, 4))
        found, expected = (
            engine.infer(seen, state, instruction, noise=NOISE, steps=steps)
            for engine in (lazy, eager)
        )
        assert (found == expected).all(), f"call {call}"
    for stage in ("see.0", "read_fixed", "encode"):
        assert lazy.contract.ran[stage] < eager.contract.ran[stage] == calls
