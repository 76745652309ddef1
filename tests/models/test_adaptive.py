"""The adaptive vocabulary: a distribution, the same by bands as in full, with no more computed than occurs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from flexformer.models import AdaptiveVocabulary


def by_the_formula(vocabulary: AdaptiveVocabulary, x: torch.Tensor) -> torch.Tensor:
    """(N, V) probabilities, written out."""
    first, *tails = vocabulary.bands
    head = F.softmax(torch.cat((x @ first.words.T, x @ vocabulary.clusters.T), -1), -1)
    parts = [head[:, : first.size]]
    for number, band in enumerate(tails):
        inside = F.softmax(x @ band.projection.weight @ band.words.T, -1)
        parts.append(inside * head[:, first.size + number, None])
    return torch.cat(parts, -1)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_probabilities_sum_to_one_and_the_loss_is_theirs(data):
    bands = data.draw(st.integers(1, 3))
    size = data.draw(st.integers(bands + 1, 60))
    cutoffs = sorted(data.draw(st.sets(st.integers(1, size - 1), min_size=bands, max_size=bands)))
    vocabulary = AdaptiveVocabulary(size, 4**bands, cutoffs).double()
    x = torch.randn(11, 4**bands, dtype=torch.double)
    targets = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=11, max_size=11)))
    logs = vocabulary.scores(x)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(11, dtype=torch.double))
    torch.testing.assert_close(logs.exp(), by_the_formula(vocabulary, x))
    torch.testing.assert_close(vocabulary.surprise(x, targets), -logs[torch.arange(11), targets])


def test_word_goes_in_as_its_bands_projection_says():
    vocabulary = AdaptiveVocabulary(50, 16, [10, 30])
    ids = torch.tensor([[3, 12, 49], [30, 9, 10]])
    found = vocabulary.embed(ids)
    for row, column in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]:
        word = int(ids[row, column])
        band = vocabulary.bands[(word >= 10) + (word >= 30)]
        expected = band.projection.weight @ band.words[word - band.start] * 4
        torch.testing.assert_close(found[row, column], expected)


def test_nothing_to_embed_is_nothing():
    assert AdaptiveVocabulary(50, 16, [10]).embed(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 16)


def test_vectors_start_with_unit_variance_in_every_band():
    vocabulary = AdaptiveVocabulary(9000, 256, [3000, 6000])
    for start in (0, 3000, 6000):
        variance = vocabulary.embed(torch.arange(start, start + 3000)).var().item()
        assert 0.8 < variance < 2.2


def test_padding_starts_at_zero():
    vocabulary = AdaptiveVocabulary(50, 16, [10, 30], padding=12)
    assert vocabulary.embed(torch.tensor([12])).eq(0).all()
    assert vocabulary.embed(torch.tensor([11, 13])).ne(0).all()


def test_bands_that_do_not_occur_are_not_computed(monkeypatch):
    vocabulary = AdaptiveVocabulary(50, 16, [10, 30])
    rows = []
    for band in vocabulary.bands:

        def logits(x, dropout, band=band, original=band.logits):
            rows.append((band.start, len(x)))
            return original(x, dropout)

        monkeypatch.setattr(band, "logits", logits)
    vocabulary.surprise(torch.randn(6, 16), torch.tensor([1, 2, 9, 0, 5, 5]))
    assert rows == []
    vocabulary.surprise(torch.randn(6, 16), torch.tensor([1, 2, 9, 40, 5, 49]))
    assert rows == [(30, 2)]


def test_loss_forms_a_fraction_of_the_logits_of_a_full_softmax():
    """Counted in the largest tensors that autograd keeps, as WikiText's words are distributed."""
    size, width, count = 30_000, 64, 256
    vocabulary = AdaptiveVocabulary(size, width, [2000, 8000])
    words = torch.distributions.Categorical(1.0 / torch.arange(10.0, size + 10.0)).sample((count,))
    x = torch.randn(count, width, requires_grad=True)

    def kept(loss) -> int:
        total = 0

        def pack(tensor):
            nonlocal total
            total += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss()
        return total

    full = kept(lambda: F.cross_entropy(vocabulary.scores(x), words))
    assert kept(lambda: vocabulary.surprise(x, words)) < full / 3


def test_word_outside_the_vocabulary_is_refused():
    vocabulary = AdaptiveVocabulary(50, 16, [10, 30])
    for use in (vocabulary.embed, lambda ids: vocabulary.surprise(torch.randn(2, 16), ids)):
        with pytest.raises(IndexError, match=r"ids 3 to 50 are not all in 0\.\.49"):
            use(torch.tensor([3, 50]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((50, 16, [30, 10]), r"cutoffs \[30, 10\] do not cut 50 words into bands"),
        ((50, 16, [50]), r"cutoffs \[50\] do not cut 50 words into bands"),
        ((50, 16, []), r"cutoffs \[\] do not cut"),
        ((50, 24, [10, 30]), r"width 24 is not divisible by 16 \(factor 4 to the power of 2 cutoffs\)"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveVocabulary(*arguments)
