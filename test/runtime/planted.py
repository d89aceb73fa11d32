"""Operators with a site whose candidates are right, wrong, slow and lean, all of them doing real work."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from flashrt_ros.runtime.operators import ReferenceOperators, Site


def products(count):
    """Multiply by the identity so many times: exact, and each one costs."""

    def apply(x):
        for _ in range(count):
            x = x @ torch.eye(x.shape[1])
        return x

    return apply


def fails(x):
    raise RuntimeError("planted: no such instruction on this GPU")


CALLS = {"count": 0}


def unsteady(x):
    CALLS["count"] += 1
    return x * (1.0 + 1e-6 * (CALLS["count"] % 2))


HEAD = {
    "reference": products(4),
    "wrong": lambda x: products(1)(x) * 1.01,
    "not_a_number": lambda x: x * float("nan"),
    # Right on the site's inputs, which are below 1, and wrong on the chunk's, which are not.
    "narrow": lambda x: products(1)(x).clamp(-1.0, 1.0),
    "slow": products(40),
    "same": products(4),
    "unsteady": unsteady,
    "failing": fails,
    "lean": products(2),
    "leaner": products(1),
}
TAIL = {"reference": products(3), "slow": products(9)}


class PlantedOperators(ReferenceOperators):
    """Actions pass through two sites on their way out."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._ways = {"head": HEAD, "tail": TAIL}
        self._chosen = dict.fromkeys(self._ways, "reference")

    def sites(self):
        x = torch.rand(7, 32, generator=torch.Generator().manual_seed(0)) - 0.5
        # All candidates leave their results in one place, as kernels do.
        out, row = torch.empty(7, 32), torch.empty(1, 32)
        return [
            Site(
                site,
                {
                    name: lambda way=way: [out.copy_(way(x)), row.copy_(way(x[:1]))]
                    for name, way in ways.items()
                },
                bound=1e-4,
            )
            for site, ways in self._ways.items()
        ]

    def choices(self):
        return dict(self._chosen)

    def choose(self, site, candidate):
        assert candidate in self._ways[site]
        self._chosen[site] = candidate

    def denoise(self, shape, times):
        super().denoise(shape, times)
        x = self._buffers["actions"]
        for site, ways in self._ways.items():
            x = ways[self._chosen[site]](x)
        self._buffers["actions"].copy_(x)


def operations(call):
    """A timer that counts floating-point operations: what a call costs, whatever else the machine does."""
    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())
