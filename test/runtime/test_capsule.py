"""Capsules: what follows a restore is what would have followed the snapshot, bit for bit."""

import pytest
import torch

from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.models.weights import build_weights, named_tensors
from flashrt_ros.runtime.capsule import CapsuleError, fork, restore, snapshot
from flashrt_ros.runtime.digest import weights_digest
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.settings import EngineSettings

from ..models.golden import recorded
from .engines import INSTRUCTIONS, engine_of, pictures, policy_of
from .planted import PlantedOperators

NAMES = ["openpi_pi05", "openpi_pi0"]


def disturb(engine, name):
    state = recorded(name).state * 0.5
    for seed, instruction in enumerate(INSTRUCTIONS[::-1]):
        engine.infer(pictures(name, 10 + seed), state, instruction)
    camera, image = next(iter(pictures(name, 9).items()))
    engine.infer({camera: image}, state, "one camera only")


def continuation(engine, name):
    """The calls that follow a moment: the same picture again, one view new, all new, and a warm step."""
    images, state = pictures(name, 2), recorded(name).state
    mixed = {**images, "base_0_rgb": pictures(name, 3)["base_0_rgb"]}
    previous = engine.chunk
    found = [
        engine.infer(images, state, INSTRUCTIONS[0]),
        engine.infer(mixed, state, INSTRUCTIONS[0]),
        engine.infer(pictures(name, 4), state + 0.1, INSTRUCTIONS[1]),
        engine.infer(images, state, INSTRUCTIONS[0], steps=1, start_time=0.5, initial=previous),
    ]
    return found, dict(engine.contract.ran), dict(engine.contract.reused)


@pytest.mark.parametrize("name", NAMES)
def test_next_actions_and_counters_are_those_of_the_first_time(name):
    engine = engine_of(name, seed=3)
    engine.infer(pictures(name, 2), recorded(name).state, INSTRUCTIONS[0])
    capsule = snapshot(engine)
    first = continuation(engine, name)
    disturb(engine, name)
    restore(engine, capsule)
    again = continuation(engine, name)
    assert all((a == b).all() for a, b in zip(first[0], again[0], strict=True))
    # The second time, the instructions in between are still kept: they are read less often, never more.
    for counts in (first[1], again[1]):
        counts.pop("read_fixed")
    assert again[1] == first[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_observation_is_reused(name):
    engine = engine_of(name)
    arguments = (pictures(name, 2), recorded(name).state, INSTRUCTIONS[0])
    engine.infer(*arguments)
    capsule = snapshot(engine)
    disturb(engine, name)
    restore(engine, capsule)
    before = engine.contract.ran.copy()
    engine.infer(*arguments)
    assert dict(engine.contract.ran - before) == {"denoise": 1}


def test_two_sessions_take_turns_on_one_engine():
    name = "openpi_pi05"
    state = recorded(name).state
    walks = [[(pictures(name, 10 * s + i), INSTRUCTIONS[s]) for i in range(3)] for s in range(2)]
    alone = []
    for seed, walk in enumerate(walks):
        engine = engine_of(name, seed=seed)
        alone.append([engine.infer(images, state, text) for images, text in walk])
    engine = engine_of(name)
    empty = snapshot(engine)
    sessions = [fork(empty, seed) for seed in range(2)]
    for step in range(3):
        for which, walk in enumerate(walks):
            restore(engine, sessions[which])
            images, text = walk[step]
            assert (engine.infer(images, state, text) == alone[which][step]).all()
            sessions[which] = snapshot(engine)


def test_a_fork_has_other_noise_ahead_and_the_same_past():
    name = "openpi_pi05"
    engine = engine_of(name)
    arguments = (pictures(name, 2), recorded(name).state, "go")
    engine.infer(*arguments)
    capsule = snapshot(engine)
    forked = fork(capsule, seed=99)
    assert forked.memory is capsule.memory
    found = {}
    for key, moment in (("first", capsule), ("fork", forked), ("again", capsule)):
        restore(engine, moment)
        assert torch.equal(engine.chunk, capsule.host.chunk)
        found[key] = engine.infer(*arguments)
    assert (found["first"] == found["again"]).all()
    assert (found["first"] != found["fork"]).any()


def changed_weights(policy):
    tensors = {name: tensor.clone() for name, tensor in named_tensors(policy.weights).items()}
    tensors["expert.down"].view(-1)[-1] += 1e-3
    return FlowPolicy(build_weights(tensors), policy.config, policy.processor)


def test_a_foreign_capsule_is_refused_with_the_reason():
    name = "openpi_pi05"
    engine = engine_of(name)
    engine.infer(pictures(name), recorded(name).state, "go")
    chunk = engine.chunk
    settings = engine.settings
    policy = policy_of(name)
    others = {
        "weights": FlowEngine(changed_weights(policy), settings),
        "buffers: expected a capsule of this engine": FlowEngine(policy, settings),
        "precision": FlowEngine(policy_of(name, "bfloat16"), settings),
    }
    for reason, other in others.items():
        expected = "weights" if reason == "precision" else reason
        with pytest.raises(CapsuleError, match=expected):
            restore(engine, snapshot(other))
    assert engine.chunk is chunk


def test_a_capsule_of_other_candidates_is_refused():
    policy = policy_of("openpi_pi05")
    cameras = {"base_0_rgb": (48, 64)}
    engine = FlowEngine(policy, EngineSettings(cameras), make_operators=PlantedOperators)
    capsule = snapshot(engine)
    engine.choose("head", "leaner")
    with pytest.raises(CapsuleError, match=r"candidates: expected .*leaner"):
        restore(engine, capsule)
    engine.choose("head", "reference")
    restore(engine, capsule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_digest_sees_any_word_its_place_and_its_name(dtype):
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(33, 3, generator=generator).to(dtype) for name in "ab"}
    known = {weights_digest(weights)}
    assert known == {weights_digest({name: t.clone() for name, t in weights.items()})}
    for place in range(99):
        changed = {**weights, "a": weights["a"].clone()}
        changed["a"].view(-1)[place] += 0.5
        known.add(weights_digest(changed))
    swapped = {**weights, "a": weights["a"].flip(0)}
    known |= {
        weights_digest(swapped),
        weights_digest({"a": weights["b"], "b": weights["a"]}),
        weights_digest({"a": weights["a"].view(3, 33), "b": weights["b"]}),
    }
    assert len(known) == 103


def test_retained_memory_holds_no_scratch():
    engine = engine_of("openpi_pi05")
    capsule = snapshot(engine)
    assert capsule.nbytes < engine.buffers.nbytes
    assert capsule.memory.data_ptr() != engine.buffers.retained.data_ptr()
