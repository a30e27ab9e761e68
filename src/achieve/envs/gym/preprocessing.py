"""What observations a learner is given: bytes or float32, and images by options that a config records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import AddRenderObservation, FrameStackObservation, GrayscaleObservation, TransformObservation
from PIL import Image

from ..arrays import check_flag, check_whole
from ..names import UnfitError

MIN_SIDE = 8
MAX_SIDE = 4096


@dataclass(frozen=True)
class Preprocessing:
    """How observations become images; `wrap` applies the steps in this order."""

    pixels: bool = False
    """Show the agent what ``render()`` draws, in place of the observation."""
    image_key: str | None = None
    """Take the image with this key out of a `Dict` observation."""
    rescale: bool = False
    """Map numbers from the bounds of their space to 0..255."""
    grayscale: bool = False
    resize: int | tuple[int, int] | None = None
    """Height and width, or one number for both."""
    frame_stack: int = 1
    """How many frames to stack as channels, the newest last."""

    def __post_init__(self) -> None:
        for name in ("pixels", "rescale", "grayscale"):
            check_flag(name, getattr(self, name))
        if self.image_key is not None and not isinstance(self.image_key, str):
            raise ValueError(f"image_key must be a key of the observation, got {self.image_key!r}")
        sides = self.resize if isinstance(self.resize, list | tuple) else (self.resize, self.resize)
        if self.resize is not None:
            if len(sides) != 2:
                raise ValueError(f"resize must be one or two whole numbers (height, width), got {self.resize!r}")
            for side in sides:
                check_whole("resize", side, MIN_SIDE, MAX_SIDE, " (or two of them: height, width)")
            object.__setattr__(self, "resize", tuple(sides))
        check_whole("frame_stack", self.frame_stack, 1, 64)

    def wrap(self, env: Any) -> Any:
        """Return the environment with images as observations, where the options and its space allow it."""
        if not isinstance(env, gymnasium.Env):
            if self != Preprocessing():
                raise UnfitError(f"it is a {type(env).__name__}; these options need a gymnasium.Env")
            return env
        if self.pixels:
            if env.render_mode != "rgb_array":
                raise UnfitError(
                    f"pixels=true shows what render() draws, but its render_mode is {env.render_mode!r}; "
                    "make it with render_mode='rgb_array'"
                )
            env = AddRenderObservation(env)
        if self.image_key is not None:
            env = self._pick(env)
        if self.rescale:
            env = _rescaled(env)
        space = env.observation_space
        if is_picture(space) and space.shape[0] < MIN_SIDE <= min(space.shape[1:]):  # channels first
            env = _transformed(env, lambda image: np.moveaxis(image, 0, -1), (*space.shape[1:], space.shape[0]))
        if self.grayscale:
            shape = _picture(env, "grayscale=true").shape
            if shape[-1] != 3:
                raise UnfitError(f"grayscale=true needs three channels, but its observations are of shape {shape}")
            env = GrayscaleObservation(_transformed(env, np.asarray, shape), keep_dim=True)
        if self.resize is not None:
            shape = _picture(env, "resize").shape
            size: Any = self.resize
            env = _transformed(env, lambda image: _resized(image, size), (*size, *shape[2:]))
        if self.frame_stack > 1:
            shape = _picture(env, "frame_stack").shape
            height, width = shape[:2]
            # Copied, since an environment may draw all its images into one array.
            env = FrameStackObservation(_transformed(env, np.array, shape), self.frame_stack)
            channels = self.frame_stack * (shape[2] if len(shape) == 3 else 1)
            env = _transformed(
                env, lambda frames: np.stack(frames, 2).reshape(height, width, channels), (height, width, channels)
            )
        return env

    def _pick(self, env: Any) -> Any:
        space, key = env.observation_space, self.image_key
        if not isinstance(space, gymnasium.spaces.Dict) or key not in space.spaces:
            known = f"a dictionary of {', '.join(space)}" if isinstance(space, gymnasium.spaces.Dict) else repr(space)
            raise UnfitError(f"image_key={key} names nothing in its observation space, which is {known}")
        return TransformObservation(env, lambda obs: obs[key], space[key])


def is_picture(space: Any) -> bool:
    """Return whether observations are uint8 arrays of three dimensions."""
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3


def observation_box(space: Any) -> Box:
    """Return the space of observations as learners take them: bytes as they are, all other numbers as float32.

    Bytes of height x width get a channel. An `UnfitError` says what helps where there is no `Box`.
    """
    flatten = "wrap the environment in gymnasium.wrappers.FlattenObservation"
    if isinstance(space, gymnasium.spaces.Dict):
        pictures = [key for key, part in space.items() if isinstance(part, Box) and len(part.shape) in (2, 3)]
        pick = f"--env.options image_key={pictures[0]} picks the image, or " if pictures else ""
        raise UnfitError(f"its observations are a dictionary of {', '.join(space)}; a Box is needed: {pick}{flatten}")
    if not isinstance(space, Box):
        raise UnfitError(f"its observation space is {space!r}; a Box is needed: {flatten}")
    if 0 in space.shape:
        raise UnfitError(f"its observations are of shape {space.shape}; there is nothing to see in them")
    if space.dtype == np.uint8:
        return Box(0, 255, (*space.shape, 1) if len(space.shape) == 2 else space.shape or (1,), np.uint8)
    with np.errstate(over="ignore"):  # bounds past the largest float32 are none
        low, high = (np.atleast_1d(bound).astype(np.float32) for bound in (space.low, space.high))
    return Box(low, high, dtype=np.float32)


def _picture(env: Any, option: str) -> Any:
    space = observation_box(env.observation_space)
    if not is_picture(space):
        of = f"{env.observation_space.dtype} of shape {env.observation_space.shape}"
        flat = len(space.shape) not in (2, 3)
        way = "pixels=true shows what render() draws" if flat else "rescale=true makes bytes of them"
        raise UnfitError(f"{option} needs uint8 images, but its observations are {of}: --env.options {way}")
    return env.observation_space


def _transformed(env: Any, change: Callable[[Any], Any], shape: tuple[int, ...]) -> Any:
    return TransformObservation(env, change, Box(0, 255, shape, np.uint8))


def _rescaled(env: Any) -> Any:
    space = env.observation_space
    if not isinstance(space, Box) or not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UnfitError(f"rescale=true needs a Box with bounds, but its observation space is {space!r}")
    low = space.low.astype(np.float64)
    factor = 255 / np.maximum(space.high.astype(np.float64) - low, np.finfo(np.float64).tiny)
    return _transformed(
        env, lambda obs: np.clip(np.rint((np.asarray(obs) - low) * factor), 0, 255).astype(np.uint8), space.shape
    )


def _resized(image: Any, size: tuple[int, int]) -> np.ndarray:
    """Average areas to shrink, repeat pixels to grow."""
    image = np.asarray(image)
    planes = np.atleast_3d(image)
    resized = [
        np.asarray(Image.fromarray(planes[..., k]).resize(size[::-1], Image.Resampling.BOX))
        for k in range(planes.shape[2])
    ]
    return np.stack(resized, 2) if image.ndim == 3 else resized[0]
