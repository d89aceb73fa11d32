"""The engine on a GPU, its stages captured as CUDA graphs: `pytest -m gpu test/runtime`.

Everything runs with the padded operators of plain torch and, where they can be imported, with the fused kernels.
"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from flashrt_ros.runtime.build import RuntimeSetupError, operators_for, select_candidates
from flashrt_ros.runtime.capsule import restore, snapshot
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.launcher import ShapeError
from flashrt_ros.runtime.operators import ReferenceOperators
from flashrt_ros.runtime.settings import EngineSettings

from ..models.golden import recorded
from .engines import INSTRUCTIONS, NOISE, engine_of, pictures, policy_of, ran, walk_beside
from .padded import PaddedOperators

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
NAMES = ["openpi_pi05", "openpi_pi0"]
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")


def implementation(which):
    if which == "padded":
        return PaddedOperators
    try:
        return operators_for("fused", torch.device("cuda"))[1]
    except RuntimeSetupError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["padded", "fused"])
def make_operators(request):
    return implementation(request.param)


def shape_of(name):
    return (policy_of(name, "float32", "cuda").config.image_size,) * 2


def engine(name, make_operators, **settings):
    settings.setdefault("cameras", dict.fromkeys(CAMERAS, shape_of(name)))
    settings.setdefault("optional", frozenset(CAMERAS))
    settings.setdefault("flows", ((10, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (1, 0.5)))
    settings.setdefault("unbuilt", "refuse")
    precision = "float32" if make_operators is PaddedOperators else "bfloat16"
    return engine_of(
        name, precision=precision, device="cuda", make_operators=make_operators, **settings
    )


def arguments_of(name, seed=0):
    return pictures(name, seed, shape_of(name)), recorded(name).state, INSTRUCTIONS[0]


@pytest.mark.parametrize("name", NAMES)
def test_replayed_graphs_give_the_plain_networks_actions(name, make_operators):
    captured = engine(name, make_operators)
    assert captured.plan.captures
    arguments = arguments_of(name)
    expected = policy_of(name, "float32", "cuda").infer(*arguments, noise=NOISE)
    scale = np.abs(expected).max()
    tolerance = (1e-4 if make_operators is PaddedOperators else 5e-2) * scale
    found = captured.infer(*arguments, noise=NOISE)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=tolerance)
    for _ in range(3):
        captured.forget()
        assert (captured.infer(*arguments, noise=NOISE) == found).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_reuse_gives_the_bits_of_recomputation(name, make_operators):
    lazy, eager = (engine(name, make_operators, kept_instructions=n) for n in (2, 8))
    walk_beside(name, lazy, eager, shape=shape_of(name))


def test_a_call_allocates_nothing_and_captures_nothing(make_operators):
    name = "openpi_pi05"
    captured = engine(name, make_operators)
    state = recorded(name).state
    captured.infer(*arguments_of(name), steps=3)
    keys = captured.plan.keys

    def allocations():
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    before = allocations()
    for seed in range(4):
        captured.infer(pictures(name, seed, shape_of(name)), state * seed, INSTRUCTIONS[seed % 2])
    assert allocations() == before
    assert captured.plan.keys == keys


def test_capture_bears_another_threads_cuda_work(make_operators):
    """Other threads pin memory, allocate and copy while graphs are captured."""
    name, stop, errors, rounds = "openpi_pi05", threading.Event(), [], []

    def disturb():
        try:
            while not stop.is_set():
                host = torch.ones(1 << 16, pin_memory=True)
                device = host.to("cuda", non_blocking=True)
                assert float((device * 2).sum()) == 2 << 16
                rounds.append(1)
        except Exception as error:
            errors.append(error)

    expected = engine(name, make_operators).infer(*arguments_of(name), noise=NOISE)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        captured = engine(name, make_operators)
        found = captured.infer(*arguments_of(name), noise=NOISE)
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert rounds
    assert (found == expected).all()


def test_a_shape_that_was_not_built_is_refused_or_captured(make_operators):
    name = "openpi_pi05"
    refusing = engine(name, make_operators, flows=((1, 1.0),))
    with pytest.raises(ShapeError, match="was not built"):
        refusing.infer(*arguments_of(name), noise=NOISE, steps=2)
    refusing.infer(*arguments_of(name), noise=NOISE, steps=1)
    building = engine(name, make_operators, flows=((1, 1.0),), unbuilt="build")
    found = building.infer(*arguments_of(name), noise=NOISE, steps=2)
    assert (found == engine(name, make_operators).infer(*arguments_of(name), noise=NOISE, steps=2)).all()  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_moment_continues_bit_for_bit(name, make_operators):
    captured = engine(name, make_operators)
    arguments = arguments_of(name)
    captured.infer(*arguments)
    capsule = snapshot(captured)
    first = [captured.infer(*arguments), captured.infer(*arguments_of(name, 1))]
    restore(captured, capsule)
    assert ran(captured, lambda: captured.infer(*arguments)) == {"denoise": 1}
    restore(captured, capsule)
    again = [captured.infer(*arguments), captured.infer(*arguments_of(name, 1))]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))


def test_a_picture_may_be_overwritten_as_soon_as_it_was_seen(make_operators):
    name = "openpi_pi05"
    captured = engine(name, make_operators)
    (images, state, text), camera = arguments_of(name), CAMERAS[0]
    expected = captured.infer(images, state, text, noise=NOISE)
    captured.forget()
    buffer = images[camera].copy()
    for _ in range(5):  # each upload may still run when the next picture comes
        buffer[...] = 255 - buffer
        captured.see(camera, buffer)
    buffer[...] = images[camera]
    captured.see(camera, buffer)
    buffer[...] = 0
    assert (captured.infer(images, state, text, noise=NOISE) == expected).all()


def test_the_reference_runs_uncaptured():
    name = "openpi_pi05"
    plain = engine_of(name, device="cuda")
    assert not plain.plan.captures
    run = recorded(name)
    found = plain.infer(run.images, run.state, run.instruction, noise=run.noise)
    np.testing.assert_allclose(found, run.actions[10], rtol=0.0, atol=1e-3)


def test_everything_is_given_back(make_operators):
    name = "openpi_pi05"
    engine(name, make_operators).infer(*arguments_of(name))  # what libraries keep for good
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    again = engine(name, make_operators)
    again.infer(*arguments_of(name))
    assert torch.cuda.memory_allocated() > before[0]
    del again
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before[0]
    assert torch.cuda.memory_reserved() <= before[1]


def test_graphs_of_other_candidates_are_dropped():
    make = implementation("fused")
    policy = policy_of("openpi_pi05", "bfloat16", "cuda")
    settings = EngineSettings(dict.fromkeys(CAMERAS, shape_of("openpi_pi05")), flows=((1, 1.0),))
    captured = FlowEngine(policy, settings, make_operators=make)
    captured.build()
    sites = captured.operators.sites()
    if not sites:
        pytest.skip("the fused operators have no site with candidates")
    keys = captured.plan.keys
    captured.choose(sites[0].name, list(sites[0].candidates)[-1])
    captured.infer(*arguments_of("openpi_pi05"), steps=1)
    assert captured.plan.keys > keys
    new = captured.plan.keys - keys
    captured.drop_other_choices()
    assert captured.plan.keys >= new
    assert not captured.plan.keys >= keys  # those of the stage that the site is part of are gone
    assert isinstance(captured.operators, make)
    assert not isinstance(captured.operators, ReferenceOperators)


def test_a_selection_builds_what_calls_may_not():
    make = implementation("fused")
    policy = policy_of("openpi_pi05", "bfloat16", "cuda")
    cameras = dict.fromkeys(CAMERAS, shape_of("openpi_pi05"))
    settings = EngineSettings(cameras, flows=((1, 1.0),), unbuilt="refuse")
    captured = FlowEngine(policy, settings, make_operators=make)
    if not captured.operators.sites():
        pytest.skip("the fused operators have no site with candidates")
    verdicts = select_candidates(captured, pairs=2)
    assert "failed" not in {v.outcome for v in verdicts.verdicts}
    captured.build()
    captured.infer(*arguments_of("openpi_pi05"), steps=1)
    with pytest.raises(ShapeError, match="was not built"):
        captured.infer(*arguments_of("openpi_pi05"), steps=2)
