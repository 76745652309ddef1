"""The README: its figures are those in results/, its commands exist."""

import importlib.util
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from flexformer.cli.arguments import parse
from flexformer.cli.main import COMMANDS, GROUPS
from flexformer.experiments import presets
from flexformer.experiments.decoder import DecoderStudy
from flexformer.experiments.presets.pretrained import load_distill, load_finetune
from flexformer.experiments.sentences import SentenceStudy

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("readme_figures", ROOT / "scripts" / "readme_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_shows_what_results_hold(figures):
    assert figures.page_with_figures(README) == README, (
        "README.md and results/ have drifted apart; run python scripts/readme_figures.py"
    )


def test_the_picture_shows_what_results_hold(figures):
    from PIL import Image

    with Image.open(figures.PICTURE) as picture:
        assert picture.info["Description"] == figures.digest(), (
            "docs/images/overview.png and results/ have drifted apart; run python scripts/readme_figures.py"
        )


def commands():
    for page in DOCS:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["flexformer"]:
                    yield shlex.join(words)


@pytest.mark.parametrize("line", list(commands()))
def test_a_command_that_is_shown_is_understood(line):
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    if name in GROUPS or name.startswith("-"):
        assert words[-1] == "--help"
        return
    module, _, attribute = COMMANDS[name][0].partition(":")
    parse(getattr(import_module(module), attribute), f"flexformer {name}", words[len(name.split()) :])


@pytest.mark.parametrize("target", re.findall(r"^make (\S+)", README, flags=re.MULTILINE))
def test_a_make_target_that_is_shown_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_budgets_of_reproducing_are_those_of_the_presets():
    rows = [line for line in (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8").splitlines() if "|" in line]
    scales = {cells[1].strip(): cells[3] for cells in (row.split("|") for row in rows) if len(cells) == 5}

    def steps(name):
        found = re.findall(r"([\d,]+) (?:steps|on STS-B|of fine-tuning)", scales[name])
        return [int(count.replace(",", "")) for count in found]

    tuned = [load_finetune("cpu", "base", task)[0].training.steps for task in ("sst2", "mrpc", "stsb", "rte", "cola")]
    assert steps("table3, table4") == list(dict.fromkeys(tuned))
    assert steps("kernels, distill-curves") == [load_distill("study", "base", "text").training.steps]
    assert steps("table2") == [presets.load_language("cpu").training.steps]
    for study in (SentenceStudy("cpu", base="base", text="text"), DecoderStudy("cpu", base="base", text="text")):
        learned, tuned = study.options(data={})
        assert steps(study.name) == [learned.training.steps, tuned.training.steps]
