"""The report shows what the runs hold beside what was published, and nothing else."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from achieve.analysis.published import PUBLISHED
from achieve.analysis.runs import gather
from achieve.analysis.statistics import PERCENT, improvement, iqm_with_interval
from achieve.cli import main
from achieve.config import EnvConfig, TrainConfig, with_env
from achieve.errors import RunFolderError
from achieve.presets import PRESETS
from achieve.scoring.score import MeanStd
from achieve.viz.report import build, rates, write_report
from achieve.viz.report.experiments import furthest, shorter_runs
from achieve.viz.report.section import Section
from tests.viz.report.runs import make_run, score

PNG = b"\x89PNG\r\n"
GAMMA = replace(PRESETS["quick"], ppo=replace(PRESETS["quick"].ppo, gamma=0.8))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Balanced(HTMLParser):
    """Fails on tags that close what is not open; collects links, ids and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on three seeds of the method, two of PPO, and runs that do not count."""
    folder = tmp_path_factory.mktemp("report")
    for seed, wood in enumerate((0.2, 0.4, 0.6)):
        make_run(folder / "runs" / f"ad-s{seed}", "ad", seed, wood=wood, reward=12.0 + seed)
    for seed, wood in enumerate((0.1, 0.3)):
        make_run(folder / "runs" / f"ppo-s{seed}", "ppo", seed, wood=wood, reward=9.0)
    make_run(folder / "runs" / "ad-i-s4", "ad-i", 4)
    make_run(folder / "runs" / "quick-s0", "quick")
    make_run(folder / "runs" / "minigrid-ad-s0", "minigrid-ad")
    make_run(folder / "runs" / "own", config=with_env(PRESETS["ppo"], "pkg.mod:make<b>"))
    write_report([folder / "runs"], folder / "out")
    return folder / "out"


def test_figures_are_those_of_the_logs(written: Path) -> None:
    rows = {row["preset"]: row for row in read_csv(written / "tables" / "table1.csv") if row["preset"]}
    ours = [score(rate, 100, 0) for rate in (20, 40, 60)]
    theirs = [score(rate, 100, 0) for rate in (10, 30)]
    mean = math.fsum(ours) / 3
    ad = rows["ad"]
    assert float(ad["score"]) == pytest.approx(mean)
    assert float(ad["score_std"]) == pytest.approx(math.sqrt(math.fsum((x - mean) ** 2 for x in ours) / 3))
    assert (float(ad["reward"]), ad["seeds"], ad["parameters"]) == (pytest.approx(13.0), "3", "1234")
    assert (ad["published_score"], ad["published_score_std"]) == ("21.79", "1.37")
    iqm = iqm_with_interval(ours, PERCENT)
    assert [float(ad[key]) for key in ("iqm", "iqm_low", "iqm_high")] == pytest.approx([iqm.value, iqm.low, iqm.high])
    (over,) = read_csv(written / "tables" / "table1-improvement.csv")
    expected = improvement(ours, theirs)
    assert float(over["probability"]) == pytest.approx(expected.value)
    assert (over["agent"], over["over"], over["seeds"], over["seeds_over"]) == ("ad", "ppo", "3", "2")


@pytest.mark.parametrize(("agent", "baseline"), [names for names in rates.AGENTS.values() if len(names) == 2])
def test_an_agent_has_the_colour_of_its_bars_in_its_learning_curves(
    tmp_path: Path, agent: str, baseline: str
) -> None:
    """Colours go by the order: an agent and its baseline come first, in the same order."""
    make_run(tmp_path / "baseline", baseline)
    make_run(tmp_path / "agent", agent)
    captions = [media.caption for section in build(gather([tmp_path]))[0] for media in section.pictures]
    curves = [caption for caption in captions if re.search(rf"\b{agent} \(1 seed\)", caption)]
    assert curves and all(re.match(rf"{agent} \(1 seed\)[,;] {baseline} \(1 seed\)", caption) for caption in curves)


def test_what_was_not_run_has_no_number(written: Path) -> None:
    for name, entries in PUBLISHED.items():
        rows = read_csv(written / "tables" / f"{name}.csv")
        assert len(rows) == len(entries)
        for row, entry in zip(rows, entries, strict=True):
            run = entry.preset in ("ad", "ppo", "ad-i", "minigrid-ad")
            assert bool(row["score"]) == run and bool(row["reward"]) == run, (name, row)
            assert (int(row["seeds"]) > 0) == run
            assert bool(row["published_score"]) == (entry.comparable_score is not None)


def test_one_seed_has_neither_deviation_nor_interval(written: Path) -> None:
    (row,) = (row for row in read_csv(written / "tables" / "ablation.csv") if row["preset"] == "ad-i")
    assert row["score"] and not row["score_std"] and not row["iqm"]
    assert "one seed" in (written / "tables" / "ablation.tex").read_text()
    steps = {row["agent"]: row for row in read_csv(written / "tables" / "ablation-improvement.csv")}
    assert not steps["ad-i"]["probability"]


def test_page_is_well_formed_and_needs_nothing_else(written: Path) -> None:
    page = parse((written / "index.html").read_text())
    inside = [link for link in page.links if link.startswith("#")]
    assert all(link.startswith("data:image/png;base64,") for link in page.links if link not in inside)
    assert {link.removeprefix("#") for link in inside} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "nan" not in re.findall(r"\w+", page.text)
    assert "pkg.mod:make<b>" in page.text


def test_page_tells_seeds_commands_time_and_why_a_run_does_not_count(written: Path) -> None:
    text = parse((written / "index.html").read_text()).text
    for told in (
        "Seeds counted: ad: 0, 1, 2; ppo: 0, 1.",
        "achieve reproduce table1 --seeds 0-9",
        "achieve train --preset ad --seed 2",
        "evaluated at 245,760 steps, published results at 1,000,000",
        "Some GPU (80 GiB)",
        "9 runs, of which 7 are comparable",
        "an environment without published results",
        "not run",
    ):
        assert told in text, told


def test_files_beside_the_page(written: Path) -> None:
    pictures = {path.stem: path.read_bytes() for path in (written / "figures").glob("*.png")}
    assert {"table1-scores", "table1-curves", "ablation-curves", "minigrid-curves", "other-crafter"} <= set(pictures)
    assert "heist-curves" not in pictures and "small-curves" not in pictures
    assert all(data.startswith(PNG) for data in pictures.values())
    stems = {path.stem for path in (written / "tables").glob("*.csv")}
    assert stems == {path.stem for path in (written / "tables").glob("*.tex")} >= {*PUBLISHED, "runs", "hardware"}


def test_all_runs_and_their_time_are_listed(written: Path) -> None:
    rows = {Path(row["run"]).name: row for row in read_csv(written / "tables" / "runs.csv")}
    assert len(rows) == 9
    assert rows["ad-s1"]["counted"] == "yes" and float(rows["ad-s1"]["score"]) == pytest.approx(score(40, 100, 0))
    assert float(rows["ad-s1"]["minutes"]) == 1.0
    assert rows["quick-s0"]["counted"].startswith("no: ")
    hardware = {row["group"]: row for row in read_csv(written / "tables" / "hardware.csv")}
    assert (hardware["ad"]["runs"], float(hardware["ad"]["rate"]), hardware["ad"]["torch"]) == ("3", 100.0, "2.11.0")


def test_runs_that_do_not_count_are_pointed_to(tmp_path: Path) -> None:
    qrdqn = PRESETS["qrdqn"]
    make_run(tmp_path / "other", "qrdqn", config=replace(qrdqn, qrdqn=replace(qrdqn.qrdqn, kappa=1.0)))
    found = sections_of(tmp_path)
    assert found["qrdqn"].missing == "Not run."
    assert "Not counted, but drawn under Other runs: other." in found["qrdqn"].notes
    assert not any("Not counted" in note for note in found["table1"].notes)
    assert [picture.name for picture in found["others"].pictures] == ["other-crafter"]


def test_runs_that_ended_early_are_shown_beside_each_other_at_equal_steps(tmp_path: Path) -> None:
    make_run(tmp_path / "qrdqn-s0", "qrdqn", steps=400_000, wood=0.2)
    make_run(tmp_path / "qrdqn-ad-s0", "qrdqn-ad", steps=500_000, wood=0.4)
    make_run(tmp_path / "ppo-s0", "ppo", steps=500_000)
    found = sections_of(tmp_path)
    section = found["qrdqn"]
    assert section.missing == "Not run to the end." and not any("Not counted" in note for note in section.notes)
    assert [picture.name for picture in section.pictures] == ["qrdqn-shorter"]
    published, shorter = section.tables
    assert "not run" in str(published.rows[0]) and shorter.name == "qrdqn-shorter"
    ended = [["qrdqn", 0, 400_000], ["qrdqn-ad", 0, 400_000], ["qrdqn-ad", 0, 500_000]]
    assert [row[1:4] for row in shorter.rows] == ended
    first, second, end = (row[4] for row in shorter.rows)
    assert isinstance(first, MeanStd) and first.mean == pytest.approx(score(20, 100, 0))
    # The longer run is read where the shorter one ended, after 160 of its 200 episodes.
    wood = 100 * np.mean(np.random.default_rng(0).permutation(200)[:160] < 80)
    assert isinstance(second, MeanStd) and second.mean == pytest.approx(score(wood, 100, 0))
    assert isinstance(end, MeanStd) and end.mean == pytest.approx(score(40, 100, 0))
    # Table 1 shows its own; experiments that name the same agent do not repeat it.
    assert [picture.name for picture in found["table1"].pictures] == ["table1-shorter"]
    assert not found["ablation"].pictures and "others" not in found


def test_runs_that_ended_early_are_drawn_as_far_as_every_agent_has_one(tmp_path: Path) -> None:
    ends = {"qrdqn": (100_000, 400_000), "qrdqn-ad": (200_000, 500_000, 400_000)}
    for preset, lengths in ends.items():
        for seed, steps in enumerate(lengths):
            make_run(tmp_path / f"{preset}-s{seed}", preset, seed=seed, steps=steps)
    short = shorter_runs("qrdqn", gather([tmp_path]))
    drawn = {preset: [run.seed for run in runs] for preset, runs in furthest(short).items()}
    assert drawn == {"qrdqn": [1], "qrdqn-ad": [1, 2]}


def test_runs_that_ended_early_are_shown_beside_whole_ones_of_the_other_agent(tmp_path: Path) -> None:
    make_run(tmp_path / "qrdqn-s0", "qrdqn")
    make_run(tmp_path / "qrdqn-s1", "qrdqn", seed=1, steps=300_000)
    make_run(tmp_path / "qrdqn-ad-s0", "qrdqn-ad", steps=500_000)
    section = sections_of(tmp_path)["qrdqn"]
    ended = [
        ["qrdqn", 0, 300_000], ["qrdqn", 1, 300_000], ["qrdqn-ad", 0, 300_000], ["qrdqn", 0, 500_000],
        ["qrdqn-ad", 0, 500_000],
    ]  # fmt: skip
    assert [row[1:4] for row in section.tables[-1].rows] == ended
    assert not any("Not counted" in note for note in section.notes)


def test_runs_that_ended_early_give_way_to_whole_ones(tmp_path: Path) -> None:
    make_run(tmp_path / "whole", "qrdqn")
    make_run(tmp_path / "short", "qrdqn", seed=1, steps=400_000)
    found = sections_of(tmp_path)
    assert found["qrdqn"].missing is None
    assert [table.name for table in found["qrdqn"].tables] == ["qrdqn", "qrdqn-improvement"]
    assert "Not counted, but drawn under Other runs: short." in found["qrdqn"].notes


def test_people_are_shown_beside_agents_and_published_players(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "ad-s0")
    config = TrainConfig(preset="human", name="human-ada")
    make_run(tmp_path / "runs" / "human-ada", config=config, wood=0.25, steps=2000, finished=False)
    other = replace(config, name="human-short", env=EnvConfig(options=("length=5",)))
    make_run(tmp_path / "runs" / "human-short", config=other, steps=2000, finished=False)
    _, gathered = write_report([tmp_path / "runs"], tmp_path / "out")
    assert {run.path.name: run.uncounted for run in gathered.runs if run.preset == "human"} == {
        "human-ada": "played by a person", "human-short": "played by a person"
    }  # fmt: skip
    rows = {row["achievement"]: row for row in read_csv(tmp_path / "out" / "tables" / "success-rates-crafter.csv")}
    assert float(rows["Collect wood"]["human-ada"]) == 25.0 and "human-short" not in rows["Collect wood"]
    assert float(rows["Collect wood"]["human"]) > 90, "the published players"


def test_success_rates_by_environment(written: Path) -> None:
    rows = {row["achievement"]: row for row in read_csv(written / "tables" / "success-rates-crafter.csv")}
    assert float(rows["Collect wood"]["ad"]) == pytest.approx(40.0)
    assert float(rows["Collect wood"]["ppo"]) == pytest.approx(20.0)
    assert float(rows["Collect diamond"]["ad"]) == 0.0
    (row, *_) = read_csv(written / "tables" / "success-rates-minigrid.csv")
    assert float(row["minigrid-ad"]) == 50.0 and row["minigrid-ppo"] == ""


def sections_of(folder: Path) -> dict[str, Section]:
    sections, _ = build(gather([folder]))
    return {section.key: section for section in sections}


def test_no_runs_at_all(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "torn" / "run").mkdir(parents=True)
    (tmp_path / "torn" / "run" / "episodes.jsonl").write_text("{")
    with pytest.raises(RunFolderError, match="there is no run to report in this folder, which has neither results nor"):
        write_report([], tmp_path / "out")
    with pytest.raises(RunFolderError, match=r"no run to report in .*bare; give folders that hold runs, or make one"):
        write_report([tmp_path / "bare"], tmp_path / "out")
    with pytest.raises(RunFolderError, match=r"no run to report in .*torn \(.*run: not shown: has no config.json\)"):
        write_report([tmp_path / "torn"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_own_runs_alone_open_the_page(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"quick-s{seed}", "quick", seed, wood=0.5)
        make_run(tmp_path / f"gamma-s{seed}", "quick", seed, wood=0.2, config=GAMMA)
    make_run(tmp_path / "gamma-s2", "quick", 2, wood=0.8, steps=100_000, config=GAMMA)
    sections, _ = build(gather([tmp_path]))
    assert [section.key for section in sections[:3]] == ["others", "hardware", "runs"]
    assert sections[0].title == "Runs" and all(section.collapsed for section in sections[3:])
    assert {section.key for section in sections[3:]} >= {*PUBLISHED, "overview", "probe"}, "nothing is left out"
    (table,) = sections[0].tables
    plain, gamma = table.rows
    assert (plain[:3], gamma[:3]) == (["quick", "0, 1", 245_760], ["quick, ppo.gamma 0.8", "0, 1, 2", 100_000])
    assert isinstance(plain[3], MeanStd) and plain[3].mean == pytest.approx(score(50, 100, 0))
    assert [picture.caption for picture in sections[0].pictures] == ["Crafter: quick; quick, ppo.gamma 0.8."]
    assert "Fewer than 5 seeds: quick (2); quick, ppo.gamma 0.8 (3)." in str(sections[0].notes)


def test_certainty_is_never_printed(tmp_path: Path) -> None:
    for seed, (ours, theirs) in enumerate(((0.5, 0.1), (0.6, 0.2), (0.7, 0.3))):
        make_run(tmp_path / f"ad-s{seed}", "ad", seed, wood=ours)
        make_run(tmp_path / f"ppo-s{seed}", "ppo", seed, wood=theirs)
    page, _ = write_report([tmp_path], tmp_path / "out")
    text = parse(page.read_text()).text
    assert ">0.89 [0.34, 1)" in text and "1.00 [" not in text
    assert "Fewer than 5 seeds: ad (3); ppo (3)." in text
    (row,) = read_csv(tmp_path / "out" / "tables" / "table1-improvement.csv")
    assert float(row["probability_low"]) < 0.5
    assert "\\textgreater{}0.89 [0.34, 1)" in (tmp_path / "out" / "tables" / "table1-improvement.tex").read_text()


def test_runs_without_an_episode_or_a_summary_are_shown_for_what_they_are(tmp_path: Path) -> None:
    empty = make_run(tmp_path / "empty", finished=False)
    (empty / "episodes.jsonl").write_text("")
    make_run(tmp_path / "bare", "ppo", finished=False)
    sections = sections_of(tmp_path)
    assert "not run" in str(sections["table1"].tables[0].rows[1])
    assert sections["hardware"].missing is not None
    rows = {str(row[0]): row for row in sections["runs"].tables[0].rows}
    assert "no episode" in str(rows[str(empty)]) and "not recorded" in str(rows[str(tmp_path / "bare")])


def test_other_runs_of_one_name_are_both_drawn(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        make_run(tmp_path / folder / "quick-s0", "quick")
    (picture,) = sections_of(tmp_path)["others"].pictures
    assert picture.caption == f"Crafter: quick; quick, seed 0 again ({tmp_path / 'b' / 'quick-s0'})."
    (table,) = sections_of(tmp_path)["others"].tables
    assert [row[1] for row in table.rows] == ["0", "0"], "each by itself, and no mean of both"


def test_other_runs_are_not_taken_for_those_that_count(tmp_path: Path) -> None:
    """Nor for runs in the plain game, whatever their names."""
    for seed in (0, 1):
        make_run(tmp_path / f"ppo-s{seed}", "ppo", seed)
    make_run(tmp_path / "tf32", "ppo", 2, summary={"arithmetic": "tf32"})
    easy = replace(PRESETS["ppo"], name="mine", env=replace(PRESETS["ppo"].env, options=("length=500",)))
    make_run(tmp_path / "easy", config=easy)
    sections = sections_of(tmp_path)
    (table,) = sections["others"].tables
    assert [row[0] for row in table.rows] == ["mine (length=500)", "ppo, tf32"]
    assert sections["others"].pictures[0].caption == "Crafter: mine (length=500); ppo, tf32."
    games = {str(row[0]): row[2] for row in sections["runs"].tables[0].rows}
    assert games[str(tmp_path / "easy")] == "Crafter (length=500)" and games[str(tmp_path / "tf32")] == "Crafter"


def test_nothing_is_deleted_and_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    make_run(tmp_path / "run", "quick")
    write_report([tmp_path / "run"], tmp_path / "out")
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_report([tmp_path / "run"], tmp_path / "file")


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "ad-s0")
    log = make_run(tmp_path / "runs" / "ppo-s0", "ppo") / "episodes.jsonl"
    log.write_text(log.read_text() + "{")
    assert main(["report"]) == 0
    out = capsys.readouterr().out
    assert "2 runs, 2 of them comparable" in out and "torn last line" in out
    assert (tmp_path / "report" / "index.html").is_file()
    assert main(["report", "report", "--out", "other"]) == 2
    assert "no run to report in report" in capsys.readouterr().err and not (tmp_path / "other").exists()
    assert main(["report", "nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
