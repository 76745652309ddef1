"""The shipped settings: every file is read, fits its task and says what it should."""

from __future__ import annotations

import pytest
import torch

from flexformer import tasks
from flexformer.experiments import presets
from flexformer.training import RunOptions, build_model, build_task

FILES = sorted(presets.FOLDER.glob("*.yaml"))
PAIRS = [(task, preset) for task in tasks.names() for preset in ("paper", "cpu", "smoke")]


def test_every_task_has_every_preset_and_no_file_is_left_over():
    language = {f"lm-{preset}" for preset in presets.names("lm")}
    assert {path.stem for path in FILES} == {f"{task}-{preset}" for task, preset in PAIRS} | language
    assert presets.names("listops") == ("cpu", "paper", "smoke")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_preset_says_in_a_comment_what_it_is(path):
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize(("task", "preset"), PAIRS)
def test_preset_builds_its_task_and_model(task, preset, tmp_path):
    options = presets.load(task, preset, data={"root": str(tmp_path)})
    assert (options.task, options.preset) == (task, preset)
    built = build_task(options)
    with torch.device("meta"):
        model = build_model(built, options)
    assert model.config.vocab_size == built.vocab_size
    assert model.config.max_position_embeddings == built.max_length


@pytest.mark.parametrize(
    ("task", "head_dim", "parameters"),
    [
        ("listops", 64, 8_948_746),
        ("text", 64, 3_486_722),
        ("retrieval", 64, 1_218_818),
        ("image", 16, 281_354),  # more than the original: attention as wide as the model, a token for padding
        ("pathfinder", 32, 148_994),
    ],
)
def test_paper_preset_has_the_papers_heads(task, head_dim, parameters):
    options = presets.load(task, "paper", attention="softmax")
    with torch.device("meta"):
        model = build_model(build_task(options), options)
    assert model.encoder.blocks[0].attention.head_dim == head_dim
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("task", "schedule", "warmup", "steps", "batch", "lr", "decay"),
    [
        ("listops", "rsqrt", 1000, 5000, 32, 0.05, 0.1),
        ("text", "rsqrt", 8000, 20000, 32, 0.05, 0.1),
        ("retrieval", "rsqrt", 8000, 5000, 32, 0.05, 0.1),
        ("image", "cosine", 175, 35000, 256, 5e-4, 0.0),
        ("pathfinder", "cosine", 312, 62400, 512, 1e-3, 0.0),
    ],
)
def test_paper_preset_trains_as_the_original_code(task, schedule, warmup, steps, batch, lr, decay):
    options = presets.load(task, "paper")
    assert (options.schedule.name, options.schedule.warmup) == (schedule, warmup)
    assert (options.training.steps, options.training.batch_size, options.training.select) == (steps, batch, "final")
    assert (options.optimizer.lr, options.optimizer.weight_decay) == (lr, decay)
    assert (options.optimizer.beta1, options.optimizer.beta2, options.optimizer.eps) == (0.9, 0.98, 1e-9)
    assert options.optimizer.clip == 0


@pytest.mark.parametrize("task", tasks.names())
def test_small_preset_keeps_the_shape_of_the_schedule(task):
    paper, cpu = presets.load(task, "paper"), presets.load(task, "cpu")
    # Articles was tried with several, see results/trials, and Retrieval follows it.
    assert cpu.schedule.name == ("constant" if task in ("retrieval", "articles") else paper.schedule.name)
    assert paper.optimizer.weight_decay == cpu.optimizer.weight_decay


def test_options_replace_single_values_of_a_preset():
    options = presets.load("text", "cpu", attention="softmax", model={"layers": 3}, data={"options": {"holdout": 0.2}})
    plain = presets.load("text", "cpu")
    assert isinstance(options, RunOptions)
    assert (options.attention, options.model.layers, options.model.width) == ("softmax", 3, plain.model.width)
    assert options.data.options["holdout"] == 0.2
    assert options.data.max_length == plain.data.max_length


@pytest.mark.parametrize(
    ("task", "preset", "message"),
    [
        ("lisops", "cpu", "task 'lisops' is unknown, did you mean 'listops'"),
        ("listops", "cp", "preset 'cp' is unknown to task listops, did you mean 'cpu'.*use one of cpu, paper, smoke"),
    ],
)
def test_unknown_names_get_a_hint(task, preset, message):
    with pytest.raises(ValueError, match=message):
        presets.path(task, preset)
