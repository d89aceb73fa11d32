"""Notices when an input falls silent."""

from __future__ import annotations

from collections.abc import Iterable


class Watchdog:
    """Knows when each source was heard last, by receipt.

    Args:
        sources: names of the inputs that the policy cannot do without.
        max_silence_ns: how long each may be silent.
    """

    def __init__(self, sources: Iterable[str], max_silence_ns: int) -> None:
        self._heard_ns: dict[str, int | None] = dict.fromkeys(sources)
        self.max_silence_ns = max_silence_ns

    def start(self, now_ns: int) -> None:
        """Begin to count the silence of every source now."""
        for source in self._heard_ns:
            self._heard_ns[source] = now_ns

    def hear(self, source: str, now_ns: int) -> None:
        """A message came from a source."""
        self._heard_ns[source] = now_ns

    def silence_ns(self, source: str, now_ns: int) -> int | None:
        """How long a source has been silent [ns]; None before `start`."""
        heard_ns = self._heard_ns[source]
        return None if heard_ns is None else now_ns - heard_ns

    def silent(self, now_ns: int) -> list[str]:
        """Sources that have been silent for too long."""
        return [
            source
            for source, heard_ns in self._heard_ns.items()
            if heard_ns is not None and now_ns - heard_ns > self.max_silence_ns
        ]
