"""One module for every attention."""

import copy

import pytest
import torch
from torch import nn

import flexformer
from flexformer import ATTENTIONS, MultiheadAttention, kernels

CAUSAL = ("softmax", *kernels.names())
RANDOM = ("reformer", "skyformer")
SELF_ONLY = ("reformer", "longformer", "bigbird")


def module(attention, is_causal=False, **options):
    return MultiheadAttention(32, 4, attention=attention, is_causal=is_causal, **options).eval()


def seeded(function, *arguments, **options):
    torch.manual_seed(3)
    return function(*arguments, **options)


def test_the_names_are_the_papers_and_one_more():
    assert ATTENTIONS == (
        "softmax", "flexformer-s", "flexformer-n", "linear", "performer", "rfa", "cosformer", "hedgehog",
        "polaformer", "reformer", "longformer", "bigbird", "skyformer", "flexformer-c",
    )  # fmt: skip


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_name_builds_without_options_and_trains(attention):
    attn = MultiheadAttention(32, 4, attention=attention)
    x = torch.randn(2, 70, 32, requires_grad=True)
    y = attn(x)
    assert y.shape == x.shape
    y.square().mean().backward()
    assert torch.isfinite(x.grad).all()
    for name, parameter in attn.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_changes_no_visible_output(attention):
    attn = module(attention)
    x = torch.randn(2, 70, 32)
    key_mask = torch.ones(2, 70, dtype=torch.bool)
    key_mask[1, 50:] = False
    other = x.clone()
    other[1, 50:] = 1e6
    before, after = seeded(attn, x, key_mask), seeded(attn, other, key_mask)
    torch.testing.assert_close(before[key_mask], after[key_mask], rtol=0, atol=0)


@pytest.mark.parametrize("attention", [name for name in ATTENTIONS if name not in ("reformer", "bigbird", "skyformer")])
def test_an_example_alone_equals_the_same_padded_in_a_batch(attention):
    attn = module(attention).double()
    x = torch.randn(2, 70, 32, dtype=torch.float64)
    key_mask = torch.ones(2, 70, dtype=torch.bool)
    key_mask[1, 50:] = False
    torch.testing.assert_close(attn(x, key_mask)[1, :50], attn(x[1:, :50])[0])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_sample_with_nothing_to_see_gets_the_output_bias(attention):
    attn = module(attention)
    nn.init.normal_(attn.o_proj.bias)
    out = attn(torch.randn(2, 70, 32), torch.zeros(2, 70, dtype=torch.bool))
    torch.testing.assert_close(out, attn.o_proj.bias.expand_as(out))


@pytest.mark.parametrize("attention", CAUSAL)
def test_a_causal_module_does_not_see_the_future(attention):
    attn = module(attention, is_causal=True)
    x = torch.randn(2, 70, 32)
    other = x.clone()
    other[:, 40:] += 100.0
    assert torch.equal(attn(x)[:, :40], attn(other)[:, :40])


@pytest.mark.parametrize("attention", [name for name in ATTENTIONS if name not in CAUSAL])
def test_an_attention_without_causal_form_is_refused_when_built(attention):
    with pytest.raises(ValueError, match=f"attention '{attention}' has no causal form"):
        module(attention, is_causal=True)


@pytest.mark.parametrize(("attention", "is_causal"), [("longformer", False), ("linear", True)])
def test_a_width_of_context_is_refused_where_there_is_no_cross_attention(attention, is_causal):
    with pytest.raises(ValueError, match="context_dim 24 is for cross attention"):
        module(attention, is_causal=is_causal, context_dim=24)


@pytest.mark.parametrize("attention", CAUSAL)
def test_decoding_token_by_token_equals_the_whole(attention):
    attn = module(attention, is_causal=True).double()
    x = torch.randn(2, 20, 32, dtype=torch.float64)
    key_mask = torch.ones(2, 20, dtype=torch.bool)
    key_mask[0, :6] = False
    expected = attn(x, key_mask)
    state, outs = None, []
    for piece, mask in zip(x.split([7, 1, 1, 5, 6], 1), key_mask.split([7, 1, 1, 5, 6], 1), strict=True):
        out, state = attn(piece, mask, state=state, return_state=True)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), expected)


@pytest.mark.parametrize("attention", [name for name in ATTENTIONS if name not in CAUSAL])
def test_an_attention_without_state_says_so(attention):
    with pytest.raises(ValueError, match=f"attention '{attention}' has no state"):
        module(attention)(torch.randn(1, 5, 32), return_state=True)


@pytest.mark.parametrize("attention", [name for name in ATTENTIONS if name not in SELF_ONLY])
def test_cross_attention_sees_the_context_alone(attention):
    attn = module(attention, context_dim=24)
    x, context = torch.randn(2, 9, 32), torch.randn(2, 13, 24)
    key_mask = torch.ones(2, 13, dtype=torch.bool)
    key_mask[0, 10:] = False
    out = seeded(attn, x, key_mask, context)
    assert out.shape == x.shape
    changed = context.clone()
    changed[0, 10:] = 1e6
    torch.testing.assert_close(seeded(attn, x, key_mask, changed), out, rtol=0, atol=0)
    assert not torch.allclose(seeded(attn, x, key_mask, context + 1), out)


@pytest.mark.parametrize("attention", SELF_ONLY)
def test_an_attention_for_one_sequence_refuses_a_context(attention):
    with pytest.raises(ValueError, match=f"attention '{attention}' is for self-attention only"):
        module(attention)(torch.randn(1, 5, 32), context=torch.randn(1, 5, 32))


@pytest.mark.parametrize("attention", CAUSAL)
def test_a_context_can_be_summarised_once_and_read_many_times(attention):
    attn = module(attention).double()
    x, context = torch.randn(2, 9, 32, dtype=torch.float64), torch.randn(2, 13, 32, dtype=torch.float64)
    expected, state = attn(x, context=context, return_state=True)
    torch.testing.assert_close(attn(x, context=context[:, :0], state=state), expected)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_grouped_heads_equal_repeated_ones(attention):
    grouped = MultiheadAttention(32, 4, attention=attention, num_kv_heads=2).eval().double()
    full = MultiheadAttention(32, 4, attention=attention).eval().double()
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            ours, theirs = getattr(grouped, name), getattr(full, name)
            if ours is not None:
                repeats = theirs.weight.shape[0] // ours.weight.shape[0]
                theirs.weight.copy_(repeat_heads(ours.weight, repeats))
                theirs.bias.copy_(repeat_heads(ours.bias, repeats))
        state = grouped.mechanism.state_dict()
        for name, tensor in full.mechanism.state_dict().items():
            repeats = tensor.shape[0] // state[name].shape[0] if tensor.dim() else 1
            tensor.copy_(state[name].repeat_interleave(repeats, 0) if repeats > 1 else state[name])
    x = torch.randn(2, 70, 32, dtype=torch.float64)
    torch.testing.assert_close(seeded(grouped, x), seeded(full, x))


def repeat_heads(x, repeats):
    return x.unflatten(0, (-1, 8)).repeat_interleave(repeats, 0).flatten(0, 1)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_works_as_weights_and_as_autocast(attention, dtype):
    x = torch.randn(2, 70, 32)
    attn = module(attention)
    expected = seeded(attn, x)
    with torch.autocast("cpu", dtype=dtype):
        out = seeded(attn, x)
    assert out.dtype == dtype
    half = seeded(copy.deepcopy(attn).to(dtype), x.to(dtype))
    assert half.dtype == dtype
    if attention not in RANDOM:  # there rounding can change a bucket
        torch.testing.assert_close(out.float(), expected, atol=0.1, rtol=0.1)
        torch.testing.assert_close(half.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_saved_module_loads_into_a_new_one(attention):
    a, b = module(attention), module(attention)
    b.load_state_dict(a.state_dict())
    x = torch.randn(1, 70, 32)
    torch.testing.assert_close(seeded(a, x), seeded(b, x), rtol=0, atol=0)


def test_softmax_equals_the_formula():
    attn = module("softmax").double()
    q, k, v = torch.randn(3, 2, 4, 9, 8, dtype=torch.float64)
    out = attn.mechanism(q, k, v, x=torch.empty(0))
    torch.testing.assert_close(out, (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [30, 300])
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e4, 6e4, 1e19])
def test_softmax_makes_no_nan_of_any_magnitude(dtype, magnitude, length):
    mechanism = module("softmax").mechanism
    half = dtype == torch.float16  # whose gradients cannot hold more
    magnitude, largest = (min(magnitude, 1e4), 1e4) if half else (magnitude, 3 * magnitude)
    leaves = [torch.randn(2, 4, length, 8) * size for size in (magnitude, magnitude, min(magnitude, 1e4))]
    leaves = [x.clamp(-largest, largest).to(dtype).requires_grad_() for x in leaves]
    key_mask = torch.rand(2, length) > 0.5
    key_mask[0] = False
    for is_causal in (False, True):
        plain = mechanism(*leaves, x=torch.empty(0), is_causal=is_causal)
        assert torch.isfinite(plain).all()
        for gradient in torch.autograd.grad(plain, leaves, torch.full_like(plain, 1e-3)):
            assert torch.isfinite(gradient).all()
        out = mechanism(*leaves, x=torch.empty(0), key_mask=key_mask, is_causal=is_causal)
        assert torch.isfinite(out).all()
        assert not out[0].any()
        for gradient in torch.autograd.grad(out, leaves, torch.full_like(out, 1e-3)):
            assert torch.isfinite(gradient).all()
            assert not gradient[0].any()


@pytest.mark.parametrize("attention", ["flexformer-n", "polaformer", "softmax", "longformer", "skyformer"])
def test_a_module_compiles_without_graph_breaks(attention):
    torch.compiler.reset()
    attn = module(attention)
    x = torch.randn(2, 70, 32)
    compiled = torch.compile(attn, fullgraph=True, backend="eager")
    torch.testing.assert_close(seeded(compiled, x), seeded(attn, x), rtol=1e-5, atol=1e-5)
    torch.compiler.reset()


@pytest.mark.parametrize("kdim", [None, 24])
@pytest.mark.parametrize("bias", [True, False])
def test_from_torch_keeps_the_projections(bias, kdim):
    theirs = nn.MultiheadAttention(32, 4, bias=bias, kdim=kdim, vdim=kdim, batch_first=True, dropout=0.1).eval()
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
    ours = MultiheadAttention.from_torch(theirs, attention="softmax")
    x, context = torch.randn(2, 9, 32), torch.randn(2, 13, kdim or 32)
    key_mask = torch.ones(2, 13, dtype=torch.bool)
    key_mask[0, 10:] = False
    expected, _ = theirs(x, context, context, key_padding_mask=~key_mask)
    torch.testing.assert_close(ours(x, key_mask, context), expected)
    assert ours.dropout == 0.1
    assert not ours.training


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_from_torch_builds_every_attention(attention):
    theirs = nn.MultiheadAttention(32, 4, dtype=torch.float64)
    ours = MultiheadAttention.from_torch(theirs, attention=attention)
    assert ours(torch.randn(1, 9, 32, dtype=torch.float64)).dtype == torch.float64


def test_from_torch_refuses_what_has_no_counterpart():
    with pytest.raises(ValueError, match="add_bias_kv or add_zero_attn"):
        MultiheadAttention.from_torch(nn.MultiheadAttention(32, 4, add_bias_kv=True))
    with pytest.raises(ValueError, match="kdim 8 and vdim 16"):
        MultiheadAttention.from_torch(nn.MultiheadAttention(32, 4, kdim=8, vdim=16))
    with pytest.raises(TypeError, match="option 'num_kv_heads' comes from the module"):
        MultiheadAttention.from_torch(nn.MultiheadAttention(32, 4), num_kv_heads=2)
    with pytest.raises(TypeError, match="module is a Linear"):
        MultiheadAttention.from_torch(nn.Linear(3, 3))


def test_polaformer_follows_the_formula():
    attn = module("polaformer").double()
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    q, k, v = (attn._heads(p(x), 4) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
    scale = torch.nn.functional.softplus(torch.zeros(()))

    def polarities(x):
        return (x / scale).relu() ** 3, (-x / scale).relu() ** 3

    (qp, qn), (kp, kn) = polarities(q), polarities(k)
    keys = torch.cat((kp, kn), -1).transpose(-1, -2)
    halves = []
    for queries, values in ((torch.cat((qp, qn), -1), v[..., :4]), (torch.cat((qn, qp), -1), v[..., 4:])):
        weights = queries @ keys
        halves.append(weights @ values / weights.sum(-1, keepdim=True))
    mixed = torch.cat(halves, -1).transpose(1, 2).flatten(2) * (x @ attn.mechanism.gate.weight.T)
    torch.testing.assert_close(attn(x), attn.o_proj(mixed), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", ["rfa", "performer"])
def test_random_features_stay_the_same_while_a_state_is_carried(attention):
    attn = MultiheadAttention(32, 4, attention=attention, is_causal=True, redraw_interval=1)
    x = torch.randn(1, 20, 32)
    first, state = attn(x[:, :10], return_state=True)
    second = attn(x[:, 10:], state=state)
    torch.testing.assert_close(torch.cat((first, second), 1), attn.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", kernels.names())
def test_packed_sequences_equal_separate_ones(attention):
    for is_causal in (False, True):
        attn = module(attention, is_causal).double()
        x = torch.randn(1, 50, 32, dtype=torch.float64)
        packed = attn(x, cu_seqlens=torch.tensor([0, 20, 50]))
        torch.testing.assert_close(packed, torch.cat((attn(x[:, :20]), attn(x[:, 20:])), 1))


@pytest.mark.parametrize("attention", [name for name in ATTENTIONS if name not in kernels.names()])
def test_an_attention_without_packed_form_says_so(attention):
    with pytest.raises(ValueError, match=f"attention '{attention}' has no packed form"):
        module(attention)(torch.randn(1, 5, 32), cu_seqlens=torch.tensor([0, 5]))


@pytest.mark.parametrize("attention", CAUSAL)
def test_cross_attention_can_go_query_by_query(attention):
    attn = module(attention).double()
    x, context = torch.randn(1, 6, 32, dtype=torch.float64), torch.randn(1, 13, 32, dtype=torch.float64)
    expected, state = attn(x, context=context, return_state=True)
    for t in range(6):
        out = attn(x[:, t : t + 1], context=context[:, :0], state=state, query_start=t)
        torch.testing.assert_close(out, expected[:, t : t + 1])


@pytest.mark.parametrize("attention", kernels.names())
def test_self_attention_resumed_from_a_state_knows_its_positions(attention):
    attn = module(attention).double()
    x = torch.randn(1, 20, 32, dtype=torch.float64)
    _, state = attn(x[:, :12], return_state=True)
    torch.testing.assert_close(attn(x[:, 12:], state=state), attn(x)[:, 12:])


def test_random_kernels_redraw_while_training_only():
    attn = MultiheadAttention(32, 4, attention="rfa")
    x = torch.randn(1, 9, 32)
    assert not torch.equal(attn(x), attn(x))
    attn.eval()
    assert torch.equal(attn(x), attn(x))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_evaluation_repeats_itself_but_for_attentions_that_draw_at_every_forward(attention):
    attn = module(attention)
    x = torch.randn(2, 200, 32)
    assert torch.equal(attn(x), attn(x)) == (attention not in RANDOM)
    assert torch.equal(seeded(attn, x), seeded(attn, x))


def test_dropout_acts_on_softmax_weights_while_training():
    attn = MultiheadAttention(32, 4, attention="softmax", dropout=0.5)
    x = torch.randn(1, 9, 32)
    assert not torch.equal(attn(x), attn(x))
    assert torch.equal(attn.eval()(x), attn(x))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_module_can_be_built_and_run_without_memory(attention):
    attn = MultiheadAttention(32, 4, attention=attention, device="meta")
    if attention != "bigbird":  # draws its table of blocks when it first runs
        assert attn(torch.empty(2, 70, 32, device="meta")).shape == (2, 70, 32)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_module_can_be_started_anew(attention):
    attn = MultiheadAttention(32, 4, attention=attention, dtype=torch.float64)
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.fill_(7.0)
    attn.reset_parameters()
    assert not any((parameter == 7.0).any() for parameter in attn.parameters())
    assert attn(torch.randn(1, 9, 32, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_module_started_anew_is_drawn_as_a_new_one(attention):
    attn = MultiheadAttention(64, 4, attention=attention)
    spread = {name: p.std() for name, p in attn.named_parameters() if p.numel() > 1000}
    attn.reset_parameters()
    for name, parameter in attn.named_parameters():
        if name in spread:
            torch.testing.assert_close(parameter.std(), spread[name], rtol=0.1, atol=1e-6)


def test_random_blocks_are_started_anew_and_have_a_shape_on_meta():
    attn = MultiheadAttention(32, 4, attention="bigbird", block_size=4)
    first = attn.mechanism.block_table(30, torch.device("cpu"))
    attn.reset_parameters()
    assert not torch.equal(attn.mechanism.block_table(30, torch.device("cpu")), first)
    assert attn.to("meta")(torch.empty(2, 100, 32, device="meta")).shape == (2, 100, 32)


@pytest.mark.parametrize("attention", ["softmax", "flexformer-n"])
def test_a_mask_elsewhere_is_named(attention):
    with pytest.raises(ValueError, match="key_mask is on meta but x on cpu"):
        module(attention)(torch.randn(1, 3, 32), key_mask=torch.ones(1, 3, dtype=torch.bool, device="meta"))


def test_overwriting_a_state_needs_one():
    with pytest.raises(ValueError, match="update_state needs an initial_state"):
        module("flexformer-n", is_causal=True)(torch.randn(1, 3, 32), update_state=True)


def test_a_module_shows_the_health_of_its_kernel():
    attn = module("flexformer-n", is_causal=True)
    found = attn.statistics(torch.randn(2, 70, 32))
    assert found.negative_weights < 0.1
    with pytest.raises(ValueError, match="attention 'softmax' has no kernel"):
        module("softmax").statistics(torch.randn(2, 70, 32))


def test_softmax_keeps_no_mask_until_one_is_given():
    attn = module("softmax", is_causal=True).double()
    x = torch.randn(1, 20, 32, dtype=torch.float64)
    first, state = attn(x[:, :10], return_state=True)
    assert state.key_mask is None
    key_mask = torch.ones(1, 10, dtype=torch.bool)
    key_mask[0, 3] = False
    second, state = attn(x[:, 10:], key_mask, state=state, return_state=True)
    whole = torch.cat((torch.ones(1, 10, dtype=torch.bool), key_mask), 1)
    torch.testing.assert_close(torch.cat((first, second), 1), attn(x, whole))
    with pytest.raises(ValueError, match="state holds keys"):
        attn(torch.randn(2, 1, 32, dtype=torch.float64), state=state)


def test_the_repr_tells_the_story():
    text = repr(MultiheadAttention(512, 8, attention="flexformer-n", is_causal=True, num_kv_heads=2))
    assert "512 wide, 8 heads of 64 on 2 key heads, flexformer-n, causal" in text
    assert "cost linear in length, state of 2 x 128 x 64" in text


def test_kernel_parameters_never_decay():
    model = nn.Sequential(nn.Linear(32, 32), MultiheadAttention(32, 4, attention="flexformer-n"))
    decayed, kept = flexformer.parameter_groups(model, weight_decay=0.1)
    kernel = model[1].mechanism.kernel
    assert {id(p) for p in kept["params"]} == {id(p) for p in kernel.parameters()}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))
    torch.optim.AdamW([decayed, kept])
    with pytest.raises(ValueError, match="weight_decay -1 is negative"):
        flexformer.parameter_groups(model, weight_decay=-1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"attention": "flexformer"}, ValueError, "attention 'flexformer' is unknown; use one of softmax"),
        ({"embed_dim": 30}, ValueError, r"embed_dim 30 is not divisible by 4 \(num_heads\)"),
        ({"embed_dim": 0}, ValueError, "embed_dim 0 is too small"),
        ({"num_heads": -4}, ValueError, "num_heads -4 is too small"),
        ({"num_heads": 4.0}, TypeError, "num_heads 4.0 is not an integer"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads 3 does not divide num_heads 4"),
        ({"dropout": 1.5}, ValueError, "dropout 1.5 is not a probability"),
        ({"frequencies": 3}, TypeError, "option 'frequencies' is unknown to attention 'flexformer-n'"),
        ({"attention": "softmax", "floor": 0.1}, TypeError, "unknown to attention 'softmax'; its options are: none"),
        ({"attention": "polaformer", "embed_dim": 12}, ValueError, "head_dim 3 is odd"),
        ({"attention": ["softmax"]}, TypeError, "is not a name; use one of softmax"),
        ({"is_causal": "no"}, TypeError, "is_causal 'no' is not a bool"),
        ({"dropout": "a"}, TypeError, "dropout 'a' is not a number"),
        ({"attention": "longformer", "num_global": 1.5}, TypeError, "num_global 1.5 is not an integer"),
        ({"attention": "bigbird", "num_random_blocks": 2.5}, TypeError, "num_random_blocks 2.5 is not an integer"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        MultiheadAttention(**({"embed_dim": 32, "num_heads": 4} | arguments))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": torch.zeros(5, 32)}, ValueError, r"x has shape \(5, 32\); pass \(B, T, E\)"),
        ({"x": torch.zeros(1, 5, 16)}, ValueError, "embed_dim = 32"),
        ({"key_mask": torch.ones(1, 4).bool()}, ValueError, r"key_mask has shape \(1, 4\); pass \(B, S\) = \(1, 5\)"),
        ({"key_mask": torch.ones(1, 5)}, TypeError, "key_mask has dtype torch.float32"),
        ({"context": torch.zeros(2, 5, 32)}, ValueError, r"context has shape \(2, 5, 32\)"),
        ({"state": 3}, TypeError, "initial_state is a int"),
        ({"x": [1]}, TypeError, "x is a list; pass a tensor"),
        ({"x": torch.zeros(1, 5, 32).double()}, TypeError, "x has dtype torch.float64 but the module torch.float32"),
        ({"key_mask": [True]}, TypeError, "key_mask is a list; pass a tensor"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        module("flexformer-n")(**({"x": torch.zeros(1, 5, 32)} | arguments))


def test_a_causal_module_refuses_a_context():
    with pytest.raises(ValueError, match="context with is_causal=True has no meaning"):
        module("flexformer-n", is_causal=True)(torch.zeros(1, 5, 32), context=torch.zeros(1, 5, 32))


def test_a_module_built_for_a_context_needs_one():
    with pytest.raises(ValueError, match="built for a context of width 24"):
        module("flexformer-n", context_dim=24)(torch.zeros(1, 5, 32))
