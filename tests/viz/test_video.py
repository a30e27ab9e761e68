"""Videos can be read back, and the panel tells what happened."""

from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from achieve.errors import RunFolderError
from achieve.viz.video import GAME, PANEL, Moment, VideoError, compose, write_video

NAMES = ("collect_coal", "collect_wood", "wake_up")


def moments(count: int) -> Iterator[Moment]:
    """A game that turns from black to red, with one unlock halfway."""
    for step in range(count):
        frame = np.zeros((64, 64, 3), np.uint8)
        frame[..., 0] = 255 * step // max(1, count - 1)
        unlocked = [("collect_wood", count // 2)] if step >= count // 2 else []
        yield Moment(frame, step, "move_left", unlocked, float(len(unlocked)), NAMES)


def read_mp4(path: Path) -> tuple[dict[str, object], np.ndarray]:
    reader = imageio_ffmpeg.read_frames(str(path))
    info = next(reader)
    width, height = info["size"]
    frames = [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader]
    return info, np.stack(frames)


def test_mp4_holds_every_frame_in_a_form_browsers_play(tmp_path: Path) -> None:
    assert write_video(tmp_path / "new" / "a.mp4", moments(12), fps=6) == 12
    info, frames = read_mp4(tmp_path / "new" / "a.mp4")
    assert frames.shape == (12, GAME, GAME + PANEL, 3)
    assert (info["codec"], info["pix_fmt"].split("(")[0], info["fps"]) == ("h264", "yuv420p", 6)
    red = frames[:, 100:200, 100:200, 0].mean((1, 2))
    assert red[0] < 10 and red[-1] > 235 and np.all(np.diff(red) > 0)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.mp4"]


def test_gif_holds_every_frame(tmp_path: Path) -> None:
    assert write_video(tmp_path / "a.gif", moments(5), fps=5) == 5
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 5
        assert gif.info["duration"] == 200
        gif.seek(4)
        assert gif.convert("RGB").getpixel((100, 100))[0] > 240


def test_small_frames_are_enlarged_without_blur() -> None:
    frame = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    picture = compose(Moment(frame, 1, "noop", [], 0.0, NAMES))
    assert np.array_equal(picture[:, :GAME], frame.repeat(9, 0).repeat(9, 1))


@pytest.mark.parametrize("side", [7, 28, 84])
def test_small_frames_of_any_size_keep_their_colours(side: int) -> None:
    frame = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (side, side, 3))
    assert set(np.unique(compose(Moment(frame, 1, "noop", [], 0.0, NAMES))[:, :GAME])) == {0, 255}


def test_frames_of_full_size_are_shown_as_they_are() -> None:
    frame = np.random.default_rng(0).integers(0, 255, (GAME, GAME, 3), np.uint8)
    assert np.array_equal(compose(Moment(frame, 1, "noop", [], 0.0, NAMES))[:, :GAME], frame)


@pytest.mark.parametrize(("height", "width"), [(100, 120), (210, 160), (63, 63), (1000, 500), (8, 576)])
def test_odd_sizes_are_scaled_to_fit_in_the_middle(height: int, width: int) -> None:
    frame = np.full((height, width, 3), 77, np.uint8)
    shown = np.all(compose(Moment(frame, 1, "noop", [], 0.0, NAMES))[:, :GAME] == 77, axis=2)
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    high, wide = len(rows), len(columns)
    assert shown.sum() == high * wide and max(high, wide) == GAME
    assert high / wide == pytest.approx(height / width, rel=0.05)
    assert abs(rows[0] + rows[-1] + 1 - GAME) <= 1 and abs(columns[0] + columns[-1] + 1 - GAME) <= 1


def test_panel_changes_with_each_thing_it_shows() -> None:
    first = Moment(np.zeros((64, 64, 3), np.uint8), 1, "noop", [], 0.0, NAMES)
    shown = compose(first)[:, GAME:]
    for change in (
        {"step": 2},
        {"action": "sleep"},
        {"episode_return": 1.1},
        {"unlocked": [("wake_up", 1)]},
    ):
        assert not np.array_equal(compose(first._replace(**change))[:, GAME:], shown), change
    assert not np.array_equal(compose(first._replace(achievements=()))[:, GAME:], shown), "the locked are listed"
    assert np.array_equal(compose(first)[:, GAME:], shown)


def test_long_lists_stay_inside_the_panel() -> None:
    names = [f"achievement_{i}" for i in range(60)]
    unlocked = [(name, 10_000) for name in names]
    picture = compose(Moment(np.zeros((64, 64, 3), np.uint8), 1, "noop", unlocked, 0.0, names))
    bottom = picture[-4:, GAME:]
    assert np.all(bottom == bottom[0, 0]), "text touches the lower edge"


def test_wrong_requests_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"'a\.avi'; it must end in \.mp4 or \.gif"):
        write_video(tmp_path / "a.avi", moments(2))
    with pytest.raises(VideoError, match="fps is 0"):
        write_video(tmp_path / "a.mp4", moments(2), fps=0)
    for name in ("a.mp4", "a.gif"):
        with pytest.raises(VideoError, match="no frame"):
            write_video(tmp_path / name, moments(0))
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_video(tmp_path / "file" / "a.mp4", moments(2))


def test_failed_video_keeps_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"old")

    def broken() -> Iterator[Moment]:
        yield from moments(2)
        raise KeyError("environment broke")

    with pytest.raises(KeyError):
        write_video(tmp_path / "a.mp4", broken())
    assert (tmp_path / "a.mp4").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_small_files_show_fewer_and_smaller_frames(tmp_path: Path, name: str) -> None:
    assert write_video(tmp_path / name, moments(7), every=3, half=True) == 3
    reader = imageio_ffmpeg.read_frames(str(tmp_path / name))
    assert next(reader)["size"] == ((GAME + PANEL) // 2, GAME // 2)
    assert sum(1 for _ in reader) == 3
    with pytest.raises(VideoError, match="every is 0"):
        write_video(tmp_path / name, moments(2), every=0)
