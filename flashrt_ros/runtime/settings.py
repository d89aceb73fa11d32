"""What an engine is built for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flashrt_ros.models.processor import Processor
from flashrt_ros.runtime.launcher import Unbuilt


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built for."""

    cameras: Mapping[str, tuple[int, int]]
    """Height and width [pixels] of each camera's pictures, by name."""
    optional: frozenset[str] = frozenset()
    """Cameras that may be absent: a plan is built without them, too."""
    flows: tuple[tuple[int, float], ...] = ((10, 1.0),)
    """Denoising steps and start time of each kind of call."""
    kept_instructions: int = 8
    """Instructions that can be switched back to without reading them again."""
    guided: bool = False
    """Whether chunks will be guided: what single steps need is built, too."""
    unbuilt: Unbuilt = "build"
    """What happens to a call of another shape: it waits until that is built, or it is refused."""
    seed: int = 0
    """Of the noise, where a call brings neither noise nor generator."""


def checked_settings(settings: EngineSettings, processor: Processor) -> EngineSettings:
    """The settings with cameras by the policy's names, in its order.

    Raises:
        ValueError: a camera that the policy does not have, or settings that contradict themselves.
    """
    names = processor.cameras
    index = processor.view_index
    sizes = {names[index(name)]: size for name, size in settings.cameras.items()}
    optional = frozenset(names[index(name)] for name in settings.optional)
    if not sizes or not optional <= set(sizes) or not settings.flows:
        raise ValueError(
            f"cameras: expected at least one, with every optional one among them, found "
            f"{sorted(sizes)} and {sorted(optional)}; flows: at least one, found {settings.flows}"
        )
    for name, (height, width) in sizes.items():
        if min(height, width) < 1:
            raise ValueError(f"camera {name!r}: expected pixels, found {height}×{width}")
    if settings.kept_instructions < 1:
        raise ValueError(
            f"kept_instructions: expected at least 1, found {settings.kept_instructions}"
        )
    cameras = {name: sizes[name] for name in names if name in sizes}
    return replace(settings, cameras=cameras, optional=optional)
