"""Random inputs of the sizes of a call, and the products among the sites of the fused network: what kernels.py times.

A launch is the one that `FusedOperators` makes for a layer, with two differences. Weights, and whatever else a launch
finds in memory (pictures, rows of the embedding, cached keys and values), come in sets: launches rotate over as many as
the L2 cache cannot hold. What the kernel before would just have written is there once, and stays in the cache, as in
the network. And a result never takes the place of an input, so that every launch of a set gives the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashrt_ros.kernels.launch import Launch, multiprocessors
from flashrt_ros.kernels.linear import Rope, RowSums, Tile, Workspace, workspace_size
from flashrt_ros.kernels.resize import part_width
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.gemma import rotary_table
from flashrt_ros.runtime.candidates import CANDIDATES, Choice
from flashrt_ros.runtime.candidates import Product as Way
from flashrt_ros.runtime.fused import SMALLEST_COLUMNS
from flashrt_ros.runtime.operators import bucket_of
from flashrt_ros.runtime.products import product

NOT_WRITTEN = math.nan


@dataclass(frozen=True)
class Sizes:
    """The call that kernels are taken from."""

    config: ModelConfig
    views: int
    tokens: int
    """Valid prompt tokens; kernels are launched for the whole bucket."""
    picture: tuple[int, int]
    """Height and width of a camera's pictures [pixels]."""
    device: torch.device
    dtype: torch.dtype
    cold_bytes: int
    """Size that the sets of a site have together, at least [bytes]."""

    @property
    def base(self) -> int:
        """Prefix rows of all views."""
        return self.views * self.config.view_tokens

    @property
    def rows(self) -> int:
        """Prefix rows that kernels are launched for."""
        return self.base + bucket_of(self.tokens)

    @property
    def valid(self) -> int:
        """Prefix rows that count."""
        return self.base + self.tokens

    @property
    def length(self) -> Tensor:
        """`tokens`, where kernels read it: int32 [1] on the device."""
        return torch.tensor([self.tokens], dtype=torch.int32, device=self.device)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random numbers of this standard deviation."""
        return torch.empty(shape, dtype=dtype, device=self.device).normal_().mul_(scale)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Room for results, of the network's type."""
        return torch.full(shape, NOT_WRITTEN, dtype=dtype or self.dtype, device=self.device)

    def sets(self, nbytes: int) -> int:
        """How many sets of so many bytes each; at least two, so that launches do rotate."""
        return max(2, -(-self.cold_bytes // nbytes))


@dataclass(frozen=True)
class Work:
    """A site's launch, and what came of it."""

    launch: Callable[[Choice | None, int, Launch], None]
    """Runs a candidate, or with None the reference, on a set, following its producer like this."""
    outputs: tuple[Tensor, ...]
    """Every tensor that launches write to."""
    results: Callable[[Choice | None], list[Tensor]]
    """What a candidate has left in `outputs`, without the rows that do not count."""
    sets: int
    operations: int
    """Of tensor cores in one launch, multiplications and additions counted apart; 0 where it uses none."""
    nbytes: int
    """What one launch reads of its set [bytes]: the least that comes from memory."""


# ------------------------------------------------------------------ products


@dataclass(frozen=True)
class Product:
    """A site of `linear`: `a` [rows, depth] times `w` [columns, depth], and what else goes in and out."""

    rows: int
    columns: int
    depth: int
    norm_from: str = ""
    """Site that leaves the row sums of `a`, in as many parts as the likely best of its tiles does."""
    shifted: bool = False
    """The norm is a LayerNorm: with sums of `a`, and of the weights' columns."""
    bias: torch.dtype | None = None
    activation: str = "none"
    residual: tuple[int, torch.dtype] | None = None
    """Rows, which repeat, and their type."""
    total: bool = False
    """The result stays in float32, too."""
    modulated: bool = False
    """Gate before the residual, scale on the copy that leaves."""
    planes: int = 0
    """Of row sums that are left: squares, and the values themselves."""
    prefix: bool = False
    """Rows are the prefix's, of which `Sizes.valid` count."""


def products(s: Sizes) -> dict[str, Product]:
    """The sites of `linear`."""
    c, f32 = s.config, torch.float32
    V, D, E = c.vision_width, c.width, c.expert_width
    q, n, P, H = c.heads * c.head_dim, s.base, s.rows, c.horizon
    stream = (n, s.dtype)
    shift: dict[str, Any] = {"shifted": True, "bias": f32}
    behind: dict[str, Any] = {"residual": (H, f32), "total": True, "modulated": True, "planes": 1}
    return {
        "vision_patch": Product(
            n, V, 3 * part_width(c.patch), bias=f32, residual=(c.view_tokens, f32), planes=2
        ),
        "vision_qkv": Product(n, 3 * V, V, "vision_fc2", **shift),
        "vision_out": Product(n, V, V, bias=s.dtype, residual=stream, planes=2),
        "vision_fc1": Product(n, c.vision_mlp, V, "vision_out", **shift, activation="gelu"),
        "vision_fc2": Product(n, V, c.vision_mlp, bias=s.dtype, residual=stream, planes=2),
        "vision_project": Product(n, D, V, "vision_fc2", **shift, planes=1),
        "prefix_qkv": Product(P, c.qkv_rows, D, "prefix_down", activation="rope", prefix=True),
        "prefix_out": Product(P, D, q, residual=(P, s.dtype), planes=1, prefix=True),
        "prefix_gate_up": Product(
            P, 2 * c.mlp, D, "prefix_out", activation="geglu", prefix=True
        ),
        "prefix_down": Product(P, D, c.mlp, residual=(P, s.dtype), planes=1, prefix=True),
        "expert_time": Product(H, E, E, bias=f32, total=True, planes=1),  # π0's alone
        "expert_qkv": Product(H, c.qkv_rows, E, "expert_down", bias=f32, activation="rope"),
        "expert_out": Product(H, E, q, **behind),
        "expert_gate_up": Product(
            H, 2 * c.expert_mlp, E, "expert_out", bias=f32, activation="geglu"
        ),
        "expert_down": Product(H, E, c.expert_mlp, **behind),
    }  # fmt: skip


def fitted(site: str, way: Way, p: Product, s: Sizes) -> Way:
    """A candidate cut to the problem, as `FusedOperators` does it."""
    rows = min(p.rows, s.config.view_tokens) if site.startswith("vision") else p.rows
    head_dim = s.config.head_dim if p.activation == "rope" else None
    whole = way.fitted(rows, p.columns, p.depth, head_dim)
    return whole.spread(p.rows, p.columns, multiprocessors(s.device))


def parts_of(site: str, s: Sizes) -> int:
    """How many partial sums a row the likely best candidate of a site leaves."""
    p = products(s)[site]
    return fitted(site, CANDIDATES[site][0], p, s).parts(p.columns)


def _row_sums(a: Tensor, p: Product, s: Sizes) -> RowSums:
    """Row sums of `a` as their site leaves them."""
    parts = a.float().tensor_split(parts_of(p.norm_from, s), dim=1)
    planes = [torch.stack([x.square().sum(1) for x in parts])]
    if p.shifted:
        planes.append(torch.stack([x.sum(1) for x in parts]))
    return RowSums(torch.stack(planes))


class ProductTensors:
    """Random inputs of a product, and room for its results.

    a: [rows, depth]; w: [sets, columns, depth]; given: arguments of `linear` that all sets share; by_set: those
    that go with the weights, [sets, columns]; out, rope, sums: where results go.
    """

    def __init__(self, p: Product, s: Sizes) -> None:
        f32 = torch.float32
        sets = s.sets(p.columns * p.depth * s.dtype.itemsize)
        self.p, self.s = p, s
        self.a = s.normal(p.rows, p.depth, dtype=s.dtype)
        self.w = s.normal(sets, p.columns, p.depth, scale=p.depth**-0.5, dtype=s.dtype)
        self.rope = self._rope() if p.activation == "rope" else None
        width = p.columns // 2 if p.activation == "geglu" else p.columns
        self.out = None if self.rope else s.empty(p.rows, width)
        parts = -(-p.columns // SMALLEST_COLUMNS)
        self.sums = s.empty(p.planes * parts * p.rows, dtype=f32) if p.planes else None
        self.by_set: dict[str, Tensor] = {}
        if p.shifted:
            self.by_set["colsum"] = torch.stack([w.float().sum(1) for w in self.w])
        if p.bias is not None:
            self.by_set["bias"] = s.normal(sets, p.columns, dtype=p.bias)
        if p.modulated:
            self.by_set |= {name: s.normal(sets, p.columns) for name in ("gate", "scale")}
        self.given: dict[str, Any] = {}
        if p.norm_from:
            self.given["norm"] = _row_sums(self.a, p, s)
        if p.activation != "none":
            self.given["activation"] = p.activation
        if self.rope is not None:
            self.given["rope"] = self.rope
        if p.residual is not None:
            rows, dtype = p.residual
            self.given["residual"] = s.normal(rows, p.columns, dtype=dtype)
        if p.total:
            self.given["total"] = s.empty(p.rows, p.columns, dtype=f32)
        if p.prefix:
            self.given |= {"valid": s.length, "base": s.base}

    def _rope(self) -> Rope:
        """The prefix starts at position 0, actions behind its valid rows."""
        c, s = self.s.config, self.s
        end = s.rows + 1 + c.horizon
        table = rotary_table(c.head_dim, torch.arange(end, device=s.device))[:, :, 0]
        cache = (s.empty(end, c.head_dim), s.empty(end, c.head_dim))
        queries = s.empty(self.p.rows, c.heads * c.head_dim)
        start = () if self.p.prefix else (s.length, s.base)
        return Rope(table, *cache, queries, *start)

    def options(self, way: Way | None, i: int) -> dict[str, Any]:
        """Keyword arguments for set i; None: the reference, which leaves one partial sum a row."""
        options = self.given | {name: values[i] for name, values in self.by_set.items()}
        if self.sums is not None:
            parts = 1 if way is None else way.parts(self.p.columns)
            shape = (self.p.planes, parts, self.p.rows)
            options["sums"] = RowSums(self.sums[: math.prod(shape)].view(shape))
        return options

    def outputs(self) -> Iterator[Tensor]:
        """Everything that is written."""
        rope = self.rope
        written = (rope.queries, rope.keys, rope.values) if rope else (self.out,)
        yield from (x for x in (*written, self.given.get("total"), self.sums) if x is not None)

    def results(self, way: Way | None) -> list[Tensor]:
        """Rows that count; row sums added up."""
        rows = self.s.valid if self.p.prefix else self.p.rows
        if self.rope is not None:
            assert self.rope.queries is not None
            first = 0 if self.p.prefix else self.s.valid
            cache = (self.rope.keys, self.rope.values)
            return [self.rope.queries[:rows], *(x[first : first + rows] for x in cache)]
        assert self.out is not None
        found = [self.out[:rows]]
        found += [self.given["total"][:rows]] if self.p.total else []
        if self.sums is not None:
            found += self.options(way, 0)["sums"].values[:, :, :rows].sum(1)
        return found


def product_work(site: str, s: Sizes) -> Work:
    """A linear layer's site."""
    p = products(s)[site]
    t = ProductTensors(p, s)
    workspaces: dict[Way | None, Workspace] = {}
    none = Workspace(s.empty(0, dtype=torch.float32), s.empty(0, dtype=torch.float32))

    def workspace(tile: Tile) -> Workspace:
        partial, tickets = workspace_size(p.rows, p.columns, tile)
        return Workspace(
            s.empty(partial, dtype=torch.float32),
            torch.zeros(tickets, dtype=torch.int32, device=s.device),
        )

    def launch(choice: Choice | None, i: int, follow: Launch) -> None:
        way = None if choice is None else fitted(site, choice, p, s)
        if isinstance(way, Tile) and way not in workspaces:
            workspaces[way] = workspace(way)
        work = workspaces.get(way, none)
        product(way, t.a, t.w[i], t.out, workspace=work, launch=follow, **t.options(way, i))

    def results(choice: Choice | None) -> list[Tensor]:
        return t.results(None if choice is None else fitted(site, choice, p, s))

    rows = s.valid if p.prefix else p.rows
    return Work(
        launch, tuple(t.outputs()), results, len(t.w), 2 * rows * p.columns * p.depth, t.w[0].nbytes
    )
