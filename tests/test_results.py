"""Figures in the docs are those in results/, and tables there are those of the cells beside them."""

import functools
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flexformer.cli import bench_vocabulary
from flexformer.experiments.arena_table import ArenaTable
from flexformer.experiments.curves import DistillationCurves
from flexformer.experiments.decoder import DecoderStudy
from flexformer.experiments.efficiency_figure import EfficiencyFigure
from flexformer.experiments.frequencies import FrequencySweep
from flexformer.experiments.glue_tables import RecoveryTable, TransferTable
from flexformer.experiments.kernels import KernelStudy
from flexformer.experiments.language_table import LanguageTable
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


def test_the_table_of_signs_is_that_of_its_record():
    signs = script("study_signs")
    record = json.loads(signs.FILE.read_text(encoding="utf-8"))
    text = signs.FILE.with_suffix(".md").read_text(encoding="utf-8")
    assert signs.markdown(record) == text, "run python scripts/study_signs.py"


def test_every_table_is_shown_somewhere():
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for path in (ROOT / "results").glob("*/*-cpu.md"):
        assert f"<!-- results: {path.parent.name}/{path.stem} begin -->" in pages, f"no page shows {path.name}"


def test_verdicts_compare_seed_by_seed():
    scores = script("claims").Scores
    steady = scores({0: 1.1, 1: 3.1, 2: 2.1})
    assert steady.against(scores({0: 1.0, 1: 3.0, 2: 2.0})) == "holds (3 seeds)"
    assert scores({0: 1.0, 1: 3.0, 2: 2.0}).against(steady) == "does not hold (3 seeds)"
    assert steady.against(scores({0: 0.5, 1: 3.5, 2: 1.5})) == "undecided: 3 seeds do not tell them apart"
    assert steady.against(scores({1: 3.0, 7: 9.0})) == "holds (one seed)"
    assert steady.against(scores({7: 9.0})) == "undecided: no seed in common"


def test_figures_are_of_the_seeds_that_the_verdict_is_about():
    claims = script("claims")
    found = {name: claims.Scores(values) for name, values in {"a": {0: 0.69, 1: 0.75}, "b": {0: 0.70}}.items()}
    assert claims.pair(found, "a", "b") == claims.Finding("does not hold (one seed)", "a 0.69, b 0.70")


def test_the_rival_is_the_one_that_is_nearest_seed_by_seed():
    claims = script("claims")
    others = {name: claims.Scores({0: -230.0}) for name in claims.OTHERS}
    found = others | {
        "flexformer-n": claims.Scores({0: -210.0, 1: -200.0}),
        "hedgehog": claims.Scores({0: -209.0}),
        "linear": claims.Scores({0: -219.0, 1: -190.0}),
    }
    assert claims.beats_others(found).figures == "flexformer-n 210.00, hedgehog 209.00"
    del found["rfa"]
    assert claims.beats_others(found) == claims.Finding(claims.MISSING)


def test_very_close_is_judged_seed_by_seed_as_well():
    claims = script("claims")

    def verdict(ours):
        values = {0: -100.0, 1: -102.0}
        return claims.near_softmax({"flexformer-n": claims.Scores(ours), "softmax": claims.Scores(values)}).verdict

    assert verdict({0: -101.0, 1: -103.0}) == "holds (2 seeds)"
    assert verdict({0: -105.9, 1: -107.1}) == "undecided: 2 seeds do not tell them apart"
    assert verdict({0: -115.0, 1: -117.0}) == "does not hold (2 seeds)"


def transferred(pairs, seed=0):
    """Made-up cells of table 4: by source and target, flexformer-n's score and Hedgehog's."""
    return [
        SimpleNamespace(
            labels={"source": start, "task": target, "attention": name}, seed=seed, metrics={"test_score": score}
        )
        for (start, target), scores in pairs.items()
        for name, score in zip(("flexformer-n", "hedgehog"), scores, strict=True)
    ]


def test_pairs_of_tasks_that_are_level_do_not_count_against_anyone():
    claims = script("claims")
    pairs = {(s, t): (0.7, 0.6) for s in claims.SOURCES["cpu"] for t in claims.TASKS["cpu"] if s != t}
    for start in claims.SOURCES["cpu"]:
        pairs[start, "cola"] = (0.0, 0.0)
    assert claims.transfer(transferred(pairs)).verdict == "holds (one seed)"
    assert claims.transfer(transferred(dict.fromkeys(pairs, (0.5, 0.5)))).verdict == "undecided: level everywhere"
    assert claims.transfer(transferred(dict.fromkeys(pairs, (0.5, 0.6)))).verdict == "does not hold (one seed)"
    assert claims.transfer(transferred(dict([*pairs.items()][1:]))).verdict == claims.MISSING
    one = [r for r in transferred(dict.fromkeys(pairs, (0.8, 0.0)), seed=1) if r.labels["attention"] == "flexformer-n"]
    both = [*transferred(dict.fromkeys(pairs, (0.5, 0.6))), *one]
    assert claims.transfer(both).verdict == "does not hold (one seed)"


def test_an_average_is_of_seeds_that_all_tasks_have():
    claims = script("claims")
    found = [
        SimpleNamespace(labels={"task": task, "attention": "softmax"}, seed=seed, metrics={"test_accuracy": value})
        for task, seed, value in (("a", 0, 0.5), ("b", 0, 0.7), ("a", 1, 0.9))
    ]
    scores = claims.by_attention(found, "test_accuracy", 100, ["a", "b"])["softmax"]
    assert scores.values == pytest.approx({0: 60.0})


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
