"""Figures in the docs are those in results/, and tables there are those of the cells beside them."""

import functools
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flexformer.attention import ATTENTIONS, options
from flexformer.cli import bench_vocabulary
from flexformer.distill.divergence import LINE
from flexformer.experiments.arena_table import ArenaTable
from flexformer.experiments.curves import DistillationCurves
from flexformer.experiments.decoder import DecoderStudy
from flexformer.experiments.digest import digest
from flexformer.experiments.efficiency_figure import EfficiencyFigure
from flexformer.experiments.frequencies import FrequencySweep
from flexformer.experiments.glue_tables import RecoveryTable, TransferTable
from flexformer.experiments.kernels import KernelStudy
from flexformer.experiments.language_table import LanguageTable
from flexformer.experiments.results import read_all
from flexformer.experiments.sentences import SentenceStudy

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
EXPERIMENTS = (
    ArenaTable,
    LanguageTable,
    RecoveryTable,
    TransferTable,
    FrequencySweep,
    SentenceStudy,
    DecoderStudy,
    KernelStudy,
    functools.partial(KernelStudy, base="models/stories15M", text="own-text/models-stories15m-1024.txt"),
    DistillationCurves,
    EfficiencyFigure,
)


@functools.cache
def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


def test_the_numerics_page_shows_what_the_floor_study_found():
    study = script("study_floor")
    assert study.page_with_tables() == study.PAGE.read_text(encoding="utf-8"), (
        "docs/numerics.md and results/floor/ have drifted apart; run python scripts/study_floor.py --tables"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_show_tables_as_they_are_in_results(page):
    text = page.read_text(encoding="utf-8")
    assert script("results_pages").with_tables(text) == text, (
        f"{page.name} and results/ have drifted apart; run python scripts/results_pages.py"
    )


def test_claims_are_judged_by_the_cells_that_are_there():
    claims = script("claims")
    text = claims.PAGE.read_text(encoding="utf-8")
    assert claims.with_claims(text) == text, (
        "docs/results.md and results/ have drifted apart; run python scripts/claims.py"
    )


def test_figure_2_shows_accuracies_only_of_a_task_that_was_learned():
    figure = EfficiencyFigure("cpu")
    found, _ = figure.results(ROOT / "results")
    assert figure.accuracy_task == "articles"
    assert not figure.is_learned
    assert b"accuracy" not in figure.plot([], found)["svg"]


def test_a_run_that_several_cells_start_from_is_paid_for_once():
    first = {"digest": "reference", "steps": 300, "seconds": 3600.0}
    cells = [
        SimpleNamespace(digest="reference", steps=300, seconds=3600.0, stages=[]),
        SimpleNamespace(digest="a", steps=100, seconds=1800.0, stages=[first]),
        SimpleNamespace(digest="b", steps=100, seconds=1800.0, stages=[first]),
    ]

    def spent(cells):
        found = script("claims").Spent.on(cells)
        return found.text, found.short

    assert spent(cells) == ("3 runs of 100 to 300 steps, 2.0 run-hours", "2.0 h")
    assert spent(cells[1:]) == ("3 runs of 100 to 300 steps, 2.0 run-hours", "2.0 h")
    assert spent(cells[:1]) == ("1 run of 300 steps, 1.0 run-hours", "1.0 h")
    assert spent([])[0] == ""
    measured = SimpleNamespace(digest="m", steps=0, seconds=180.0, stages=[])
    assert spent([measured]) == ("3 minutes of measuring", "3 min")
    assert spent([cells[0], measured])[0] == "1 run of 300 steps, 1.0 run-hours, 3 minutes of measuring"


def test_commands_of_claims_run_the_cells_that_there_are_and_no_others():
    def given(**seeds):
        return script("claims").grids_given(
            [
                SimpleNamespace(labels={"attention": name, "task": task}, seed=seed, steps=1)
                for name, own in seeds.items()
                for task, of_task in (own if isinstance(own, dict) else {"text": own}).items()
                for seed in of_task
            ]
        )

    assert given(softmax=[0], linear=[0]) == [""]
    assert given(softmax=[0, 1], linear=[0, 1]) == [" --seeds 0 1"]
    assert given(softmax=[0, 1, 2], linear=[0], rfa=[0]) == [
        " --attention softmax --seeds 0 1 2",
        " --attention linear rfa",
    ]
    assert given(softmax={"text": [0, 1], "image": [0, 1]}, rfa={"text": [0, 1], "image": [0]}) == [
        " --attention softmax --seeds 0 1",
        " --attention rfa",
        " --attention rfa --tasks text --seeds 1",
    ]
    assert given() == [""]
    maps = [
        SimpleNamespace(labels={"map": name}, seed=seed, steps=1)
        for name, own in {"hedgehog": (0, 1, 2), "c, all real": (0,)}.items()
        for seed in own
    ]
    assert script("claims").grids_given(maps, "maps") == [" --maps hedgehog", ' --maps "c, all real" --seeds 0']


def test_commands_of_table_1_plan_the_cells_that_there_are():
    experiment = ArenaTable("cpu")
    found = experiment.results(ROOT / "results")[0]
    planned = []
    for given in script("claims").grids_given(found):
        words = given.replace("--", "\n").split("\n")[1:]
        own = {name: rest for name, *rest in (line.split() for line in words)}
        grid = ArenaTable("cpu", tasks=own.get("tasks", experiment.tasks))
        attentions, seeds = own.get("attention", grid.rows()), [int(seed) for seed in own.get("seeds", ["0"])]
        planned += [cell.name for cell in grid.cells(attentions, seeds)]
    assert sorted(planned) == sorted(result.cell for result in found)


@pytest.mark.parametrize("experiment", [kind("cpu") for kind in EXPERIMENTS], ids=lambda experiment: experiment.stem)
def test_cells_say_where_they_are_from_and_what_they_took(experiment):
    for result in read_all(ROOT / "results", experiment.name, "cpu"):
        said = [result.command, result.commit, result.dirty is False, result.seconds]
        if "measurements" not in result.details:  # which take no training
            said += [result.steps, result.tokens]
        for stage in result.stages:
            said += [stage["command"], stage["commit"], stage["dirty"] is False]
            said += [stage["steps"], stage["tokens"], stage["seconds"]]
        assert all(said), result.cell


def test_cells_of_the_floor_study_say_where_they_are_from_and_what_they_took():
    study = script("study_floor")
    for cell in study.cells():
        record = study.record_of(cell)
        assert record is not None, study.path_of(cell)
        said = [record[name] for name in ("command", "commit", "steps", "tokens", "seconds")]
        assert all(said), study.path_of(cell)
        assert not record["commit"].endswith("-dirty")
        assert (record["seed"], record["steps"], record["tokens"]) == (cell["seed"], *study.budget(cell))


def test_cells_are_of_attentions_as_they_are():
    defaults = {name: options(name) for name in ATTENTIONS} | {"line of the loss": LINE}
    assert digest(defaults) == "27dc5686e451d4e3", (
        "a default has changed, which no cell's digest sees: run the cells of that attention again, then change this"
    )


def test_the_table_of_signs_is_that_of_its_record():
    signs = script("study_signs")
    record = json.loads(signs.FILE.read_text(encoding="utf-8"))
    text = signs.FILE.with_suffix(".md").read_text(encoding="utf-8")
    assert signs.markdown(record) == text, "run python scripts/study_signs.py"


def test_every_table_is_shown_somewhere():
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for path in (ROOT / "results").glob("*/*-cpu.md"):
        assert f"<!-- results: {path.parent.name}/{path.stem} begin -->" in pages, f"no page shows {path.name}"


def test_tables_of_trials_are_those_of_their_runs():
    trials = script("trials")
    for task, text in trials.tables().items():
        assert (trials.FOLDER / f"{task}.md").read_text(encoding="utf-8") == text, "run python scripts/trials.py"


@pytest.mark.parametrize("path", sorted((ROOT / "results/vocabulary").glob("*.json")), ids=lambda path: path.stem)
def test_vocabulary_tables_are_those_of_their_records(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    assert bench_vocabulary.markdown(record) == path.with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize("experiment", [kind("cpu") for kind in EXPERIMENTS], ids=lambda experiment: experiment.stem)
def test_tables_in_results_are_those_of_their_cells(experiment, tmp_path):
    if not list((ROOT / "results" / experiment.name).glob("*.json")):
        pytest.skip(f"results/{experiment.name} has no cells")
    shutil.copytree(ROOT / "results", tmp_path / "results")  # figure 2 shows accuracies of table 1 as well
    shown = experiment.show(tmp_path / "results")
    assert shown.outdated == []
    for path in shown.files:
        if path.suffix in (".md", ".tex"):
            kept = ROOT / "results" / experiment.name / path.name
            there = kept.read_bytes() if kept.exists() else None
            remedy = f"{path.name} has drifted; run flexformer reproduce {experiment.name} --tables-only"
            assert path.read_bytes() == there, remedy
