"""Cells know whether they are done, and what they are made of."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flexformer.experiments import presets
from flexformer.experiments.cells import TrainedCell
from flexformer.experiments.digest import digest, essentials
from flexformer.experiments.glue_cells import GlueRuns
from flexformer.experiments.grid import by_seed
from flexformer.experiments.language_table import LanguageTable
from flexformer.experiments.results import read
from flexformer.experiments.stages import Stage
from flexformer.training import RunFolder
from flexformer.training.record import Record


def finished_run(folder, options, **record):
    """A run's folder as it looks when the run is finished."""
    folder.mkdir(parents=True)
    made = Record.begin(options, ["flexformer"])
    made.status, made.steps, made.metrics = "finished", options.training.steps, {"test_bits_per_byte": 2.0}
    for name, value in record.items():
        setattr(made, name, value)
    RunFolder(folder).write(made)


def cell(attention="softmax", seed=0, **changes):
    options = presets.load_language("smoke", attention=attention, seed=seed, **changes)
    name = f"python-{attention}-smoke-seed{seed}"
    return TrainedCell("table2", name, {"attention": attention}, "smoke", Stage(name, "train lm", options))


def test_digest_depends_on_values_and_not_on_places_or_names():
    wanted = cell().digest
    assert cell(data={"root": "/elsewhere"}).digest == wanted
    assert cell(training={"tensorboard": True}).digest == wanted
    renamed = replace(cell().stage, options=replace(cell().stage.options, preset="another name"))
    assert renamed.digest == wanted
    assert cell(optimizer={"lr": 0.1}).digest != wanted
    assert cell(seed=1).digest != wanted
    assert cell(model={"attention_options": {"x": 1}}).digest != wanted


def test_an_option_that_is_new_and_off_leaves_results_valid():
    old = {"lr": 0.1, "data": {"limit": 5}}
    new = {"lr": 0.1, "data": {"limit": 5, "timeout": None}, "phase": False, "layers": [], "more": {}}
    assert essentials(new) == essentials(old) == {"lr": 0.1, "data.limit": 5}
    assert digest(essentials(new | {"phase": True})) != digest(essentials(old))
    assert essentials({"clip": 0.0}) == {"clip": 0.0}


def test_a_model_in_another_folder_is_the_same_model():
    first, second = ({"base": f"/{home}/site-packages/minilm/model"} for home in ("home/a", "opt"))
    assert essentials(first) == essentials(second) == {"base": "minilm/model"}


def test_a_cell_is_to_do_then_part_done_then_done(tmp_path):
    one, results, output = cell(), tmp_path / "results", tmp_path / "runs"
    assert one.status(results, output) == "to do"
    finished_run(output / one.name, one.stage.options, status="interrupted", steps=3)
    assert one.status(results, output) == "part done"
    assert [job.name for job in one.jobs(output)] == [one.name]


def test_a_finished_run_is_taken_over_without_running_again(tmp_path):
    one = cell()
    finished_run(tmp_path / one.name, one.stage.options, seconds=12.34, commit="abc-dirty")
    assert one.jobs(tmp_path) == []
    result = one.result(tmp_path, None, {"more": 1})
    assert (result.seconds, result.commit, result.dirty, result.details) == (12.3, "abc", True, {"more": 1})
    assert result.examples == one.stage.options.training.steps * one.stage.options.training.batch_size
    assert result.command[:5] == ["flexformer", "train", "lm", "--attention", "softmax"]


def test_a_run_of_before_an_option_was_added_still_counts(tmp_path):
    one = cell()
    finished_run(tmp_path / one.name, one.stage.options)
    path = tmp_path / one.name / "run.json"
    record = json.loads(path.read_text())
    del record["options"]["training"]["bf16"]
    path.write_text(json.dumps(record))
    assert one.stage.is_finished(tmp_path)


def test_a_run_with_other_options_is_left_alone_and_gets_a_neighbour(tmp_path):
    before, now = cell(), cell(optimizer={"lr": 0.1})
    finished_run(tmp_path / before.name, before.stage.options)
    assert not now.stage.is_finished(tmp_path)
    assert now.stage.folder(tmp_path) == tmp_path / f"{now.name}-{now.digest}"
    assert before.stage.folder(tmp_path) == tmp_path / before.name


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "cell.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"cell\.json: not the result of a cell: .*remove it"):
        read(path)
    path.write_text('{"table": "x"}')
    with pytest.raises(ValueError, match="not the result of a cell"):
        read(path)


def test_command_repeats_the_run_from_its_preset(tmp_path):
    stage = cell(optimizer={"lr": 0.1}, model={"attention_options": {"num_frequencies": 8}}).stage
    text = " ".join(stage.command(tmp_path))
    assert text == (
        "flexformer train lm --attention softmax --preset smoke --seed 0 "
        "--model.attention_options.num_frequencies 8 --optimizer.lr 0.1"
    )
    plain = cell().stage
    rate = f"--optimizer.lr {plain.options.optimizer.lr}"
    assert " ".join(plain.command(tmp_path)).endswith(rate), "a preset's rate may change, that of a run does not"


def test_recovery_shares_the_reference_and_depends_on_it(tmp_path):
    runs = GlueRuns("smoke", "owner/model-x")
    first, second = (runs.recovered("cola", name, 0) for name in ("hedgehog", "flexformer-n"))
    names = [stage.name for stage in first.order()]
    assert names == [
        "model-x-cola-softmax-smoke-seed0",
        "model-x-cola-hedgehog-smoke-seed0-distill",
        "model-x-cola-hedgehog-smoke-seed0",
    ]
    assert first.order()[0] == second.order()[0] == runs.finetuned("cola", "softmax", 0)
    resolved = first.resolved(tmp_path)
    assert resolved.base == str(tmp_path / names[0] / "model")
    assert resolved.adapter == str(tmp_path / names[1] / "adapter")
    # Another learning rate of the reference is another distillation, and another cell.
    reference = first.order()[0]
    faster = replace(reference.options, optimizer=replace(reference.options.optimizer, lr=0.5))
    other = replace(reference, options=faster)
    changed = replace(first, needs=(other, replace(first.needs[1], needs=(other,))))
    assert changed.digest != first.digest
    assert changed.needs[1].digest != first.needs[1].digest


def test_transfer_distils_once_for_all_targets():
    runs = GlueRuns("smoke", "owner/model-x")
    first, second = (runs.transferred("stsb", target, "hedgehog", 0) for target in ("cola", "rte"))
    assert first.order()[0] == second.order()[0]
    assert first.order()[0].options.base == "owner/model-x"
    assert first.options.base == "owner/model-x"


def test_first_seeds_come_first():
    cells = LanguageTable("smoke").cells(["softmax", "linear"], [0, 1])
    mixed = by_seed(sorted(cells, key=lambda each: each.name))
    assert [each.seed for each in mixed] == [0, 0, 1, 1]
