"""Operators that CUDA graphs can capture, in plain torch: padded rows are computed and masked.

Slower than the reference and simpler than kernels: they show that the engine's stages, shapes and buffers suffice for
an implementation that sees lengths on the device only. Pictures must have the network's size.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F  # noqa: N812

from flashrt_ros.models import gemma, siglip
from flashrt_ros.runtime.operators import prompt_views


class PaddedOperators:
    capturable = True

    def __init__(self, weights, config, limits, image):
        self.weights, self.config = weights, config
        assert set(limits.cameras) == {(config.image_size, config.image_size)}

    def declare(self, buffers):
        pass

    def bind(self, buffers):
        self.buffers = buffers
        self.tokens, self.length, self.fixed = prompt_views(buffers["prompt"])

    def prepare_times(self, times):
        pass

    def sites(self):
        return []

    def choices(self):
        return {}

    def see(self, cameras, first):
        N = self.config.view_tokens
        for slot, camera in enumerate(cameras, start=first):
            image = self.buffers[f"pixels.{camera}"].permute(2, 0, 1)[None].float() / 255 * 2 - 1
            view = siglip.embed_views(self.weights.vision, self.config, image)[0]
            self.buffers["rows"][slot * N : (slot + 1) * N] = view

    def read_prompt(self, shape, part):
        base = shape.views * self.config.view_tokens
        rows = self.buffers["rows"][base : base + shape.bucket]
        read = gemma.embed_prompt(self.weights.language, self.tokens[: shape.bucket].long())
        place = torch.arange(shape.bucket, device=rows.device)
        mine = place < self.fixed if part == "fixed" else place >= self.fixed
        rows.copy_(torch.where(mine[:, None], read, rows))

    def encode(self, shape):
        w, c, b = self.weights.language, self.config, self.buffers
        end = shape.views * c.view_tokens + shape.bucket
        x = b["rows"][:end]
        place = torch.arange(end, device=x.device)
        seen = place < self.prefix(shape)
        rotation = gemma.rotary_table(c.head_dim, place)
        for i in range(c.depth):
            h = gemma.rms_norm(x, w.norm1[i])
            q, k, v = gemma.project_qkv(h, w.qkv[i], c, rotation)
            b["keys"][i, :end], b["values"][i, :end] = k, v
            if i < c.depth - 1:
                x = x + F.linear(attend(q, k, v, seen), w.out[i])
                x = x + gemma.geglu(gemma.rms_norm(x, w.norm2[i]), w.gate_up[i], w.down[i])

    def append_state(self, shape):
        flow = self.weights.flow
        x = F.linear(self.buffers["state"][None], flow.state, flow.state_bias)
        self.expert(shape, x.to(self.weights.dtype), None, self.prefix(shape))

    def denoise(self, shape, times):
        x = self.buffers["x0"]
        for size, term in zip(times.step_sizes, times.terms, strict=True):
            x = x + size * self.evaluate(shape, x, term)
        self.buffers["actions"].copy_(x)

    def velocity(self, shape, times, step):
        v = self.evaluate(shape, self.buffers["actions"], times.terms[step])
        self.buffers["velocity"].copy_(v)

    def evaluate(self, shape, x, term):
        w, c = self.weights, self.config
        y = F.linear(x, w.flow.action_in, w.flow.action_in_bias)
        if c.family == "pi0":
            y = F.silu(F.linear(y, w.flow.time_in[:, : c.expert_width]) + term)
            y = F.linear(y, w.flow.time_out, w.flow.time_out_bias)
        y = self.expert(shape, y.to(w.dtype), term, self.prefix(shape) + (c.family == "pi0"))
        y = self.norm(y, term, c.norm_sites - 1)
        return F.linear(y.float(), w.flow.action_out, w.flow.action_out_bias)

    def prefix(self, shape):
        """Valid rows, int32 [1] on the device."""
        return self.length + shape.views * self.config.view_tokens

    def norm(self, x, term, site):
        if self.config.family == "pi0":
            return gemma.rms_norm(x, self.weights.expert.norm[site])
        return gemma.rms_norm(x, term[site, 0], term[site, 1])

    def gated(self, y, term, site):
        return y if self.config.family == "pi0" else y * term[site, 2].to(y.dtype)

    def expert(self, shape, x, term, start):
        """Rows at `start`, int32 [1], through all layers; their keys and values go behind the prefix."""
        e, c, b = self.weights.expert, self.config, self.buffers
        positions = start + torch.arange(len(x), device=x.device)
        seen = torch.arange(b["keys"].shape[1], device=x.device) < start + len(x)
        rotation = gemma.rotary_table(c.head_dim, positions)
        for i in range(c.depth):
            h = self.norm(x, term, 2 * i)
            q, k, v = gemma.project_qkv(h, e.qkv[i], c, rotation)
            b["keys"][i].index_copy_(0, positions.long(), k)
            b["values"][i].index_copy_(0, positions.long(), v)
            y = F.linear(attend(q, b["keys"][i], b["values"][i], seen), e.out[i])
            x = x + self.gated(y, term, 2 * i)
            h = self.norm(x, term, 2 * i + 1)
            x = x + self.gated(gemma.geglu(h, e.gate_up[i], e.down[i]), term, 2 * i + 1)
        return x


def attend(q, k, v, seen):
    """`gemma.attend` over the keys that `seen`, bool [m], lets through."""
    n, heads, d = q.shape
    scores = q.reshape(n * heads, d).float() @ k.float().T / math.sqrt(d)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    v = v.float().masked_fill(~seen[:, None], 0.0)  # unwritten memory may hold anything
    return (weights @ v).view(n, heads * d).to(q.dtype)
