"""What the encoder and its heads compute."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import OPTIONS, classifier, dual_encoder
from torch.nn import functional as F

from flexformer import ATTENTIONS, MultiheadAttention, kernels
from flexformer.models import Block, FeedForward
from flexformer.models.embeddings import grid, sinusoid
from flexformer.models.encoder import pool, without_masked

KERNEL_ATTENTIONS = [name for name in ATTENTIONS if name in kernels.names()]
PER_LENGTH = ["softmax", "longformer", *KERNEL_ATTENTIONS]
IDS = torch.arange(1, 37).reshape(2, 18) % 16 + 1


def seeded(model, *inputs, **named):
    torch.manual_seed(3)
    with torch.no_grad():
        return model.eval()(*inputs, **named).logits


def padded(ids: torch.Tensor, length: int, value: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """`ids` (B, T) with padding behind up to `length`, and the mask of what is real."""
    whole = F.pad(ids, (0, length - ids.shape[1]), value=value)
    return whole, (torch.arange(length) < ids.shape[1]).expand(len(ids), -1)


@pytest.mark.parametrize("pooling", ["cls", "mean", "first"])
@pytest.mark.parametrize("attention", PER_LENGTH)
def test_example_alone_or_padded_in_a_batch_gives_the_same_logits(attention, pooling):
    model = classifier(attention, pooling=pooling)
    alone = seeded(model, IDS[:1, :11])
    ids, mask = padded(IDS[:1, :11], 18)
    batch = torch.cat((ids, IDS[1:]))
    key_mask = torch.cat((mask, torch.ones(1, 18, dtype=torch.bool)))
    torch.testing.assert_close(seeded(model, batch, key_mask)[:1], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seeded(model, batch, key_mask)[1:], seeded(model, IDS[1:]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean", "first"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_what_padding_holds_changes_nothing(attention, pooling):
    model = classifier(attention, pooling=pooling)
    (zeros, mask), (others, _) = padded(IDS[:, :11], 24, 0), padded(IDS[:, :11], 24, 5)
    assert torch.equal(seeded(model, zeros, mask), seeded(model, others, mask))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_of_either_text_changes_nothing_in_a_pair(attention):
    model = dual_encoder(attention)
    (ids, mask), (others, _) = padded(IDS[:, :9], 16, 0), padded(IDS[:, :9], 16, 7)
    expected = seeded(model, ids, ids, mask, mask)
    assert torch.equal(seeded(model, others, ids, mask, mask), expected)
    assert torch.equal(seeded(model, ids, others, mask, mask), expected)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_parameter_learns(attention):
    model = classifier(attention, positions="learned", hidden_dropout=0.0)
    model(IDS, labels=torch.tensor([1, 4])).loss.backward()
    frozen = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # The class token is zero at first, and ReLU and hashing leave single units out; nothing else stays behind.
    assert not frozen


def test_masks_of_hugging_face_mean_the_same():
    model = classifier()
    ids, mask = padded(IDS[:, :11], 18)
    assert torch.equal(seeded(model, ids, attention_mask=mask.long()), seeded(model, ids, key_mask=mask))
    with pytest.raises(ValueError, match="key_mask and attention_mask both given"):
        model(ids, mask, mask)
    with pytest.raises(ValueError, match=r"mask has shape \(2, 11\); pass one of input_ids, \(2, 18\)"):
        model(ids, mask[:, :11])


@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_input_longer_than_the_model_reads_is_refused(positions):
    with pytest.raises(ValueError, match=r"input_ids has 41 tokens; this model reads 40 \(max_position_embeddings\)"):
        classifier(positions=positions)(torch.ones(1, 41, dtype=torch.long))


def test_tokens_that_are_not_in_the_vocabulary_are_named():
    with pytest.raises(IndexError, match=r"ids 3 to 17 are not all in 0\.\.16"):
        classifier()(torch.tensor([[3, 17]]))


@pytest.mark.parametrize("build", [classifier, dual_encoder])
def test_one_class_is_refused(build):
    with pytest.raises(ValueError, match="num_labels 1 leaves nothing to tell apart"):
        build(num_labels=1)


def test_loss_is_the_mean_cross_entropy_of_the_logits():
    model, labels = classifier().eval(), torch.tensor([1, 4])
    out = model(IDS, labels=labels)
    assert torch.equal(out.loss, F.cross_entropy(out.logits, labels))
    assert model(IDS).loss is None


def test_mean_pooling_counts_visible_positions_only():
    x = torch.arange(12.0).reshape(1, 4, 3)
    mask = torch.tensor([[False, True, True, False]])
    assert torch.equal(pool(x, mask, "mean"), x[:, 1:3].mean(1))
    assert torch.equal(pool(x, mask, "first"), x[:, 1])
    assert torch.equal(pool(x, torch.zeros_like(mask), "mean"), torch.zeros(1, 3))
    assert torch.equal(pool(x, None, "mean"), x.mean(1))


def test_dual_encoder_compares_by_sums_products_and_differences():
    model = dual_encoder().eval()
    x, y = model.encoder(IDS).pooled, model.encoder(IDS.flip(1)).pooled
    expected = model.head(torch.cat((x, y, x * y, x - y), dim=-1))
    torch.testing.assert_close(model(IDS, IDS.flip(1)).logits, expected)
    plain = dual_encoder(interaction="concatenation").eval()
    x, y = plain.encoder(IDS).pooled, plain.encoder(IDS.flip(1)).pooled
    torch.testing.assert_close(plain(IDS, IDS.flip(1)).logits, plain.head(torch.cat((x, y), dim=-1)))


def test_sinusoid_interleaves_sines_and_cosines():
    table = sinusoid(50, 8)
    for position, column in [(0, 0), (0, 1), (7, 0), (7, 1), (49, 6), (49, 7)]:
        angle = position / 10000 ** ((column - column % 2) / 8)
        expected = math.cos(angle) if column % 2 else math.sin(angle)
        assert table[position, column].item() == pytest.approx(expected, abs=1e-5)
    assert sinusoid(5, 7).shape == (5, 7)


def test_grid_has_the_row_in_its_first_half_and_the_column_in_its_second():
    table = grid(5, 16).reshape(5, 5, 16)
    assert torch.equal(table[:, :, :8], table[:, :1, :8].expand(5, 5, 8))
    assert torch.equal(table[:, :, 8:], table[:1, :, 8:].expand(5, 5, 8))
    assert torch.equal(table[:, 0, :8], table[0, :, 8:])
    rate = math.pi / 2 / 100 ** (3 / 4)  # the slowest of four
    assert table[3, 0, 3].item() == pytest.approx(math.sin(3 * rate), abs=1e-6)
    assert table[3, 0, 7].item() == pytest.approx(math.cos(3 * rate), abs=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_positions_on_a_grid_are_added_to_pixels_and_to_nothing_else(pooling):
    embeddings = classifier(positions="grid", pooling=pooling, max_position_embeddings=36).encoder.embeddings.eval()
    ids = torch.arange(36)[None] % 16
    found, _ = embeddings(ids, None)
    torch.testing.assert_close(found[:, -36:], embeddings.tokens(ids) + grid(6, found.shape[2]))
    if pooling == "cls":
        assert torch.equal(found[0, 0], embeddings.class_token)


def test_grid_of_what_is_no_square_is_refused():
    with pytest.raises(ValueError, match="max_position_embeddings 40 is not the number of pixels of a square"):
        classifier(positions="grid", max_position_embeddings=40)
    with pytest.raises(ValueError, match="hidden_size 18 is not divisible by 4"):
        classifier(positions="grid", max_position_embeddings=36, hidden_size=18)


@pytest.mark.parametrize("pooling", ["cls", "mean", "first"])
@pytest.mark.parametrize("attention", ["softmax", *(name for name in KERNEL_ATTENTIONS if name != "cosformer")])
def test_masked_tokens_can_be_left_out_without_a_change(attention, pooling):
    torch.manual_seed(0)
    mask = torch.rand(2, 18) < 0.4
    mask[0] = False
    whole, shorter = (classifier(attention, pooling=pooling, drop_masked=drop) for drop in (False, True))
    shorter.load_state_dict(whole.state_dict())
    torch.testing.assert_close(seeded(shorter, IDS, mask), seeded(whole, IDS, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_takes_what_is_left_when_masked_tokens_are_dropped(attention):
    model = classifier(attention, drop_masked=True, pooling="mean")
    mask = torch.arange(36).reshape(2, 18) % 3 == 0
    out = model.encoder(IDS, mask)
    assert out.last_hidden_state.shape[1] == 6
    out.pooled.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_visible_positions_keep_their_order_when_others_are_left_out():
    x = torch.arange(10.0).reshape(2, 5, 1)
    mask = torch.tensor([[False, True, False, True, True], [False, False, True, False, False]])
    found, left = without_masked(x, mask)
    assert found[0].flatten().tolist() == [1, 3, 4]
    assert left[0].all()
    assert found[1, 0].item() == 7
    assert left[1].tolist() == [True, False, False]
    nothing, empty = without_masked(x, torch.zeros_like(mask))
    assert nothing.shape == (2, 1, 1)
    assert not empty.any()


def test_embeddings_start_with_unit_variance_and_a_class_token_of_zero():
    embeddings = classifier(vocab_size=2000, positions="learned").encoder.embeddings
    assert embeddings.tokens.weight.std().item() == pytest.approx(1.0, abs=0.02)
    assert embeddings.positions.std().item() == pytest.approx(0.02, rel=0.1)
    assert not embeddings.class_token.any()


def test_projections_have_no_bias_and_start_xavier_uniform():
    attention = classifier().encoder.blocks[0].attention
    for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        assert linear.bias is None
        assert linear.weight.abs().max() <= (6 / sum(linear.weight.shape)) ** 0.5


@pytest.mark.parametrize("attention", ["flexformer-n", "performer", "reformer"])
def test_gradient_checkpointing_gives_the_same_gradients(attention):
    model = classifier(attention, hidden_dropout=0.0)
    labels = torch.tensor([1, 4])

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        model.train()(IDS, labels=labels).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients()
    model.gradient_checkpointing_enable()
    for a, b in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("attention", ["softmax", *KERNEL_ATTENTIONS])
def test_causal_blocks_go_on_from_their_states(attention):
    mix = MultiheadAttention(32, 2, attention, is_causal=True, bias=False, **OPTIONS.get(attention, {}))
    block = Block(mix, FeedForward(32, 48)).eval()
    x = torch.randn(2, 12, 32)
    whole = block(x)
    first, state = block(x[:, :7], return_state=True)
    second, _ = block(x[:, 7:], state=state, return_state=True)
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole, rtol=1e-4, atol=1e-5)
