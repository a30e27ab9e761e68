"""Videos of the agents whose weights are available."""

import re
import tempfile
from importlib.resources import files
from pathlib import Path

from achieve.analysis.runs import Gathered, Remark, Run
from achieve.errors import AchieveError, UntrustedError
from achieve.presets import variant
from achieve.run.weights import file_sha256
from achieve.viz.report.section import Media, Section

STEPS = 400
TRIES = 8


def videos_section(gathered: Gathered, *, trust: bool = False) -> tuple[Section, list[Remark]]:
    """Film the best seed of every group and environment that has weights; also return what could not be shown.

    A run whose files name code as its environment is shown only with ``trust``.
    """
    best: dict[tuple[str, str], Run] = {}
    for run in gathered.runs:
        if agent_of(run):
            key = (variant(run.config), run.spec.name)
            best[key] = max(best.get(key, run), run, key=lambda run: (run.uncounted is None, run.score.score))
    about = f"The best of {TRIES} episodes of up to {STEPS} steps in unseen worlds."
    section = Section("videos", "Agents playing", about)
    remarks = []
    for run in best.values():
        try:
            section.videos.append(_video(run, trust=trust))
        except UntrustedError:
            remarks.append(Remark(run.path, f"no video: its environment {run.spec.name} is code; --trust lets it run"))
        except AchieveError as error:
            remarks.append(Remark(run.path, f"no video: {error}"))
    section.missing = None if section.videos else "No run here has its weights."
    return section, remarks


def agent_of(run: Run) -> str | None:
    """Return what `load_agent` takes for this run's agent: its folder, `pretrained` if it is that one, or None."""
    if (run.path / "weights.safetensors").is_file():
        return str(run.path)
    digest = run.summary.get("pretrained_sha256")
    asset = Path(str(files("achieve") / "assets" / "pretrained.safetensors"))
    return "pretrained" if digest and asset.is_file() and file_sha256(asset) == digest else None


def _video(run: Run, *, trust: bool) -> Media:
    from achieve.agent import load_agent
    from achieve.viz.episode import film

    name = agent_of(run)
    assert name is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.mp4"
        last, _ = film(load_agent(name, trust=trust), path, best_of=TRIES, max_steps=STEPS, every=2, half=True)
        data = path.read_bytes()
    caption = (
        f"{variant(run.config)} in {run.spec.title}, seed {run.seed}: {len(last.unlocked)} achievements, "
        f"return {last.episode_return:.1f}."
    )
    return Media(re.sub(r"[^\w.]+", "-", f"{variant(run.config)}-{run.spec.name}"), caption, data)
