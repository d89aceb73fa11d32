"""The network through fused kernels against the reference operators, stage by stage."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.errors import OutOfResources

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.flow import flow_times, uniform_times
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.upstream import PLUS_ONE
from flashrt_ros.models.weights import Weights, build_weights, tensor_specs
from flashrt_ros.runtime.contract import Buffers
from flashrt_ros.runtime.fused import FusedOperators
from flashrt_ros.runtime.operators import (
    Limits,
    ReferenceOperators,
    Shape,
    Site,
    bucket_of,
    declare_buffers,
)

from ..kernels.compare import DEVICE, error

CAMERAS = ((48, 64), (61, 37))


def tiny(family: str, **changes: int) -> ModelConfig:
    """Sizes that no tile divides, but for a view's 16 rows: a CPU's product may round by a row's place in a tile."""
    sizes = {
        "vision_width": 144, "vision_depth": 2, "vision_heads": 2, "vision_mlp": 80,
        "image_size": 56, "width": 64, "mlp": 96, "expert_width": 32, "expert_mlp": 96, "depth": 2,
        "heads": 4, "head_dim": 16, "vocab": 512, "horizon": 10, "action_dim": 8,
        "max_prompt_tokens": 40,
    } | changes  # fmt: skip
    return ModelConfig(family=family, **sizes)


def random_weights(config: ModelConfig) -> Weights:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, spec in tensor_specs(config).items():
        scale = 0.02 if "modulation" in name else spec.shape[-1] ** -0.5
        values = torch.randn(spec.shape, generator=generator) * scale + (name in PLUS_ONE)
        tensors[name] = values.to(DEVICE, spec.dtype("float32"))
    return build_weights(tensors)


class Run:
    """Operators of one kind with buffers that hold the same inputs."""

    def __init__(
        self, kind: type, weights: Weights, config: ModelConfig, length: int, fixed: int
    ) -> None:
        self.config, self.length = config, length
        limits = Limits(CAMERAS, 64)
        self.operators = kind(weights, config, limits, PrepareImage(config.image_size, "openpi"))
        b = self.buffers = Buffers()
        declare_buffers(b, config, limits, weights.dtype)
        self.operators.declare(b)
        b.allocate(DEVICE)
        generator = torch.Generator().manual_seed(1)
        names = ["pixels.0", "pixels.1", "prompt", "x0"]
        for name in names[:2]:
            b.host(name).random_(0, 256, generator=generator)
        prompt = b.host("prompt")
        prompt[:-2].random_(0, config.vocab, generator=generator)
        prompt[-2], prompt[-1] = length, fixed
        b.host("x0").normal_(generator=generator)
        if config.family == "pi0":
            b.host("state").normal_(generator=generator)
            names.append("state")
        for name in names:
            b[name].copy_(b.host(name))
        self.operators.bind(b)
        self.times = flow_times(weights, config, uniform_times(2))
        self.operators.prepare_times(self.times)

    @torch.no_grad()
    def __call__(self, views: int, together: bool = True) -> dict[str, torch.Tensor]:
        """All stages; what is valid of their results."""
        shape, o = Shape(views, bucket_of(self.length)), self.operators
        if together:
            o.see(tuple(range(views)), 0)
        else:
            for view in reversed(range(views)):
                o.see((view,), view)
        o.read_prompt(shape, "fixed")
        o.read_prompt(shape, "moving")
        o.encode(shape)
        end = views * self.config.view_tokens + self.length
        rows = self.buffers["rows"][:end].clone()
        if self.config.family == "pi0":
            o.append_state(shape)
            end += 1
        o.denoise(shape, self.times)
        caches = {name: self.buffers[name][:, :end].clone() for name in ("keys", "values")}
        return {"rows": rows, "actions": self.buffers["actions"].clone(), **caches}


def first_that_fits(site: Site, *, tile: bool = False) -> str:
    """The first kernel of a site whose tile fits: they are for 16-bit numbers, and these are float32.

    tile: none of a library.
    """
    names = [name for name in list(site.candidates)[1:] if not (tile and name == "library")]
    if DEVICE.type != "cuda":
        return names[0]
    for name in names:
        try:
            site.candidates[name]()
        except OutOfResources:
            continue
        return name
    raise AssertionError(f"{site.name}: no tile fits")


@pytest.mark.parametrize(
    ("family", "views", "length", "fixed", "changes"),
    [
        ("pi05", 2, 19, 12, {}),
        ("pi0", 2, 19, 19, {}),
        ("pi05", 1, 33, 33, {"horizon": 17, "action_dim": 7}),
    ],
    ids=["pi05", "pi0", "one view, odd sizes"],
)
def test_stages_give_what_the_reference_gives_and_the_same_bits_again(
    family, views, length, fixed, changes
):
    config = tiny(family, **changes)
    weights = random_weights(config)
    wanted = Run(ReferenceOperators, weights, config, length, fixed)(views)
    run = Run(FusedOperators, weights, config, length, fixed)
    at_first = run(views)
    for name in ("rows", "values", "actions"):
        assert error(at_first[name], wanted[name]) < 1e-5, name
    for site in run.operators.sites():
        if not site.name.endswith("_launch") or DEVICE.type == "cuda":  # a launch option of the GPU
            run.operators.choose(site.name, first_that_fits(site))
    found = run(views)
    for name in ("rows", "values", "actions"):  # keys lie in another order of their numbers
        assert error(found[name], wanted[name]) < 1e-5, name
    again = run(views, together=False)
    for name, values in found.items():
        assert torch.equal(values, again[name]), name


@pytest.mark.parametrize(
    "plain", [("vision_patch", "vision_project"), ("vision_attention", "vision_qkv", "vision_fc2")]
)
def test_vision_sites_on_their_reference_give_a_view_the_same_bits_beside_another(plain):
    config = tiny("pi05", depth=1)
    weights = random_weights(config)
    wanted = Run(ReferenceOperators, weights, config, 19, 12)(2)["rows"]
    run = Run(FusedOperators, weights, config, 19, 12)
    run(2)
    for site in run.operators.sites():
        if site.name.startswith("vision") and site.name not in plain:
            run.operators.choose(site.name, first_that_fits(site))
    found = run(2)["rows"]
    assert error(found, wanted) < 1e-5
    assert torch.equal(found, run(2, together=False)["rows"])


@pytest.mark.parametrize("elsewhere", ["tiles", "references"])
@pytest.mark.parametrize(
    ("out", "down"), [("tile", "library"), ("library", "tile"), ("library", "library")]
)
def test_a_librarys_product_beside_a_tile_and_what_lies_beyond_the_prompt(out, down, elsewhere):
    config = tiny(
        "pi05", depth=3, vision_depth=1, width=144
    )  # a tile leaves two partial sums a row
    weights = random_weights(config)
    wanted = Run(ReferenceOperators, weights, config, 19, 12)(1)
    run = Run(FusedOperators, weights, config, 19, 12)
    run(1)
    sites = {site.name: site for site in run.operators.sites()}
    ways = {"prefix_out": out, "prefix_down": down}
    if elsewhere == "tiles":
        ways |= dict.fromkeys(("prefix_qkv", "prefix_attention", "prefix_gate_up"), "tile")
    for name, way in ways.items():
        other = first_that_fits(sites[name], tile=True)
        run.operators.choose(name, "library" if way == "library" else other)
    found = run(1)
    for name in ("rows", "values", "actions"):
        assert error(found[name], wanted[name]) < 1e-5, name
    for name in ("prefix_x", "prefix_h", "prefix_q", "prefix_y", "prefix_sums"):
        run.buffers[name].fill_(1e4)
    again = run(1)
    for name, values in found.items():
        assert torch.equal(values, again[name]), name


def test_a_site_proves_its_candidates_on_its_whole_stage_and_leaves_the_choice_as_it_was():
    config = tiny("pi05", depth=1, vision_depth=1)
    run = Run(FusedOperators, random_weights(config), config, 19, 12)
    run(1)
    sites = {site.name: site for site in run.operators.sites()}
    assert "expert_time" not in sites  # π0's alone
    stages = [name.partition("_")[0] for name in sites]
    assert stages == sorted(stages)  # expert, prefix, vision: trials become shorter
    for name in ("vision_out", "prefix_qkv", "expert_down"):
        site = sites[name]
        wanted = [x.clone() for x in site.candidates["reference"]()]
        found = site.candidates[list(site.candidates)[1]]()
        assert max(map(error, found, wanted)) < site.bound, name
    assert set(run.operators.choices().values()) == {"reference"}
    other = list(sites["expert_down"].candidates)[1]
    run.operators.choose("expert_down", other)
    assert other in run.operators.choices("denoise").values()
    for stage in ("see", "read_prompt", "encode"):  # whose graphs stay
        assert set(run.operators.choices(stage).values()) == {"reference"}
    with pytest.raises(ValueError, match="unknown"):
        run.operators.choose("expert_down", "unknown")


def test_a_velocity_times_the_step_is_the_step():
    config = tiny("pi0")
    run = Run(FusedOperators, random_weights(config), config, 19, 19)
    wanted, b = run(1)["actions"], run.buffers
    b["actions"].copy_(b["x0"])
    for step, size in enumerate(run.times.step_sizes):
        run.operators.velocity(Shape(1, 32), run.times, step)
        b["actions"].add_(b["velocity"], alpha=size)
    assert error(b["actions"], wanted) < 1e-6
