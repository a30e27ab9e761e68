"""A window for ``render_mode="human"``."""

from __future__ import annotations

from typing import Any

import numpy as np


class Window:
    """Shows pictures at a steady rate; it opens with the first one. Needs pygame."""

    def __init__(self, title: str, fps: int) -> None:
        try:
            import pygame
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "render_mode 'human' opens a window with pygame, which is not installed: pip install pygame-ce",
                name="pygame",
            ) from None
        self._pygame: Any = pygame
        self._title, self._fps = title, fps
        self._screen: Any = None

    def show(self, picture: np.ndarray) -> None:
        """Show a picture [H, W, 3], and wait until it is time for the next."""
        pygame = self._pygame
        height, width = picture.shape[:2]
        if self._screen is None or self._screen.get_size() != (width, height):
            pygame.display.init()
            self._screen = pygame.display.set_mode((width, height))
            pygame.display.set_caption(self._title)
            self._clock = pygame.time.Clock()
        pygame.event.pump()  # a window whose events nobody takes is called hung
        pygame.surfarray.blit_array(self._screen, picture.swapaxes(0, 1))
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window, if it is open."""
        if self._screen is not None:
            self._pygame.display.quit()
            self._screen = None
