"""Launches stage bodies: directly on a CPU, as CUDA graphs on a GPU, on a stream of their own.

A graph is captured for each key once, after warm-up launches, with thread-local error checking: another thread's CUDA
calls neither join a capture nor break it. Afterwards a launch is one replay, copies go between pinned twins and buffers
at fixed addresses, and the host waits once, for the last copy. All graphs share one memory pool: they run one after the
other on one stream, and what outlives a graph is in `Buffers`.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from flashrt_ros.runtime.contract import Buffers

_WARM_UP_LAUNCHES = (
    2  # the first compiles and picks algorithms, the second shows that nothing is left to do
)

_free_streams: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)
"""Of plans that are gone. cuBLAS keeps 33 MiB for good for each stream that it ever saw."""


class Plan:
    """Executes on one device. Not for several threads at once.

    Args:
        buffers: allocated on `device`.
        device: where bodies run.
        capture: whether bodies become CUDA graphs; has no effect on a CPU.
    """

    def __init__(self, buffers: Buffers, device: torch.device, *, capture: bool) -> None:
        self._buffers = buffers
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._capture = capture and self._on_gpu
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._uploads: dict[str, torch.cuda.Event] = {}
        if self._on_gpu:
            free = _free_streams[device]
            self._stream = free.pop() if free else torch.cuda.Stream(device)
            weakref.finalize(self, free.append, self._stream)
            self._done = torch.cuda.Event()
            self._pool = torch.cuda.graph_pool_handle() if self._capture else None
            # Weights and buffers were filled on other streams.
            torch.cuda.synchronize(device)

    @property
    def captures(self) -> bool:
        """Whether a launch needs a graph that was built."""
        return self._capture

    @property
    def keys(self) -> set[Hashable]:
        """What was built."""
        return set(self._graphs)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Whatever is launched inside runs in order with the plan's own work."""
        if not self._on_gpu:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def build(self, key: Hashable, body: Callable[[], None]) -> None:
        """Capture a body unless its key was built before; where nothing is captured, nothing is done.

        The body runs several times: it must leave what it reads as it was.
        """
        if not self._capture or key in self._graphs:
            return
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP_LAUNCHES):
                body()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                body()
        self._graphs[key] = graph

    def built(self, key: Hashable) -> bool:
        """Whether a launch of this key captures nothing."""
        return not self._capture or key in self._graphs

    def launch(self, key: Hashable, body: Callable[[], None]) -> None:
        """Replay the key's graph, or run the body where nothing is captured.

        Raises:
            KeyError: the key was never built.
        """
        if self._capture:
            graph = self._graphs[key]
            with torch.cuda.stream(self._stream):
                graph.replay()
            return
        with self.stream():
            body()

    def drop(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Give back the graphs of these keys."""
        self.wait()
        self._graphs = {key: g for key, g in self._graphs.items() if not unwanted(key)}

    def host(self, name: str) -> Tensor:
        """The twin of a staged buffer, for writing: its last upload is over."""
        event = self._uploads.get(name)
        if event is not None:
            event.synchronize()
        return self._buffers.host(name)

    def upload(self, name: str) -> None:
        """Copy a buffer from its twin, without waiting; the twin is not to be written to but through `host`."""
        if not self._on_gpu:
            return
        with torch.cuda.stream(self._stream):
            self._buffers[name].copy_(self._buffers.host(name), non_blocking=True)
            self._uploads.setdefault(name, torch.cuda.Event()).record(self._stream)

    def download(self, name: str) -> Tensor:
        """Copy a buffer to its twin, wait until it is there, and return the twin."""
        host = self._buffers.host(name)
        if self._on_gpu:
            with torch.cuda.stream(self._stream):
                host.copy_(self._buffers[name], non_blocking=True)
                self._done.record(self._stream)
            self._done.synchronize()
        return host

    def wait(self) -> None:
        """Until the device has done everything that was launched."""
        if self._on_gpu:
            self._stream.synchronize()
