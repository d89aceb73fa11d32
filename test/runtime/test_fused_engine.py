"""The engine on the fused kernels: actions, reuse, guidance and capsules, as with the reference operators."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.runtime.capsule import restore, snapshot
from flashrt_ros.runtime.fused import FusedOperators

from ..kernels.compare import DEVICE
from ..models.golden import recorded
from .engines import INSTRUCTIONS, NOISE, engine_of, pictures, ran

NAMES = ["openpi_pi05", "openpi_pi0"]


class Kernels(FusedOperators):
    """Every site by its first kernel that needs no option of a GPU."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for site in self.sites():
            if not site.name.endswith("_launch"):
                self.choose(site.name, list(site.candidates)[1])


def kernels_of(name):
    if DEVICE.type == "cuda":
        pytest.skip("on a GPU the tiles, made for 16-bit numbers, need too much memory in float32")
    return engine_of(name, make_operators=Kernels, guided=True)


def close(found, expected):
    return np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_gives_the_references_actions_and_repeats_nothing_that_is_not_due(name):
    run, images = recorded(name), pictures(name)
    engine, plain = kernels_of(name), engine_of(name)

    def infer(on, seed=0, text=INSTRUCTIONS[0], **options):
        changed = pictures(name, seed) if seed else images
        return on.infer(changed, run.state, text, noise=NOISE, steps=2, **options)

    first = infer(engine)
    assert close(first, infer(plain))
    assert ran(engine, lambda: infer(engine)) == {"denoise": 1}
    assert (infer(engine) == first).all()
    moment = snapshot(engine)

    def guidance(step, time, x, v):
        return 0.5 * v + (x if step else 0)

    observed = engine.observe, plain.observe
    for observe in observed:
        observe(pictures(name, 1), run.state, INSTRUCTIONS[1])
    guided = [e.denoise(noise=NOISE, steps=2, guidance=guidance).numpy() for e in (engine, plain)]
    assert close(*guided)

    restore(engine, moment)
    again = []
    assert ran(engine, lambda: again.append(infer(engine))) == {"denoise": 1}
    assert (again[0] == first).all()


def test_a_policy_without_verdicts_runs_the_plain_reference_of_each_site():
    name = "openpi_pi05"
    run = recorded(name)
    engine = engine_of(name, make_operators=FusedOperators, device=DEVICE.type)
    plain = engine_of(name)
    assert set(engine.operators.choices().values()) == {"reference"}
    found, expected = (
        e.infer(pictures(name), run.state, INSTRUCTIONS[0], noise=NOISE, steps=2)
        for e in (engine, plain)
    )
    assert close(found, expected)
