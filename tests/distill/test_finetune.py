"""Fine-tuning on GLUE: as it is, swapped, from an adapter, recovered, with LoRA."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch
import transformers
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import flexformer
from flexformer.distill import FinetuneOptions, GlueOptions, KernelOptions, LoraOptions, TextOptions, fidelity
from flexformer.distill.finetune import FinetuneJob
from flexformer.distill.options import StageOptions
from flexformer.distill.pretrained import longest_input, positions
from flexformer.distill.procedures import finetune, recover
from flexformer.distill.text_finetune import TextFinetuneJob
from flexformer.training import OptimizerOptions, RunFolderError, ScheduleOptions, TrainingOptions
from flexformer.training.callbacks import read_log
from flexformer.training.trainer import TaskTrainer

SILENT = Console(quiet=True)
TRAINING = TrainingOptions(
    steps=40, batch_size=16, eval_batch_size=40, evaluate_every=20, log_every=20, select="best", tensorboard=False
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    for kind in tiny.KINDS:
        tiny.save(folder / kind, kind)
    tiny.glue(folder / "data")
    return folder


def options(place, task="cola", kind="bert", **changes) -> FinetuneOptions:
    given = FinetuneOptions(
        str(place / kind),
        task,
        data=GlueOptions(root=str(place / "data"), max_length=32),
        optimizer=OptimizerOptions(lr=3e-3, weight_decay=0.1, eps=1e-6),
        schedule=ScheduleOptions("linear", warmup=4),
        training=TRAINING,
    )
    return replace(given, **changes)


def score_of(folder, place, task="cola"):
    """The dev score of a run's model, found without the job that trained it."""
    folder = folder / "model"
    converted = (folder / "config.json").read_text().count('"flexformer"')
    model = flexformer.load(folder) if converted else AutoModelForSequenceClassification.from_pretrained(folder)
    glue = flexformer.tasks.glue.Glue(task, place / "data")
    examples = glue.examples("test")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = "[PAD]"  # the decoder's has none
    tokens = tokenizer(*(list(side) for side in examples.sentences), padding=True, return_tensors="pt")
    with torch.no_grad():
        return glue.task.metrics(model.eval()(**tokens).logits.numpy(), examples.labels)["score"]


@pytest.fixture(scope="module")
def reference(place):
    folder = place / "reference"
    return folder, finetune(options(place), folder, SILENT)


def test_model_learns_and_its_folder_gives_the_recorded_score(reference, place):
    folder, record = reference
    assert (record.status, record.task, record.attention) == ("finished", "cola", "softmax")
    assert record.metrics["test_score"] > 0.6
    assert score_of(folder, place) == pytest.approx(record.metrics["test_score"])
    assert set(record.metrics) >= {"test_accuracy", "test_loss", "validation_score", "validation_accuracy"}
    assert not (folder / "adapter").exists()


@pytest.mark.parametrize(
    "attention",
    ["performer", pytest.param("rfa", marks=pytest.mark.slow), pytest.param("flexformer-n", marks=pytest.mark.slow)],
)
def test_swapped_attention_is_trained_and_saved(place, tmp_path, attention):
    record = finetune(options(place, "rte", attention=attention), tmp_path / "run", SILENT)
    assert record.metrics["test_accuracy"] > 0.6
    assert score_of(tmp_path / "run", place, "rte") == pytest.approx(record.metrics["test_score"])
    assert (tmp_path / "run/adapter/flexformer_adapter.json").is_file()


def test_decoders_are_fine_tuned_too(place, tmp_path):
    record = finetune(options(place, kind="llama", attention="hedgehog"), tmp_path / "run", SILENT)
    assert record.metrics["test_accuracy"] > 0.6
    assert score_of(tmp_path / "run", place) == pytest.approx(record.metrics["test_score"])


def test_kernels_of_one_task_are_taken_to_another(place, tmp_path):
    model = flexformer.convert(tiny.model(), "flexformer-s")
    with torch.no_grad():
        for _, kernel in flexformer.convert.kernels(model):
            kernel.omega.fill_(0.125)
    flexformer.save_adapter(model, tmp_path / "adapter")
    given = options(place, "rte", attention="flexformer-s", adapter=str(tmp_path / "adapter"))
    started = FinetuneJob(given).model()
    assert all((kernel.omega == 0.125).all() for _, kernel in flexformer.convert.kernels(started))
    assert all(parameter.requires_grad for parameter in started.parameters())
    with pytest.raises(ValueError, match="is of flexformer-s, not of attention hedgehog"):
        FinetuneJob(replace(given, attention="hedgehog"))


def test_recovery_is_three_runs_and_starts_where_the_last_ended(reference, place, tmp_path):
    stage = StageOptions(
        data=TextOptions(max_length=32, validation_limit=20),
        optimizer=OptimizerOptions(lr=1e-2),
        schedule=ScheduleOptions("constant", warmup=0),
        training=replace(TRAINING, steps=20),
    )
    given = options(place, attention="flexformer-s", training=replace(TRAINING, steps=20))
    found = recover(given, stage, tmp_path / "run", SILENT, reference=reference[0])
    assert found.reference.metrics == reference[1].metrics
    assert found.distilled.metrics["after_kl"] < found.distilled.metrics["before_kl"]
    assert found.recovered.options["adapter"] == str(tmp_path / "run/distill/adapter")
    assert found.recovered.options["base"] == str(reference[0] / "model")
    # One step from the fine-tuned model loses next to nothing; a head of its own would start at chance.
    assert found.recovered.metrics["test_score"] > 0.6
    again = recover(given, stage, tmp_path / "run", SILENT, reference=reference[0])
    assert again.recovered.seconds == found.recovered.seconds
    with pytest.raises(RunFolderError, match="is a run of cola with softmax; rte with softmax is needed"):
        recover(replace(given, task="rte"), stage, tmp_path / "other", SILENT, reference=reference[0])
    with pytest.raises(ValueError, match="attention softmax is what is recovered"):
        recover(replace(given, attention="softmax"), stage, tmp_path / "other", SILENT)


@pytest.mark.parametrize("head", [pytest.param("classifier", marks=pytest.mark.slow), "cosine"])
def test_scores_of_pairs_are_learned(place, tmp_path, head):
    record = finetune(options(place, "stsb", attention="flexformer-n", head=head), tmp_path / "run", SILENT)
    assert record.metrics["test_score"] > 0.3
    assert record.metrics["test_score"] == pytest.approx(
        (record.metrics["test_pearson"] + record.metrics["test_spearman"]) / 2
    )
    if head == "cosine":
        assert type(flexformer.load(tmp_path / "run/model")).__name__ == "BertModel"


@pytest.mark.parametrize("attention", [pytest.param("softmax", marks=pytest.mark.slow), "hedgehog"])
def test_lora_trains_little_and_is_merged_into_the_model(place, tmp_path, attention):
    pytest.importorskip("peft")
    given = options(place, attention=attention, lora=LoraOptions(rank=4, alpha=32))
    started = FinetuneJob(given).model()
    trained = {name for name, parameter in started.named_parameters() if parameter.requires_grad}
    assert all("lora" in name or "kernel" in name or "classifier" in name for name in trained)
    assert any("kernel" in name for name in trained) == (attention == "hedgehog")
    record = finetune(given, tmp_path / "run", SILENT)
    assert score_of(tmp_path / "run", place) == pytest.approx(record.metrics["test_score"], abs=0.06)
    assert (tmp_path / "run/lora/adapter_model.safetensors").is_file()
    assert not any("lora" in name for name, _ in flexformer_or_plain(tmp_path / "run/model").named_parameters())


def flexformer_or_plain(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder)


class KilledError(BaseException):
    """Nobody catches it, as nobody catches a kill."""


@pytest.mark.parametrize("lora", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_that_was_killed_goes_on_to_the_same_weights(place, tmp_path, monkeypatch, lora):
    given = options(
        place,
        attention="flexformer-n",
        lora=LoraOptions(rank=lora),
        training=replace(TRAINING, steps=9, evaluate_every=4, log_every=4),
    )
    finetune(given, tmp_path / "whole", SILENT)
    original = TaskTrainer.training_step

    def dying(self, *arguments):
        if self.state.global_step == 6:
            raise KilledError
        return original(self, *arguments)

    monkeypatch.setattr(TaskTrainer, "training_step", dying)
    with pytest.raises(KilledError):
        finetune(given, tmp_path / "cut", SILENT)
    monkeypatch.setattr(TaskTrainer, "training_step", original)
    finetune(given, tmp_path / "cut", SILENT)
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


def test_portions_of_a_batch_add_up(place, tmp_path):
    base = tiny.save(tmp_path / "base", **tiny.NO_DROPOUT)
    steps = replace(TRAINING, steps=4, evaluate_every=4, log_every=1)
    logged = []
    for portions in (1, 2):
        given = options(place, "rte", base=base, training=replace(steps, accumulation=portions))
        finetune(given, tmp_path / str(portions), SILENT)
        log = read_log(tmp_path / str(portions) / "log.jsonl")
        logged.append([entry[name] for entry in log for name in ("loss", "grad_norm") if name in entry])
    assert logged[0] == pytest.approx(logged[1], rel=1e-4)


def test_held_out_examples_choose_the_weights_unless_dev_is_to(place):
    sizes = {
        select: [
            len(FinetuneJob(options(place, data=GlueOptions(str(place / "data"), select=select))).dataset(split))
            for split in ("train", "validation", "test")
        ]
        for select in ("holdout", "dev")
    }
    assert sizes["dev"] == [80, 80, 80]
    assert sizes["holdout"][2] == 80
    assert 72 <= sizes["holdout"][0] <= 74


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task": "colla"}, ValueError, "GLUE task 'colla' is unknown, did you mean 'cola'"),
        ({"head": "cosine"}, ValueError, "head cosine does not fit cola; it is for scores of pairs, stsb"),
        ({"attention": "longformer"}, ValueError, "attention 'longformer' cannot replace that of a pretrained model"),
        ({"adapter": "nowhere"}, ValueError, "attention softmax has no use for an adapter"),
        ({"kernel": KernelOptions(layers=[0])}, ValueError, r"attention softmax has no use for kernel .*layers=\[0\]"),
        ({"adapter": "nowhere", "attention": "hedgehog"}, OSError, "nowhere is not an adapter"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_read(place, changes, error, message):
    with pytest.raises(error, match=message):
        FinetuneJob(options(place, **changes))


@pytest.mark.parametrize("tied", [False, True])
def test_language_models_go_on_learning_to_write(tied, place, tmp_path):
    text = f"text:{tiny.corpus(tmp_path / 'corpus.txt', 200)}"
    base = tiny.save(tmp_path / "base", "llama", tie_word_embeddings=tied)
    given = options(place, text, attention="flexformer-n", training=replace(TRAINING, steps=30))
    given = replace(given, base=base)
    record = finetune(given, tmp_path / "run", SILENT)
    started = finetune(replace(given, training=replace(TRAINING, steps=1)), tmp_path / "one", SILENT)
    assert record.metrics["test_perplexity"] < 0.8 * started.metrics["test_perplexity"]
    model = flexformer.load(tmp_path / "run/model")
    job = TextFinetuneJob(given)
    assert job.dataset("test").rows != job.dataset("validation").rows
    found = fidelity(model, [job.collate(job.dataset("test").rows)])
    assert found["perplexity"] == pytest.approx(record.metrics["test_perplexity"], rel=1e-4)
    assert model.generate(torch.tensor([[1]]), max_new_tokens=5, do_sample=False).shape[1] > 1
    with pytest.raises(ValueError, match="is no language model"):
        finetune(replace(given, base=str(place / "bert")), tmp_path / "bert", SILENT)
    assert not (tmp_path / "bert" / "run.json").exists()


def test_sequences_that_have_no_positions_are_refused_before_anything_is_written(place, tmp_path):
    base = tiny.save(tmp_path / "short", max_position_embeddings=8)
    message = r"a sequence has \d+ tokens, .*short positions for 8; use data.max_length 8"
    with pytest.raises(ValueError, match=message):
        finetune(replace(options(place), base=base), tmp_path / "run", SILENT)
    assert not (tmp_path / "run" / "run.json").exists()


def test_positions_are_counted_as_the_model_counts_them():
    assert positions(transformers.RobertaConfig(max_position_embeddings=514)) == 512
    assert positions(transformers.Data2VecTextConfig(max_position_embeddings=514)) == 512
    assert positions(transformers.MPNetConfig(max_position_embeddings=514)) == 512
    assert longest_input(transformers.EsmConfig(position_embedding_type="rotary", pad_token_id=1)) is None
    assert positions(transformers.BertConfig()) == 512
    assert positions(transformers.GPT2Config()) == 1024
