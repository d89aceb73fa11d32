"""How a kernel follows the one before it on its stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

WHEN = {"": 0, "late": 1, "early": 2}


@dataclass(frozen=True)
class Launch:
    """Options that change when a kernel runs, never what it computes.

    dependent: 'late' or 'early' for programmatic dependent launch (compute capability 9.0 and later):
        the kernel may start while its producer still runs, and waits for it only before it reads or
        writes what another kernel does. It lets its own consumer start when little is left to do
        ('late': programs that come too soon crowd those processors that happen to be idle) or as
        soon as its own wait is over ('early'). Empty: in plain stream order.
    """

    dependent: str = ""


def launch_options(launch: Launch, warps: int, stages: int) -> dict[str, int | bool]:
    """Keyword arguments of a launch: `PDL`, and Triton's own."""
    when = WHEN[launch.dependent]
    options: dict[str, int | bool] = {"PDL": when, "num_warps": warps, "num_stages": stages}
    if when:
        options["launch_pdl"] = True
    return options


@cache
def multiprocessors(device: torch.device) -> int:
    """How many a GPU has; in Triton's interpreter, a few."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the producer's writes. Every kernel of a chain calls it before it touches memory that
    another kernel writes, so that the early start of a consumer, and of its consumer, is safe."""
    if PDL:
        gdc_wait()
    if PDL == 2:
        gdc_launch_dependents()


@triton.jit
def finish(PDL: tl.constexpr):
    """Let the consumer start, when little is left to do."""
    if PDL == 1:
        gdc_launch_dependents()


@triton.jit
def wait_for(ticket, arrivals):
    """Wait until a counter has reached a number; what was written before it was counted may then be read.

    One thread asks: the others would only keep those away who have yet to be counted.
    """
    seen = _ask(ticket)
    while seen < arrivals:
        seen = _ask(ticket)
    tl.debug_barrier()


@triton.jit
def _ask(ticket):
    return tl.inline_asm_elementwise(
        """{
        .reg .pred first;
        .reg .u32 thread;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        mov.s32 $0, 0x7fffffff;
        @first ld.acquire.gpu.global.s32 $0, [$1];
        }""",
        "=r,l", [ticket.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
