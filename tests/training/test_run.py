"""A run from options to a record."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import toy_run
import yaml
from rich.console import Console
from transformers import TrainerState

from flexformer import kernels
from flexformer.training import RunFolderError, RunOptions, evaluate, run
from flexformer.training.callbacks import DivergedError, LogFile, read_log
from flexformer.training.record import RunFolder, differences
from flexformer.training.run import build_model, build_task
from flexformer.training.trainer import TaskTrainer, without_idle_masks

QUIET = Console(quiet=True)


@pytest.fixture(scope="module", autouse=True)
def toy_tasks():
    with toy_run.registered():
        yield


@pytest.fixture(scope="module")
def finished(toy_tasks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "toy"
    options = toy_run.options("flexformer-n")
    return folder, options, run(options, folder, QUIET, ["flexformer", "train", "toy"])


def test_run_folder_holds_record_config_log_and_model(finished):
    folder, options, record = finished
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "log.jsonl", "model", "run.json"]
    kept = json.loads((folder / "run.json").read_text())
    assert kept["command"] == ["flexformer", "train", "toy"]
    assert kept["options"] == options.as_dict()
    assert (kept["status"], kept["steps"], kept["seed"], kept["scale"]) == ("finished", 26, 0, "custom")
    assert kept["metrics"].keys() == {"test_accuracy", "test_loss", "validation_accuracy", "validation_loss"}
    assert {"flexformer", "torch", "transformers", "accelerate"} <= kept["versions"].keys()
    assert 0 < kept["step_seconds"] < kept["seconds"]
    assert kept["peak_memory"] is None or kept["peak_memory"] >= 0
    assert kept["tokens"] > 26 * 12 * 10
    assert kept["machine"]["threads"] == torch.get_num_threads()
    assert kept["machine"]["cpu"]
    assert RunOptions.from_dict(yaml.safe_load((folder / "config.yaml").read_text())) == options
    assert record.parameters == sum(p.numel() for p in build_model(build_task(options), options).parameters())


def test_log_has_losses_that_fall_and_evaluations(finished):
    folder, _, record = finished
    entries = read_log(folder / "log.jsonl")
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert losses[-1] < losses[0]
    evaluated = [entry for entry in entries if "eval_accuracy" in entry]
    assert [entry["step"] for entry in evaluated] == [5, 10, 15, 20, 25, 26]
    assert evaluated[-1]["eval_accuracy"] == record.metrics["validation_accuracy"]


def test_evaluate_finds_what_the_run_found(finished):
    folder, _, record = finished
    _, found = evaluate(folder, QUIET)
    assert (found.accuracy, found.loss) == (record.metrics["test_accuracy"], record.metrics["test_loss"])
    assert (found.examples, found.weights) == (90, "model")
    _, validated = evaluate(folder, QUIET, "validation", batch_size=90)
    assert validated.accuracy == record.metrics["validation_accuracy"]
    assert evaluate(folder, QUIET, limit=10)[1].examples == 10


def test_evaluating_leaves_the_folder_as_it_was(finished):
    folder, _, _ = finished
    before = sorted(path.name for path in folder.iterdir())
    evaluate(folder, QUIET, limit=10)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_checkpoints_left_of_a_finished_run_are_not_what_is_evaluated(tmp_path, monkeypatch):
    options = toy_run.options("softmax", select="best")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it were killed just before
        record = run(options, tmp_path, QUIET)
    assert any((tmp_path / "checkpoints").iterdir())
    _, found = evaluate(tmp_path, QUIET)
    assert (found.weights, found.loss) == ("model", record.metrics["test_loss"])


@pytest.mark.parametrize("broken", ["write_text", "RunFolder.lay_out"])
def test_run_that_was_cut_off_while_it_began_begins_again(broken, tmp_path, monkeypatch):
    options = toy_run.options("softmax", steps=2)

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"flexformer.training.record.{broken}", stop)
        with pytest.raises(KeyboardInterrupt):
            run(options, tmp_path, QUIET)
    (tmp_path / ".run.json-cut-off").touch()
    assert run(options, tmp_path, QUIET).status == "finished"


def test_finished_run_is_returned_as_it_is(finished):
    folder, options, record = finished
    before = (folder / "run.json").stat().st_mtime_ns
    assert run(options, folder, QUIET) == record
    assert (folder / "run.json").stat().st_mtime_ns == before


def test_same_options_give_the_same_weights(finished, tmp_path):
    folder, options, _ = finished
    run(options, tmp_path, QUIET)
    assert (tmp_path / "model/model.safetensors").read_bytes() == (folder / "model/model.safetensors").read_bytes()


def test_how_often_one_evaluates_does_not_change_what_is_learned(finished, tmp_path):
    folder, options, _ = finished
    run(replace(options, training=replace(options.training, evaluate_every=26)), tmp_path, QUIET)
    assert (tmp_path / "model/model.safetensors").read_bytes() == (folder / "model/model.safetensors").read_bytes()


def test_another_seed_gives_other_weights_and_another_order(finished, tmp_path):
    folder, options, _ = finished
    run(replace(options, seed=1), tmp_path, QUIET)
    assert (tmp_path / "model/model.safetensors").read_bytes() != (folder / "model/model.safetensors").read_bytes()


def test_folder_of_another_run_is_refused_by_the_names_of_what_differs(finished):
    folder, options, _ = finished
    other = replace(options, optimizer=replace(options.optimizer, lr=0.5), seed=3)
    with pytest.raises(
        RunFolderError, match=r"holds a run with optimizer.lr 0.003, seed 0, not optimizer.lr 0.5, seed 3;"
    ):
        run(other, folder, QUIET)


def test_where_the_data_lies_does_not_make_another_run(finished):
    folder, options, record = finished
    assert run(replace(options, data=replace(options.data, root="/elsewhere")), folder, QUIET) == record
    assert differences({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}) == {"a.b": (1, 2), "a.c": (None, 3)}
    assert differences({"a": {}}, {"a": {"b": 2}}) == {"a.b": (None, 2)}
    assert differences({}, {"a": {}, "b": False, "c": None}) == {}
    assert differences({"b": False}, {"b": True, "c": 0}) == {"b": (False, True), "c": (None, 0)}


def test_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunFolderError, match="is not empty and holds no run; choose another folder"):
        run(toy_run.options("softmax"), tmp_path, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_record_that_is_none_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{broken")
    with pytest.raises(RunFolderError, match="not the record of a run"):
        evaluate(tmp_path, QUIET)


def test_two_runs_cannot_share_a_folder(tmp_path):
    with RunFolder(tmp_path).locked(), pytest.raises(RunFolderError, match="another process is running here"):
        run(toy_run.options("softmax"), tmp_path, QUIET)


def test_evaluating_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(RunFolderError, match=r"holds no run: there is no run.json"):
        evaluate(tmp_path, QUIET)


def test_best_weights_are_kept_and_tested_where_asked(tmp_path):
    options = toy_run.options("linear", "best", evaluate_every=2)
    record = run(replace(options, optimizer=replace(options.optimizer, lr=0.1)), tmp_path, QUIET)
    evaluated = {e["step"]: e["eval_accuracy"] for e in read_log(tmp_path / "log.jsonl") if "eval_accuracy" in e}
    assert record.metrics["validation_accuracy"] == max(evaluated.values())
    assert evaluated[record.selected_step] == max(evaluated.values())
    assert evaluate(tmp_path, QUIET, "validation")[1].accuracy == max(evaluated.values())


def test_diverging_run_stops_with_a_remedy_and_a_record(tmp_path):
    options = toy_run.options("softmax")
    with pytest.raises(
        DivergedError, match=r"the loss is nan at step \d+; lower optimizer.lr 1e\+30 or set optimizer.clip"
    ):
        run(replace(options, optimizer=replace(options.optimizer, lr=1e30)), tmp_path, QUIET)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "diverged"


def test_a_validation_loss_that_is_no_number_ends_a_run_too(tmp_path):
    log, state = LogFile(tmp_path / "log.jsonl"), TrainerState(global_step=7)
    with pytest.raises(DivergedError, match=r"the validation loss is nan at step 7; lower optimizer.lr 0.5 "):
        log.on_log(SimpleNamespace(learning_rate=0.5), state, None, {"eval_loss": math.nan})
    assert len(read_log(log.path)) == 1  # what was seen is kept


def test_pairs_train_and_count_the_tokens_of_both_texts(tmp_path):
    record = run(toy_run.options("flexformer-s", task="toy-pair"), tmp_path / "pair", QUIET)
    assert record.status == "finished"
    single = run(toy_run.options("flexformer-s"), tmp_path / "single", QUIET)
    assert record.tokens > 1.8 * single.tokens
    assert evaluate(tmp_path / "pair", QUIET)[1].accuracy == record.metrics["test_accuracy"]


def test_accumulation_and_bf16_and_checkpointing_train_too(tmp_path):
    for name, settings in (
        ("accumulation", {"accumulation": 2}),
        ("bf16", {"bf16": True}),
        ("checkpointing", {"gradient_checkpointing": True}),
    ):
        record = run(toy_run.options("flexformer-n", steps=8, evaluate_every=4, **settings), tmp_path / name, QUIET)
        assert math.isfinite(record.metrics["test_loss"])


def test_accumulated_batches_give_the_gradients_of_whole_ones(tmp_path):
    losses = []
    for accumulation in (1, 4):
        options = toy_run.options("softmax", steps=5, evaluate_every=5, accumulation=accumulation)
        options = replace(options, model=replace(options.model, dropout=0.0, attention_dropout=0.0))
        run(options, tmp_path / str(accumulation), QUIET)
        losses.append([e["loss"] for e in read_log(tmp_path / str(accumulation) / "log.jsonl") if "loss" in e])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_kernel_parameters_do_not_decay(tmp_path):
    options = toy_run.options("flexformer-n")
    options = replace(options, optimizer=replace(options.optimizer, weight_decay=0.1, beta1=0.8))
    task = build_task(options)
    model = build_model(task, options)
    optimizer = TaskTrainer(model, task, options, tmp_path, None, task.dataset("validation")).create_optimizer()
    spectral = {id(p) for m in model.modules() if isinstance(m, kernels.Kernel) for p in m.parameters()}
    decayed, kept = optimizer.param_groups
    assert spectral == {id(p) for p in kept["params"]}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (kept["betas"], kept["eps"]) == ((0.8, 0.98), 1e-9)


def test_masks_that_hide_nothing_are_left_out():
    full, part = torch.ones(2, 3, dtype=torch.bool), torch.tensor([[True, False]])
    batch = without_idle_masks({"input_ids": full, "key_mask": full, "key_mask_2": part})
    assert batch.keys() == {"input_ids", "key_mask_2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, r"training.steps 0 is too small; use more than 0"),
        (
            {"batch_size": 10, "accumulation": 3},
            r"training.batch_size 10 is not divisible by 3 \(training.accumulation\)",
        ),
        ({"save_every": -1}, r"training.save_every -1 is too small"),
    ],
)
def test_impossible_options_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        toy_run.options("softmax", **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"layers": 0}}, r"model.layers 0 is too small"),
        ({"model": {"dropout": 1.0}}, r"model.dropout 1.0 is out of range"),
        ({"data": {"train_limit": 0}}, r"data.train_limit 0 is too small"),
        ({"optimizer": {"beta1": 2.0}}, r"optimizer.beta1 2.0 is out of range; use at least 0 and less than 1"),
        ({"optimizer": {"eps": 0.0}}, r"optimizer.eps 0.0 is too small"),
    ],
)
def test_impossible_models_and_optimisers_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        RunOptions.from_dict({"task": "toy", **change})


def test_tensorboard_files_are_written_where_it_is_installed(tmp_path):
    pytest.importorskip("tensorboard")
    run(toy_run.options("linear", steps=4, evaluate_every=4, tensorboard=True), tmp_path, QUIET)
    assert list((tmp_path / "tensorboard").glob("events*"))
