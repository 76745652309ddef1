"""`flexformer inspect`: what it draws and says is what is in the checkpoint."""

import json
import math

import pytest
import torch
from rich.console import Console

import flexformer
from flexformer import kernels
from flexformer.cli import main as frame
from flexformer.inspection import CheckpointError, load
from flexformer.inspection.attention import read
from flexformer.inspection.spectrum import curves, density, principal_directions, radii, softmax_curve
from flexformer.inspection.summary import heads
from flexformer.inspection.transfer import differences
from flexformer.models import CausalLM, CausalLMConfig
from flexformer.tasks.tokenizer import byte_tokenizer
from flexformer.training import (
    LanguageDataOptions,
    LanguageJob,
    LanguageModelOptions,
    LanguageOptions,
    OptimizerOptions,
    TrainingOptions,
    run_job,
)

TEXT = "def main(arguments):"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text("for i in range(10):\n    print(i)\n" * 400)
    return folder


def trained(corpus, output, attention="flexformer-n", lr=5e-3, seed=3):
    options = LanguageOptions(
        attention=attention,
        seed=seed,
        data=LanguageDataOptions(source=str(corpus / "text.txt"), unit="byte", length=32, root=str(corpus)),
        model=LanguageModelOptions(layers=2, heads=2, width=16, feed_forward=32, dropout=0.0),
        optimizer=OptimizerOptions(lr=lr),
        training=TrainingOptions(steps=4, batch_size=4, evaluate_every=4, tensorboard=False),
    )
    run_job(LanguageJob(options), output, Console(quiet=True))
    return output


@pytest.fixture(scope="module")
def run_folder(corpus, tmp_path_factory):
    return trained(corpus, tmp_path_factory.mktemp("runs") / "n")


@pytest.fixture
def inspect(capsys):
    def inspect(*arguments):
        status = frame.main(["inspect", *map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out, err

    return inspect


def test_every_head_is_summed_up_and_drawn(inspect, run_folder, tmp_path):
    status, out, err = inspect(run_folder, "--text", TEXT, "--output", tmp_path / "new")
    assert (status, err) == (0, "")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    pictures = {
        f"{name}.{kind}" for name in ("spectra", "curves", "attention-0", "attention-1") for kind in ("png", "svg")
    }
    assert names == pictures | {"inspection.json"}
    assert "KL to" in out
    found = json.loads((tmp_path / "new" / "inspection.json").read_text())
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(math.isfinite(value) for head in found["heads"] for value in head["attended"].values())


def test_json_is_all_that_is_printed(inspect, run_folder, tmp_path):
    status, out, err = inspect(run_folder, "--json", "--output", tmp_path)
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "inspection.json").read_text())


@pytest.mark.parametrize("attention", ["flexformer-n", "flexformer-s", "flexformer-c"])
def test_the_start_is_the_one_training_began_with(corpus, tmp_path, attention):
    checkpoint = load(trained(corpus, tmp_path / "run", attention, lr=1e-12))
    for layer, kernel in checkpoint.kernels.items():
        start = checkpoint.starts[layer].state_dict()
        for name, value in kernel.state_dict().items():
            torch.testing.assert_close(value, start[name], rtol=1e-6, atol=1e-7)


def test_training_moves_frequencies_from_their_start(run_folder):
    assert all(0 < head.moved < 1 for head in heads(load(run_folder)))


def test_without_a_record_the_start_is_said_to_be_unknown(inspect, tmp_path):
    model = CausalLM(CausalLMConfig(vocab_size=256, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                    num_attention_heads=2, attention="flexformer-n"))  # fmt: skip
    model.save_pretrained(tmp_path / "bare")
    byte_tokenizer().save_pretrained(tmp_path / "bare")
    status, out, _ = inspect(tmp_path / "bare", "--output", tmp_path / "out")
    assert status == 0
    assert "The start is not known: no run.json" in out


def test_maps_are_what_the_model_computes(run_folder):
    checkpoint = load(run_folder)
    reading = read(checkpoint, TEXT, 16)
    assert len(reading.tokens) == 16
    for layer, seen in reading.layers.items():
        assert seen.kernel.triu(1).abs().max() == 0
        assert seen.softmax.triu(1).abs().max() == 0
        torch.testing.assert_close(seen.softmax.sum(-1), torch.ones_like(seen.softmax.sum(-1)))
        assert checkpoint.kernels[layer].num_heads == len(seen.findings)
        negative = (seen.kernel < 0).sum((1, 2)).float() / (16 * 17 / 2)
        found = torch.tensor([finding.negative_weights for finding in seen.findings])
        torch.testing.assert_close(negative, found)


def test_a_checkpoint_does_not_differ_from_itself_and_does_from_others(corpus, run_folder, tmp_path):
    first, other = load(run_folder), load(trained(corpus, tmp_path / "other", seed=4))
    for same in differences(first, load(run_folder)):
        assert same.cosine == pytest.approx(1.0)
        assert (same.spectrum_distance, same.curve_distance, same.norm_weight_change) == pytest.approx((0.0, 0.0, 0.0))
    assert all(abs(each.cosine) < 0.5 and each.curve_distance > 0 for each in differences(first, other))


def test_two_checkpoints_are_compared_by_the_command(inspect, run_folder, tmp_path):
    status, out, _ = inspect(run_folder, "--against", run_folder, "--output", tmp_path)
    assert status == 0
    assert "cosine of" in out
    assert len(json.loads((tmp_path / "inspection.json").read_text())["differences"]) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "nowhere", "is not a folder"),
        (lambda path: path, "holds no model and no adapter"),
    ],
)
def test_what_is_no_checkpoint_is_one_line(inspect, tmp_path, make, message):
    status, _, err = inspect(make(tmp_path), "--output", tmp_path / "out")
    assert status == 1
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_softmax_has_no_kernel_to_look_at(corpus, tmp_path):
    with pytest.raises(CheckpointError, match="attends with softmax"):
        load(trained(corpus, tmp_path / "run", "softmax"))


def test_kernels_of_different_attentions_are_not_compared(corpus, run_folder, tmp_path):
    with pytest.raises(CheckpointError, match="flexformer-s kernels"):
        differences(load(run_folder), load(trained(corpus, tmp_path / "run", "flexformer-s")))


def test_a_stationary_kernel_started_as_softmax_has_its_curve():
    kernel = kernels.build("flexformer-s", 1, 8, num_frequencies=4096, softmax_start=True)
    at = radii(8**-0.5)
    found = curves(kernel, principal_directions(kernel, count=1), at)[0, 0]
    assert (found - softmax_curve(at, 8**-0.5)).abs().max() < 0.06


@pytest.mark.parametrize("name", kernels.names())
def test_curves_of_every_kernel_begin_at_one_and_never_exceed_it(name):
    kernel = kernels.build(name, 2, 8).eval()
    directions = torch.nn.functional.normalize(torch.randn(2, 1, 8), dim=-1)
    found = curves(kernel, directions, radii(0.35), origin=torch.randn(2, 8))
    torch.testing.assert_close(found[..., 0], torch.ones(2, 1))
    assert found.abs().max() < 1 + 1e-5


def test_a_density_is_one_in_all():
    points = torch.linspace(0, 8, 801)
    found = density(torch.randn(500).abs() + 1, points)
    assert float(torch.trapezoid(found, points)) == pytest.approx(1.0, abs=1e-3)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A tiny pretrained model, converted."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    byte_tokenizer().save_pretrained(folder / "base")
    model = LlamaForCausalLM.from_pretrained(folder / "base")
    flexformer.convert(model, "flexformer-n")
    flexformer.save_adapter(model, folder / "adapter")
    return folder / "adapter"


def test_an_adapter_is_looked_at_beside_its_base_model(inspect, adapter, tmp_path):
    status, out, err = inspect(adapter, "--text", TEXT, "--output", tmp_path)
    assert (status, err) == (0, "")
    assert "The start is not known" in out
    found = json.loads((tmp_path / "inspection.json").read_text())
    assert len(found["heads"]) == 4  # two kernels a layer, which two query heads share
    assert (tmp_path / "attention-1.svg").exists()


def test_an_adapter_needs_no_base_model_unless_there_is_a_text(adapter):
    base = adapter.parent / "base"
    base.rename(adapter.parent / "gone")
    try:
        checkpoint = load(adapter)
        assert len(heads(checkpoint)) == 4
        with pytest.raises((OSError, ValueError)):
            read(checkpoint, TEXT, 16)
    finally:
        (adapter.parent / "gone").rename(base)
