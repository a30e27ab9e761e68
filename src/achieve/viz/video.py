"""Videos of an agent: the game at a readable size, and beside it what the agent has unlocked."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from achieve.errors import AchieveError, RunFolderError
from achieve.run.files import prepare_file, reason

GAME = 576
PANEL = 304
MARGIN = 20
ROW = 19
_LIST_TOP = 104
BACK, RULE = "#16181d", "#2d323b"
BRIGHT, PLAIN, DIM, GREEN = "#f4f6f8", "#b9c0cb", "#6b7482", "#7bd88f"

Picture = NDArray[np.uint8]


class VideoError(AchieveError):
    """A video that cannot be written."""


class Moment(NamedTuple):
    """One frame of a video."""

    frame: Picture
    """The game, uint8 [H, W, 3] of any size."""
    step: int
    action: str
    unlocked: Sequence[tuple[str, int]]
    """Achievements unlocked so far in this episode, with their steps."""
    episode_return: float
    achievements: Sequence[str]
    """All that there are."""


def compose(moment: Moment) -> Picture:
    """Return the game and, beside it, the list of achievements with those unlocked lit up: uint8 [576, 880, 3]."""
    canvas = Image.new("RGB", (GAME + PANEL, GAME), BACK)
    game = Image.fromarray(np.ascontiguousarray(moment.frame))
    largest = max(game.size)
    if largest != GAME:
        # Whole multiples keep pixels square and sharp, and in large ones a pixel more or less does not show; anything
        # else is scaled smoothly.
        sharp = GAME % largest == 0 or largest <= GAME // 4
        way = Image.Resampling.NEAREST if sharp else Image.Resampling.LANCZOS
        game = game.resize((max(1, game.width * GAME // largest), max(1, game.height * GAME // largest)), way)
    canvas.paste(game, ((GAME - game.width) // 2, (GAME - game.height) // 2))
    canvas.paste(_list_image(tuple(moment.unlocked), tuple(moment.achievements)), (GAME, _LIST_TOP))
    draw = ImageDraw.Draw(canvas)
    of_all = f" / {len(moment.achievements)}" if moment.achievements else ""
    x, right = GAME + MARGIN, GAME + PANEL - MARGIN
    draw.text((x, 16), moment.action.replace("_", " "), BRIGHT, _font(21))
    for offset, label, value in (
        (x, "step", f"{moment.step:,}"),
        (x + 96, "return", f"{moment.episode_return:.1f}"),
        (x + 192, "unlocked", f"{len(moment.unlocked)}{of_all}"),
    ):
        draw.text((offset, 50), label, DIM, _font(12))
        draw.text((offset, 64), value, PLAIN, _font(17))
    draw.line([(x, _LIST_TOP - 8), (right, _LIST_TOP - 8)], RULE, 1)
    return np.asarray(canvas)


def check_video(path: Path, fps: int = 10, every: int = 1) -> None:
    """Refuse a video that could not be written, before anything is played for it."""
    if path.suffix not in (".mp4", ".gif"):
        raise VideoError(f"the video's name is {path.name!r}; it must end in .mp4 or .gif")
    if fps < 1:
        raise VideoError(f"fps is {fps}; it must be 1 or more")
    if every < 1:
        raise VideoError(f"every is {every}; it must be 1 or more")
    prepare_file(path)


def write_video(path: Path, moments: Iterable[Moment], fps: int = 10, *, every: int = 1, half: bool = False) -> int:
    """Write an `.mp4` (H.264, plays in every browser) or a `.gif`; return the number of frames.

    `every` keeps each n-th moment and `half` halves the size: for small files. An existing file is replaced when the
    new one is complete.
    """
    check_video(path, fps, every)
    pictures: Iterator[Picture] = map(compose, islice(moments, 0, None, every))
    if half:
        size = ((GAME + PANEL) // 2, GAME // 2)
        pictures = (np.asarray(Image.fromarray(p).resize(size, Image.Resampling.BOX)) for p in pictures)
    first = next(pictures, None)
    if first is None:
        raise VideoError("there is no frame to make a video of")
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        write = _write_mp4 if path.suffix == ".mp4" else _write_gif
        count = write(temporary, chain([first], pictures), fps)
        temporary.replace(path)
    except OSError as error:
        # What ffmpeg says at length has no error number.
        why = reason(error) if error.errno is not None else "ffmpeg failed"
        raise RunFolderError(f"the video {path} cannot be written: {why}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return count


def _write_mp4(path: Path, pictures: Iterator[Picture], fps: int) -> int:
    import imageio_ffmpeg

    try:
        imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError:
        raise VideoError("no ffmpeg was found for .mp4; install one, or write a .gif") from None
    first = next(pictures)
    writer = imageio_ffmpeg.write_frames(
        str(path), (first.shape[1], first.shape[0]), fps=fps, codec="libx264", pix_fmt_out="yuv420p", quality=None,
        output_params=["-crf", "20", "-preset", "medium", "-movflags", "+faststart"],
        macro_block_size=2,  # what 4:2:0 colour needs
    )  # fmt: skip
    writer.send(None)
    count = 0
    with closing(writer):
        for picture in chain([first], pictures):
            writer.send(np.ascontiguousarray(picture))
            count += 1
    return count


def _write_gif(path: Path, pictures: Iterator[Picture], fps: int) -> int:
    images = [
        Image.fromarray(picture).quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        for picture in pictures
    ]
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0)
    return len(images)


@lru_cache(maxsize=8)
def _list_image(unlocked: tuple[tuple[str, int], ...], achievements: tuple[str, ...]) -> Image.Image:
    """Draw the list, which changes only when something is unlocked, once for many frames."""
    steps = dict(unlocked)
    image = Image.new("RGB", (PANEL, GAME - _LIST_TOP), BACK)
    draw = ImageDraw.Draw(image)
    latest = unlocked[-1][0] if unlocked else None
    row = min(ROW, (GAME - _LIST_TOP - 12) / max(1, len(achievements)))
    font = _font(min(14.0, row * 0.75))
    for number, name in enumerate(achievements):
        y = 4 + number * row + row / 2
        done = name in steps
        colour = GREEN if name == latest else BRIGHT if done else DIM
        draw.ellipse([MARGIN, y - 3, MARGIN + 6, y + 3], GREEN if done else None, outline=None if done else DIM)
        draw.text((MARGIN + 16, y), name.replace("_", " "), colour, font, anchor="lm")
        if done:
            draw.text((PANEL - MARGIN, y), f"{steps[name]:,}", PLAIN, font, anchor="rm")
    return image


@lru_cache
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
