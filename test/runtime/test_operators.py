"""The reference operators through their buffers against the policy that has none."""

import pytest
import torch

from flashrt_ros.models.flow import uniform_times
from flashrt_ros.models.policy import load_policy
from flashrt_ros.runtime.contract import Buffers
from flashrt_ros.runtime.operators import (
    Limits,
    ReferenceOperators,
    Shape,
    bucket_of,
    buckets,
    declare_buffers,
    prompt_views,
)

from ..models.golden import recorded


def test_buckets_cover_the_longest_prompt():
    assert buckets(48) == (32, 64)
    assert buckets(200) == (32, 64, 96, 128, 160, 192, 224)
    assert buckets(32) == (32,)
    assert [bucket_of(n) for n in (0, 1, 32, 33, 200)] == [32, 32, 32, 64, 224]


@pytest.mark.parametrize("fixed", [0, 5])
@pytest.mark.parametrize("name", ["openpi_pi0", "openpi_pi05", "lerobot_pi05"])
def test_stages_by_hand_give_the_policys_actions(name, fixed):
    run = recorded(name)
    policy = load_policy(run.folder, options=run.options)
    config, (first, second) = policy.config, run.images.values()
    inputs = policy.processor.prepare(run.images, run.state, run.instruction)
    tokens = inputs.tokens[inputs.token_mask]
    shape = Shape(2, bucket_of(len(tokens)))
    # Room for a third view, a longer prompt, and pictures in the other order of cameras.
    limits = Limits((second.shape[:2], first.shape[:2], (9, 9)), shape.bucket + 32)
    operators = ReferenceOperators(policy.weights, config, limits, policy.processor.image)
    buffers = Buffers()
    declare_buffers(buffers, config, limits, policy.weights.dtype)
    operators.declare(buffers)
    buffers.allocate(policy.device)
    operators.bind(buffers)

    buffers.host("pixels.0").copy_(torch.from_numpy(second))
    buffers.host("pixels.1").copy_(torch.from_numpy(first))
    ids, length, fixed_length = prompt_views(buffers.host("prompt"))
    ids[: len(tokens)] = tokens
    length.fill_(len(tokens))
    fixed_length.fill_(fixed)
    buffers["x0"].copy_(run.noise)
    times = policy.flow_times(uniform_times(10))
    with torch.no_grad():
        operators.prepare_times(times)
        operators.see((1,), 0)
        operators.see((0,), 1)
        operators.read_prompt(shape, "fixed")
        operators.read_prompt(shape, "moving")
        operators.encode(shape)
        if config.family == "pi0":
            buffers["state"].copy_(inputs.state)
            operators.append_state(shape)
        operators.denoise(shape, times)
    prefix = policy.encode(inputs)
    for found, expected in ((buffers["keys"], prefix.keys), (buffers["values"], prefix.values)):
        torch.testing.assert_close(found[:, : prefix.length], expected, rtol=1e-5, atol=1e-5)
        assert not found[:, prefix.length :].any()
    expected = policy.denoise(prefix, run.noise, times)
    torch.testing.assert_close(buffers["actions"], expected, rtol=1e-5, atol=1e-5)


def test_the_reference_has_nothing_to_choose():
    policy = load_policy(recorded("openpi_pi05").folder)
    limits = Limits(((8, 8),), 32)
    operators = ReferenceOperators(policy.weights, policy.config, limits, policy.processor.image)
    assert operators.sites() == []
    with pytest.raises(ValueError, match="site 'attention'"):
        operators.choose("attention", "fused")
