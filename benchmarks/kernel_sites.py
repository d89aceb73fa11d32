"""The launch of each site of the fused network that kernels.py times; its products are in kernel_products.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from kernel_products import Sizes, Work, parts_of, product_work, products
from torch import Tensor

from flashrt_ros.kernels.action_step import action_step, action_step_reference
from flashrt_ros.kernels.attention import (
    prefix_attention,
    prefix_attention_reference,
    view_attention,
    view_attention_reference,
)
from flashrt_ros.kernels.embed import embed, embed_reference
from flashrt_ros.kernels.launch import Launch
from flashrt_ros.kernels.linear import RowSums
from flashrt_ros.kernels.resize import (
    part_width,
    resize_tables,
    resize_to_patches,
    resize_to_patches_reference,
)
from flashrt_ros.kernels.split_attention import (
    SplitTile,
    SplitWorkspace,
    split_attention,
    split_attention_reference,
    split_workspace_size,
)
from flashrt_ros.models.images import resized_shape
from flashrt_ros.runtime.candidates import CANDIDATES, Choice


def view_attention_work(s: Sizes) -> Work:
    """All views at once; nothing comes from memory."""
    c = s.config
    qkv = s.normal(s.base, 3 * c.vision_width, dtype=s.dtype)
    out = s.empty(s.base, c.vision_width)

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        if choice is None:
            view_attention_reference(qkv, out, c.view_tokens, c.vision_heads)
        else:
            view_attention(qkv, out, c.view_tokens, c.vision_heads, choice, launch=follow)

    operations = 4 * s.base * c.view_tokens * c.vision_width
    return Work(launch, (out,), lambda _: [out], 1, operations, 0)


def prefix_attention_work(s: Sizes) -> Work:
    """The prefix over itself; nothing comes from memory."""
    c = s.config
    queries = s.normal(s.rows, c.heads * c.head_dim, dtype=s.dtype)
    keys, values = s.normal(2, s.rows, c.head_dim, dtype=s.dtype)
    out, valid = torch.empty_like(queries), {"valid": s.length, "base": s.base}

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        if choice is None:
            prefix_attention_reference(queries, keys, values, out, **valid)
        else:
            prefix_attention(queries, keys, values, out, choice, launch=follow, **valid)

    operations = 4 * s.valid * s.valid * c.heads * c.head_dim
    return Work(launch, (out,), lambda _: [out[: s.valid]], 1, operations, 0)


def expert_attention_work(s: Sizes) -> Work:
    """A chunk's actions over the prefix and themselves; each layer's keys and values come from memory."""
    c, d = s.config, s.config.head_dim
    H = c.horizon
    sets = s.sets(2 * s.valid * d * s.dtype.itemsize)
    queries = s.normal(H, c.heads * d, dtype=s.dtype)
    keys, values = s.normal(2, sets, s.rows + 1 + H, d, dtype=s.dtype)
    out, valid = torch.empty_like(queries), {"valid": s.length, "base": s.base}
    workspaces: dict[SplitTile, SplitWorkspace] = {}

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        context = (queries, keys[i], values[i], out)
        if choice is None:
            split_attention_reference(*context, **valid)
            return
        if choice not in workspaces:
            *parts, tickets = split_workspace_size(H * c.heads, d, choice)
            scratch = (s.empty(*shape, dtype=torch.float32) for shape in parts)
            zeros = torch.zeros(tickets, dtype=torch.int32, device=s.device)
            workspaces[choice] = SplitWorkspace(*scratch, zeros)
        split_attention(
            *context, choice, workspaces[choice], longest=s.rows, launch=follow, **valid
        )

    operations = 4 * H * c.heads * (s.valid + H) * d
    nbytes = 2 * s.valid * d * s.dtype.itemsize
    return Work(launch, (out,), lambda _: [out], sets, operations, nbytes)


def resize_work(s: Sizes) -> Work:
    """One view: a picture from memory to patches, with the filter of openpi."""
    c, (height, width) = s.config, s.picture
    shape = (s.sets(3 * height * width), height, width, 3)
    pixels = torch.randint(256, shape, dtype=torch.uint8, device=s.device)
    inner = resized_shape(height, width, c.image_size)
    tables = resize_tables(height, width, c.image_size, inner, "openpi", s.device)
    out = s.empty(c.view_tokens, 3 * part_width(c.patch))

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        if choice is None:
            resize_to_patches_reference(pixels[i], out, tables, c.patch)
        else:
            resize_to_patches(pixels[i], out, tables, c.patch, launch=follow)

    return Work(launch, (out,), lambda _: [out], len(pixels), 0, pixels[0].nbytes)


def embed_work(s: Sizes) -> Work:
    """A bucket's tokens, rows of one table."""
    c, n = s.config, s.rows - s.base
    nbytes = n * c.width * s.dtype.itemsize
    tokens = torch.randint(c.vocab, (s.sets(nbytes), n), device=s.device).int()
    table = s.normal(c.vocab, c.width, dtype=s.dtype)
    # Laid out as those of the views, which the same kernel reads.
    sums = RowSums(s.empty(1, parts_of("vision_project", s), n, dtype=torch.float32))
    out = s.empty(n, c.width)

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        if choice is None:
            embed_reference(tokens[i], table, out, sums)
        else:
            embed(tokens[i], table, out, sums, launch=follow)

    def results(choice: Choice | None) -> list[Tensor]:
        return [out, sums.values.sum(1)]

    return Work(launch, (out, sums.values), results, len(tokens), 0, nbytes)


def step_work(s: Sizes) -> Work:
    """The end of one evaluation and the start of the next."""
    c, f32 = s.config, torch.float32
    H, A, E = c.horizon, c.action_dim, c.expert_width
    sets = s.sets((2 * A * E + 3 * E + A) * f32.itemsize)
    x, hidden, dt = s.normal(H, A), s.normal(H, E), -1.0 / 10
    weights = {
        "w_out": s.normal(sets, A, E, scale=E**-0.5), "out_bias": s.normal(sets, A),
        "w_in": s.normal(sets, E, A, scale=A**-0.5), "in_bias": s.normal(sets, E),
        "norm_scale": s.normal(sets, E), "scale": s.normal(sets, E),
    }  # fmt: skip
    moved, total, out = s.empty(H, A, dtype=f32), s.empty(H, E, dtype=f32), s.empty(H, E)
    sums = RowSums(s.empty(1, 1, H, dtype=f32))

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        options = {"dt": dt, "hidden": hidden, "total": total, "out": out, "sums": sums}
        options |= {name: values[i] for name, values in weights.items()}
        if choice is None:
            action_step_reference(x, moved, **options)
        else:
            action_step(x, moved, launch=follow, **options)

    outputs = (moved, total, out, sums.values)
    nbytes = sum(values[0].nbytes for values in weights.values())
    return Work(launch, outputs, lambda _: list(outputs), sets, 0, nbytes)


def launch_work(s: Sizes, site: str) -> Work:
    """How kernels of a part follow each other, by one of its products; the reference is in plain stream order."""
    work, tile = product_work(site, s), CANDIDATES[site][0]

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        work.launch(tile, i, Launch() if choice is None else follow)

    return Work(
        launch, work.outputs, lambda _: work.results(tile), work.sets, work.operations, work.nbytes
    )


OTHERS: dict[str, Callable[[Sizes], Work]] = {
    "vision_resize": resize_work,
    "vision_attention": view_attention_work,
    "prefix_embed": embed_work,
    "prefix_attention": prefix_attention_work,
    "expert_step": step_work,
    "expert_attention": expert_attention_work,
    "expert_launch": partial(launch_work, site="expert_gate_up"),
    "prefix_launch": partial(launch_work, site="prefix_qkv"),
}


def check_sites(s: Sizes) -> None:
    """Raise ValueError unless every site of CANDIDATES, and no other, has its launch here."""
    here, sites = {*products(s), *OTHERS}, set(CANDIDATES)
    if here != sites:
        raise ValueError(
            f"launches to time: expected one of each site of CANDIDATES, found none of {sorted(sites - here)} "
            f"and some of {sorted(here - sites)}, which are no sites: see benchmarks/kernel_sites.py"
        )


def site_work(site: str, s: Sizes) -> Work:
    """The launch of a site, the same random numbers each time."""
    torch.manual_seed(0)
    return OTHERS[site](s) if site in OTHERS else product_work(site, s)
