"""The network through fused kernels, on a GPU.

A site is a place in the network with a choice (`candidates`): how its kernel is tiled, a library's product, or its
plain reference, which is what runs where nothing else was chosen. Row sums of squares travel beside the rows, written
by whoever wrote these, so that no kernel reads rows only to normalise them, except behind a library's product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashrt_ros.kernels.action_step import action_step, action_step_reference
from flashrt_ros.kernels.attention import (
    prefix_attention,
    prefix_attention_reference,
    view_attention,
    view_attention_reference,
)
from flashrt_ros.kernels.embed import embed, embed_reference
from flashrt_ros.kernels.launch import Launch, multiprocessors
from flashrt_ros.kernels.linear import Rope, RowSums, Workspace
from flashrt_ros.kernels.resize import (
    part_width,
    resize_tables,
    resize_to_patches,
    resize_to_patches_reference,
)
from flashrt_ros.kernels.split_attention import (
    SplitWorkspace,
    split_attention,
    split_attention_reference,
)
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.flow import FlowTimes
from flashrt_ros.models.gemma import rotary_table
from flashrt_ros.models.images import PrepareImage, resized_shape
from flashrt_ros.models.weights import Weights
from flashrt_ros.runtime.candidates import CANDIDATES, JUDGED, REFERENCE, Product, by_name
from flashrt_ros.runtime.contract import Buffers, Rate
from flashrt_ros.runtime.folding import FoldedTimes, fold_times, fold_weights
from flashrt_ros.runtime.operators import Limits, Part, Shape, Site, bucket_of, prompt_views
from flashrt_ros.runtime.products import product, reference_by_view, views_of

SMALLEST_COLUMNS = 16


class FusedOperators:
    """See `operators.Operators`. Needs weights on a GPU; under Triton's interpreter, on a CPU."""

    capturable = True

    def __init__(
        self, weights: Weights, config: ModelConfig, limits: Limits, image: PrepareImage
    ) -> None:
        self._w, self._c, self._limits, self._image = weights, config, limits, image
        self._f = fold_weights(weights, config)
        self._names = dict.fromkeys(CANDIDATES, REFERENCE)
        self._chosen: dict[str, Any] = dict.fromkeys(CANDIDATES)
        self._cameras: tuple[tuple[int, ...], int] = ((), 0)
        self._last_times: FlowTimes | None = None
        self._times: dict[tuple[float, ...], FoldedTimes] = {}
        self._b = Buffers()
        self._resize = [
            resize_tables(
                h, w, image.size, resized_shape(h, w, image.size), image.filter, weights.device
            )
            for h, w in limits.cameras
        ]

    # -- buffers

    def declare(self, buffers: Buffers) -> None:
        """Scratch, row sums, and layer 0's projections of the prompt, which are kept with the instruction."""
        c, dtype, f32 = self._c, self._w.dtype, torch.float32
        V, N, T = len(self._limits.cameras), c.view_tokens, self._limits.prompt_tokens
        P, H, q = V * N + T, c.horizon, c.heads * c.head_dim

        def scratch(name: str, shape: Sequence[int], kind: torch.dtype = dtype) -> None:
            buffers.declare(name, shape, kind, Rate.STEP)

        def sums(name: str, planes: int, width: int, rows: int, rate: Rate = Rate.STEP) -> None:
            tiles = -(-width // SMALLEST_COLUMNS)
            buffers.declare(name, (planes * tiles * rows,), f32, rate)

        for name, width in (("q", q), ("k", c.head_dim), ("v", c.head_dim)):
            buffers.declare(f"first_{name}", (T, width), dtype, Rate.INSTRUCTION)
        sums("rows_sums", 1, c.width, P, Rate.OBSERVATION)
        scratch("patches", (V * N, 3 * part_width(c.patch)))
        scratch("vision_x", (V * N, c.vision_width))
        scratch("vision_qkv", (V * N, 3 * c.vision_width))
        scratch("vision_y", (V * N, c.vision_width))
        scratch("vision_h", (V * N, c.vision_mlp))
        sums("vision_sums", 2, c.vision_width, V * N)
        scratch("prefix_x", (P, c.width))
        scratch("prefix_q", (P, q))
        scratch("prefix_y", (P, q))
        scratch("prefix_h", (P, c.mlp))
        sums("prefix_sums", 1, c.width, P)
        scratch("total", (H, c.expert_width), f32)
        scratch("operand", (H, c.expert_width))
        scratch("expert_q", (H, q))
        scratch("expert_y", (H, q))
        scratch("expert_h", (H, c.expert_mlp))
        scratch("time_a", (H, c.expert_width))
        scratch("time_b", (H, c.expert_width))
        scratch("nothing", (H, c.action_dim), f32)  # stays zero
        sums("expert_sums", 1, c.expert_width, H)
        scratch("partial", (1 << 22,), f32)
        scratch("split_partial", (16 * H * c.heads * c.head_dim,), f32)
        scratch("split_softmax", (2 * 16 * H * c.heads,), f32)
        scratch("tickets", (1 << 14,), torch.int32)
        buffers.declare("rotation", (2, P + 1 + H, c.head_dim // 2), f32, Rate.CHECKPOINT)

    def bind(self, buffers: Buffers) -> None:
        """Take the buffers, fill the rotary table."""
        self._b = buffers
        table = buffers["rotation"]
        positions = torch.arange(table.shape[1], device=table.device)
        table.copy_(rotary_table(self._c.head_dim, positions)[:, :, 0])

    def prepare_times(self, times: FlowTimes) -> None:
        """Multiply the terms out."""
        if times.times not in self._times:
            self._times[times.times] = fold_times(self._w, self._f, self._c, times)

    # -- stages

    def see(self, cameras: tuple[int, ...], first: int) -> None:
        """Pixels to prefix rows: a kernel for all views at once, a reference for one after the other.

        A library may pick another algorithm for more rows, and round otherwise.
        """
        c, f, b, v = self._c, self._f, self._b, self._w.vision
        N, n, W = c.view_tokens, len(cameras) * c.view_tokens, c.vision_width
        self._cameras = cameras, first
        patches, x, qkv = b["patches"][:n], b["vision_x"][:n], b["vision_qkv"][:n]
        y, h = b["vision_y"][:n], b["vision_h"][:n]
        for i, camera in enumerate(cameras):
            resize = (
                resize_to_patches if self._chosen["vision_resize"] else resize_to_patches_reference
            )
            target = patches[i * N : (i + 1) * N]
            resize(b[f"pixels.{camera}"], target, self._resize[camera], c.patch)
        sums = self._sums("vision_sums", 2, "vision_patch", W, n)
        self._linear(
            "vision_patch", patches, f.patch, x, bias=v.patch_bias, residual=v.position, sums=sums
        )
        for i in range(c.vision_depth):
            self._linear(
                "vision_qkv", x, f.vision_qkv.weight[i], qkv, norm=sums,
                bias=f.vision_qkv.bias[i], colsum=f.vision_qkv.colsum[i],
            )  # fmt: skip
            tile = self._chosen["vision_attention"]
            if tile is None:
                for view in views_of(n, N):
                    view_attention_reference(qkv[view], y[view], N, c.vision_heads)
            else:
                view_attention(qkv, y, N, c.vision_heads, tile)
            sums = self._sums("vision_sums", 2, "vision_out", W, n)
            self._linear("vision_out", y, v.out[i], x, bias=v.out_bias[i], residual=x, sums=sums)
            self._linear(
                "vision_fc1", x, f.vision_fc1.weight[i], h, norm=sums,
                bias=f.vision_fc1.bias[i], colsum=f.vision_fc1.colsum[i], activation="gelu",
            )  # fmt: skip
            sums = self._sums("vision_sums", 2, "vision_fc2", W, n)
            self._linear("vision_fc2", h, v.fc2[i], x, bias=v.fc2_bias[i], residual=x, sums=sums)
        at = first * N
        self._linear(
            "vision_project", x, f.projector.weight, b["rows"][at : at + n], norm=sums,
            bias=f.projector.bias, colsum=f.projector.colsum, sums=self._row_sums(at),
        )  # fmt: skip

    def read_prompt(self, shape: Shape, part: Part) -> None:
        """Embeddings and layer 0's projections; rows of the other part may be computed again, to the same bits."""
        c, b = self._c, self._b
        tokens, length, fixed = prompt_views(b["prompt"])
        base, T = shape.views * c.view_tokens, shape.bucket
        rows, sums = b["rows"][base : base + T], self._row_sums(base)
        look_up = embed if self._chosen["prefix_embed"] else embed_reference
        look_up(tokens[:T], self._w.language.embedding, rows, sums)
        self._linear(
            "prefix_qkv", rows, self._f.prefix_qkv[0], None, norm=sums, activation="rope",
            rope=Rope(b["rotation"][:, base:], b["first_k"], b["first_v"], b["first_q"]),
            valid=length, skip=fixed if part == "moving" else None,
        )  # fmt: skip

    def encode(self, shape: Shape) -> None:
        """All layers; the last one ends at its keys and values."""
        c, f, b, w = self._c, self._f, self._b, self._w.language
        base, T = shape.views * c.view_tokens, shape.bucket
        P, length = base + T, prompt_views(b["prompt"])[1]
        x, q, y, h = (b[f"prefix_{name}"][:P] for name in "xqyh")
        keys, values, rotation = b["keys"], b["values"], b["rotation"]
        rows = b["rows"][:P]
        self._linear(
            "prefix_qkv", rows[:base], f.prefix_qkv[0], None, first=True, norm=self._row_sums(0),
            activation="rope", rope=Rope(rotation, keys[0], values[0], q),
        )  # fmt: skip
        for source, target in (("first_q", q), ("first_k", keys[0]), ("first_v", values[0])):
            target[base:P].copy_(b[source][:T])
        queries, last = c.heads * c.head_dim, c.depth - 1
        sums = self._row_sums(0)
        for i in range(c.depth):
            if i:
                weight = f.prefix_qkv[i][queries:] if i == last else f.prefix_qkv[i]
                self._linear(
                    "prefix_qkv", x, weight, None, norm=sums, activation="rope", valid=length, base=base,
                    rope=Rope(rotation, keys[i], values[i], None if i == last else q),
                )  # fmt: skip
            if i == last:
                return
            tile, context = self._chosen["prefix_attention"], (q, keys[i, :P], values[i, :P], y)
            if tile is None:
                prefix_attention_reference(*context, valid=length, base=base)
            else:
                # In layer 0 it comes behind the copies.
                launch = self._follow("prefix", first=i == 0)
                prefix_attention(*context, tile, valid=length, base=base, launch=launch)
            sums = self._sums("prefix_sums", 1, "prefix_out", c.width, P)
            self._linear(
                "prefix_out", y, w.out[i], x, residual=x if i else rows, sums=sums, valid=length,
                base=base,
            )  # fmt: skip
            self._linear(
                "prefix_gate_up", x, f.prefix_gate_up[i], h, norm=sums, activation="geglu",
                valid=length, base=base,
            )  # fmt: skip
            sums = self._sums("prefix_sums", 1, "prefix_down", c.width, P)
            self._linear(
                "prefix_down", h, w.down[i], x, residual=x, sums=sums, valid=length, base=base
            )

    def append_state(self, shape: Shape) -> None:
        """π0's state token through the expert, behind the prefix."""
        flow, b = self._w.flow, self._b
        total, operand = b["total"][:1], b["operand"][:1]
        sums = self._sums("expert_sums", 1, None, self._c.expert_width, 1)
        self._step(
            b["state"][None], None, first=True, w_in=flow.state, in_bias=flow.state_bias,
            total=total, out=operand, sums=sums,
        )  # fmt: skip
        self._expert(shape, 1, 0, None, 0, sums)

    def denoise(self, shape: Shape, times: FlowTimes) -> None:
        """All steps: `x0` to `actions`."""
        self._last_times = times
        b, steps = self._b, len(times.times)
        x = b["x0"]
        for step in range(steps + 1):
            ends = self._ends(times, step - 1, times.step_sizes[step - 1]) if step else {}
            starts = self._starts(times, step) if step < steps else {}
            self._step(x, b["actions"], first=step == 0, **ends, **starts)
            x = b["actions"] if step else x
            if step < steps:
                self._evaluate(shape, times, step)

    def velocity(self, shape: Shape, times: FlowTimes, step: int) -> None:
        """One evaluation: `actions` to `velocity`."""
        b = self._b
        self._step(b["actions"], None, first=True, **self._starts(times, step))
        self._evaluate(shape, times, step)
        # From nothing, a step of 1 is the velocity.
        self._step(b["nothing"], b["velocity"], **self._ends(times, step, 1.0))

    # -- choices

    def sites(self) -> list[Site]:
        """Every site, in the order that they are judged; a candidate runs its whole stage on what the buffers hold."""
        bound = 1e-5 if self._w.dtype == torch.float32 else 2e-2
        return [
            Site(site, {name: partial(self._proof, site, name) for name in by_name(site)}, bound)
            for site in JUDGED
            if site != "expert_time" or self._c.family == "pi0"
        ]

    def choices(self, stage: str | None = None) -> dict[str, str]:
        """The candidate in use, by site."""
        if stage is None:
            return dict(self._names)
        part = {"see": "vision", "read_prompt": "prefix", "encode": "prefix"}.get(stage, "expert")
        # Row sums of the views are laid out by their projection, and read with the prompt's.
        also = "vision_project" if part == "prefix" else part
        return {site: name for site, name in self._names.items() if site.startswith((part, also))}

    def choose(self, site: str, candidate: str) -> None:
        """Use a candidate from the next launch on; raises ValueError for an unknown one."""
        if site not in CANDIDATES or candidate not in by_name(site):
            known = sorted(CANDIDATES) if site not in CANDIDATES else list(by_name(site))
            raise ValueError(f"candidate {candidate!r} of site {site!r}: expected one of {known}")
        self._names[site], self._chosen[site] = candidate, by_name(site)[candidate]

    def _proof(self, site: str, candidate: str) -> list[Tensor]:
        """Results of the site's stage with a candidate."""
        c, b, before = self._c, self._b, self._names[site]
        length = int(prompt_views(b.host("prompt"))[1])
        cameras, first = self._cameras
        views = first + len(cameras)
        shape, end = Shape(views, bucket_of(length)), views * c.view_tokens + length
        self.choose(site, candidate)
        try:
            if site.startswith("vision"):
                self.see(cameras, first)
                return [b["rows"][first * c.view_tokens : views * c.view_tokens]]
            if site.startswith("prefix"):
                self.read_prompt(shape, "fixed")
                self.read_prompt(shape, "moving")
                self.encode(shape)
                return [b["keys"][:, :end], b["values"][:, :end]]
            if self._last_times is None:
                raise ValueError(f"site {site}: nothing was denoised yet")
            self.denoise(shape, self._last_times)
            return [b["actions"]]
        finally:
            self.choose(site, before)

    # -- parts of stages

    def _starts(self, times: FlowTimes, step: int) -> dict[str, Any]:
        """What `action_step` is given to begin an evaluation."""
        b, flow, terms = self._b, self._w.flow, self._times[times.times]
        starts = {"w_in": flow.action_in, "in_bias": flow.action_in_bias}
        if terms.time_bias is not None:
            return starts | {"out": b["time_a"]}
        assert terms.scale is not None
        sums = self._sums("expert_sums", 1, None, self._c.expert_width, self._c.horizon)
        into = {"total": b["total"], "out": b["operand"], "scale": terms.scale[step, 0]}
        return starts | into | {"sums": sums}

    def _ends(self, times: FlowTimes, step: int, dt: float) -> dict[str, Any]:
        """What `action_step` is given to end an evaluation."""
        terms = self._times[times.times]
        return {
            "dt": dt, "hidden": self._b["total"], "w_out": self._w.flow.action_out,
            "norm_scale": terms.out_scale[step], "out_bias": terms.out_bias[step],
        }  # fmt: skip

    def _step(
        self, x: Tensor, moved: Tensor | None, *, first: bool = False, **options: Any
    ) -> None:
        if self._chosen["expert_step"]:
            action_step(x, moved, launch=self._follow("expert", first), **options)
        else:
            action_step_reference(x, moved, **options)

    def _evaluate(self, shape: Shape, times: FlowTimes, step: int) -> None:
        """The expert's layers, from where `_starts` leaves it."""
        c, terms = self._c, self._times[times.times]
        if terms.time_bias is not None:
            sums = self._time_mlp(terms.time_bias[step])
        else:
            sums = self._sums("expert_sums", 1, None, c.expert_width, c.horizon)
        self._expert(shape, c.horizon, int(c.family == "pi0"), terms, step, sums)

    def _time_mlp(self, bias: Tensor) -> RowSums:
        """π0: actions and flow time mixed into the expert's first rows."""
        c, f, b = self._c, self._f, self._b
        assert f.time_in is not None
        assert f.time_out is not None
        sums = self._sums("expert_sums", 1, "expert_time", c.expert_width, c.horizon)
        self._linear(
            "expert_time", b["time_a"], f.time_in, b["time_b"], bias=bias, activation="silu"
        )
        self._linear(
            "expert_time", b["time_b"], f.time_out, b["operand"], bias=self._w.flow.time_out_bias,
            total=b["total"], sums=sums,
        )  # fmt: skip
        return sums

    def _expert(
        self, shape: Shape, n: int, after: int, terms: FoldedTimes | None, step: int, sums: RowSums
    ) -> None:
        """n rows behind the prefix (and `after` more tokens) through all layers: `total`, `operand` in and out."""
        c, f, b, w = self._c, self._f, self._b, self._w.expert
        base, length = shape.views * c.view_tokens + after, prompt_views(b["prompt"])[1]
        total, operand = b["total"][:n], b["operand"][:n]
        q, y, h = (b[f"expert_{name}"][:n] for name in "qyh")
        tile, work = self._chosen["expert_attention"], self._split_workspace

        def term(values: Tensor | None, at: int) -> Tensor | None:
            return None if values is None else values[step, at]

        scale = gate = qkv_bias = gate_up_bias = None
        if terms is not None:
            scale, gate = terms.scale, terms.gate
            qkv_bias, gate_up_bias = terms.qkv_bias, terms.gate_up_bias
        for i in range(c.depth):
            keys, values = b["keys"][i], b["values"][i]
            rope = Rope(b["rotation"], keys, values, q, length, base)
            self._linear(
                "expert_qkv", operand, f.expert_qkv[i], None, norm=sums, bias=term(qkv_bias, i),
                activation="rope", rope=rope,
            )  # fmt: skip
            if tile is None:
                split_attention_reference(q, keys, values, y, valid=length, base=base)
            else:
                split_attention(
                    q, keys, values, y, tile, work, valid=length, base=base,
                    longest=shape.views * c.view_tokens + shape.bucket + after,
                    launch=self._follow("expert"),
                )  # fmt: skip
            sums = self._sums("expert_sums", 1, "expert_out", c.expert_width, n)
            self._linear(
                "expert_out", y, w.out[i], operand, gate=term(gate, 2 * i), residual=total, total=total,
                scale=term(scale, 2 * i + 1), sums=sums,
            )  # fmt: skip
            self._linear(
                "expert_gate_up", operand, f.expert_gate_up[i], h, norm=sums, activation="geglu",
                bias=term(gate_up_bias, i),
            )  # fmt: skip
            sums = self._sums("expert_sums", 1, "expert_down", c.expert_width, n)
            self._linear(
                "expert_down", h, w.down[i], operand, gate=term(gate, 2 * i + 1), residual=total,
                total=total, scale=term(scale, 2 * i + 2), sums=sums,
            )  # fmt: skip

    def _linear(
        self,
        site: str,
        a: Tensor,
        w: Tensor,
        out: Tensor | None,
        *,
        first: bool = False,
        **options: Any,
    ) -> None:
        part = site.partition("_")[0]
        launch = Launch() if part == "vision" else self._follow(part, first)
        choice = self._product(site, len(a), len(w), a.shape[1])
        if choice is None and site.startswith("vision"):
            assert out is not None
            reference_by_view(a, w, out, self._c.view_tokens, **options)
            return
        product(choice, a, w, out, workspace=self._workspace, launch=launch, **options)

    def _product(self, site: str, m: int, n: int, k: int) -> Product | None:
        """What computes a site's linear layer, cut to the problem; None for the reference."""
        choice: Product | None = self._chosen[site]
        if choice is None:
            return None
        # One view and several must round alike.
        rows = min(m, self._c.view_tokens) if site.startswith("vision") else m
        rotary = site in ("prefix_qkv", "expert_qkv")
        fitted = choice.fitted(rows, n, k, self._c.head_dim if rotary else None)
        return fitted.spread(m, n, multiprocessors(self._w.device))

    @property
    def _workspace(self) -> Workspace:
        return Workspace(self._b["partial"], self._b["tickets"])

    @property
    def _split_workspace(self) -> SplitWorkspace:
        b = self._b
        return SplitWorkspace(b["split_partial"], b["split_softmax"], b["tickets"])

    def _parts(self, site: str | None, width: int) -> int:
        """How many partial sums a row the site leaves; one for None and for the reference."""
        choice = None if site is None else self._product(site, width, width, width)
        return 1 if choice is None else choice.parts(width)

    def _sums(self, name: str, planes: int, site: str | None, width: int, rows: int) -> RowSums:
        """Row sums in scratch, as a site leaves them."""
        parts = self._parts(site, width)
        return RowSums(self._b[name][: planes * parts * rows].view(planes, parts, rows))

    def _row_sums(self, at: int) -> RowSums:
        """Row sums of the prefix rows, from row `at` on."""
        parts, capacity = self._parts("vision_project", self._c.width), len(self._b["rows"])
        return RowSums(self._b["rows_sums"][: parts * capacity].view(1, parts, capacity)[:, :, at:])

    def _follow(self, part: str, first: bool = False) -> Launch:
        """How a kernel of a part follows its producer; the first of a stage has none that it may overlap."""
        return Launch() if first else self._chosen[f"{part}_launch"] or Launch()
