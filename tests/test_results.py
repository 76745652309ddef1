"""Figures in the docs are those in results/."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "study_floor.py"


def test_the_numerics_page_shows_what_the_floor_study_found():
    spec = importlib.util.spec_from_file_location("study_floor", SCRIPT)
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    assert study.page_with_tables() == study.PAGE.read_text(encoding="utf-8"), (
        "docs/numerics.md and results/floor/ have drifted apart; run python scripts/study_floor.py --tables"
    )
