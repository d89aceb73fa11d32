"""Instructions that were read already: switching back to one is two copies on the device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from flashrt_ros.runtime.contract import Buffers, Rate


class KeptInstructions:
    """Copies of what the last few instructions made, least recently used out; memory is allocated once.

    Kept are the buffers of `Rate.INSTRUCTION` and the prompt's rows. A key is the number of views, which decides
    positions, and the token ids.
    """

    def __init__(self, buffers: Buffers, most: int, prompt_tokens: int) -> None:
        self._buffers = buffers
        self._tokens = prompt_tokens
        rows, own = buffers["rows"], buffers.region(Rate.INSTRUCTION)
        self._rows = rows.new_empty((most, prompt_tokens, rows.shape[1]))
        self._own = own.new_empty((most, own.numel()))
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._free = list(range(most))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places

    def keep(self, key: Hashable, start: int) -> None:
        """Copy what was read just now; its rows begin at `start`."""
        place = self._free.pop() if self._free else self._places.popitem(last=False)[1]
        self._places[key] = place
        self._rows[place] = self._buffers["rows"][start : start + self._tokens]
        self._own[place] = self._buffers.region(Rate.INSTRUCTION)

    def restore(self, key: Hashable, start: int) -> None:
        """Copy it back, and count it as used."""
        self._places.move_to_end(key)
        place = self._places[key]
        self._buffers["rows"][start : start + self._tokens] = self._rows[place]
        self._buffers.region(Rate.INSTRUCTION).copy_(self._own[place])

    def clear(self) -> None:
        """Keep nothing."""
        self._free += self._places.values()
        self._places.clear()
