"""Figures in the docs are those in results/, and tables there are those of the cells beside them."""

import functools
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from flexformer.experiments.arena_table import ArenaTable
from flexformer.experiments.curves import DistillationCurves
from flexformer.experiments.frequencies import FrequencySweep
from flexformer.experiments.glue_tables import RecoveryTable, TransferTable
from flexformer.experiments.kernels import KernelStudy
from flexformer.experiments.language_table import LanguageTable
from flexformer.experiments.pretrained_models import default_base, default_text
from flexformer.experiments.sentences import SentenceStudy

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
BASE, TEXT = default_base("cpu"), default_text("cpu", None)
EXPERIMENTS = [
    ArenaTable("cpu"),
    LanguageTable("cpu"),
    RecoveryTable("cpu"),
    TransferTable("cpu"),
    FrequencySweep("cpu"),
    SentenceStudy("cpu"),
    KernelStudy("cpu", None, BASE, TEXT),
    DistillationCurves("cpu", None, BASE, TEXT),
]


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


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_tables_in_results_are_those_of_their_cells(experiment, tmp_path):
    folder = ROOT / "results" / experiment.name
    if not (folder / f"{experiment.stem}.md").exists():
        pytest.skip(f"results/{experiment.name} has no table at this scale")
    source = experiment.source or experiment.name
    (tmp_path / source).mkdir()
    for path in (ROOT / "results" / source).glob("*.json"):
        shutil.copy(path, tmp_path / source)
    shown = experiment.show(tmp_path)
    assert shown.outdated == []
    for path in shown.files:
        if path.suffix in (".md", ".tex"):
            assert path.read_bytes() == (folder / path.name).read_bytes(), (
                f"{path.name} has drifted; run flexformer reproduce {experiment.name} --tables-only"
            )
