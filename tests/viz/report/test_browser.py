"""The page in a real browser: with the paper's runs and with others alone, on wide screens and narrow ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from achieve.viz.report import write_report
from tests.conftest import Optional
from tests.viz.report.runs import make_run

# Run in the page itself: are its pictures decoded, is every section as wide as the page, does anything stick out?
PROBE = """
<script>
addEventListener('load', () => {
  const images = [...document.images], sections = [...document.querySelectorAll('section')];
  document.body.dataset.images = images.filter(i => i.complete && i.naturalWidth > 100).length + '/' + images.length;
  document.body.dataset.sections = sections.filter(s => s.offsetHeight > 40 && s.offsetWidth > 200).length;
  document.body.dataset.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
});
</script></body>
"""


def _runs(name: str) -> bool:
    """Ubuntu's chromium-browser may be no more than a note where to get it."""
    return shutil.which(name) is not None and subprocess.run([name, "--version"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def browser(optional: Optional) -> str:
    found = next((name for name in ("chromium", "chromium-browser", "google-chrome") if _runs(name)), None)
    optional.check(found, "a browser; on Debian `apt-get install chromium fonts-liberation` brings one")
    assert found is not None
    return found


def look(browser: str, page: Path, *arguments: str, width: int = 1240) -> str:
    """Opens the page without a window; what the browser printed."""
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",  # which root may not have
            "--disable-gpu",
            "--disable-dev-shm-usage",  # a container's is small
            "--hide-scrollbars",
            f"--user-data-dir={page.parent / 'profile'}",
            f"--window-size={width},1600",
            *arguments,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def inspect(browser: str, page: Path, width: int) -> str:
    """The opening tag of the body after the page has looked at itself."""
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text().replace("</body>", PROBE))
    dom = look(browser, probed, "--dump-dom", width=width)
    return dom[dom.index("<body") :].split(">", 1)[0]


@pytest.fixture(scope="module")
def with_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    make_run(folder / "runs" / "ad-s0", "ad", 0)
    make_run(folder / "runs" / "ad-s1", "ad", 1)
    make_run(folder / "runs" / "ppo-s0", "ppo", 0)
    (folder / "runs" / "torn").mkdir()
    (folder / "runs" / "torn" / "episodes.jsonl").write_text("{")
    page, _ = write_report([folder / "runs"], folder / "out")
    return page


@pytest.fixture(scope="module")
def own_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    make_run(folder / "runs" / "quick-s0", "quick")
    page, _ = write_report([folder / "runs"], folder / "out")
    return page


def test_every_part_is_laid_out(browser: str, with_runs: Path) -> None:
    body = inspect(browser, with_runs, 1240)
    pictures = len(list(with_runs.parent.glob("figures/*.png")))
    assert pictures >= 2 and f'data-images="{pictures}/{pictures}"' in body
    assert f'data-sections="{with_runs.read_text().count("<section")}"' in body
    assert 'data-overflow="0"' in body


def test_fits_a_narrow_screen(browser: str, with_runs: Path) -> None:
    assert 'data-overflow="0"' in inspect(browser, with_runs, 500)  # the narrowest window Chromium makes


def test_renders_with_own_runs_alone(browser: str, own_runs: Path, tmp_path: Path) -> None:
    body = inspect(browser, own_runs, 1240)
    assert 'data-images="1/1"' in body and 'data-overflow="0"' in body
    look(browser, own_runs, f"--screenshot={tmp_path / 'page.png'}")
    with Image.open(tmp_path / "page.png") as image:
        picture = np.asarray(image.convert("RGB"))
    assert picture.shape[:2] == (1600, 1240)
    # Ink all the way down the first screen: headings, tables, the dark box with the command.
    inked = (picture.max(axis=2) < 100).any(axis=1)
    assert all(part.any() for part in np.array_split(inked, 8))
