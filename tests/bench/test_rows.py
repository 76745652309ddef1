"""What is compared computes what it says."""

from dataclasses import replace

import pytest
import torch
from torch.utils import flop_counter

from flexformer import ATTENTIONS, linear_attention
from flexformer.bench import peers
from flexformer.bench.attention import choose_rows, row_called
from flexformer.bench.limit import Work, parts
from flexformer.bench.operations import (
    OURS,
    PAIRS,
    UNFUSED,
    WHOLE,
    Case,
    CheckError,
    Inputs,
    Operation,
    Row,
    build_kernel,
    check,
    own_rows,
    prepare,
    softmax,
    whole_features,
)

SMALL = Case(length=128, heads=2, head_dim=16, frequencies=16)
CAUSAL = replace(SMALL, is_causal=True)
ROWS = {row.name: row for row in own_rows()}
PEERS = [(peer.module, row) for peer in peers.PEERS for row in peer.rows]


def test_every_attention_has_a_row_beside_unfused_softmax_and_whole_features():
    assert set(ROWS) == {*ATTENTIONS, UNFUSED, WHOLE, PAIRS}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("case", [SMALL, CAUSAL], ids=["bidirectional", "causal"])
def test_row_is_finite_and_equals_its_definition(name, case):
    row = ROWS[name]
    if not row.fits(case):
        pytest.skip("has no causal form")
    check(row, case)


@pytest.mark.parametrize("name", ["softmax", OURS, WHOLE, "linear", "polaformer"])
def test_row_runs_in_bfloat16(name):
    check(ROWS[name], replace(SMALL, dtype="bfloat16"))


@pytest.mark.parametrize("case", [SMALL, CAUSAL], ids=["bidirectional", "causal"])
def test_whole_features_have_the_gradients_of_linear_attention(case):
    torch.manual_seed(0)
    operation = whole_features(case)
    torch.manual_seed(0)
    kernel = build_kernel(OURS, case)
    inputs = Inputs.draw(case).with_gradients()
    ours = linear_attention(*inputs[:3], kernel, case.is_causal)
    found = torch.autograd.grad(operation.attend(inputs), [*inputs[:3], *operation.parameters], inputs.gradient)
    expected = torch.autograd.grad(ours, [*inputs[:3], *kernel.parameters()], inputs.gradient)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def wrong_by(factor):
    def build(case):
        right = softmax(case)
        return Operation(lambda inputs: right.attend(inputs) * factor, reference=right.reference)

    return Row("wrong", "other", build)


@pytest.mark.parametrize(("factor", "why"), [(1.01, "relative error"), (float("nan"), "not finite")])
def test_a_row_that_computes_something_else_is_refused(factor, why):
    check(wrong_by(1.0), SMALL)
    with pytest.raises(CheckError, match=why):
        check(wrong_by(factor), SMALL)


def test_forward_leaves_no_graph_and_backward_gives_every_gradient():
    inputs = Inputs.draw(SMALL)
    assert not prepare(ROWS[OURS], SMALL, "forward", inputs)().requires_grad
    out, *gradients = prepare(ROWS[OURS], SMALL, "forward+backward", inputs)()
    assert out.requires_grad
    assert len(gradients) == 3 + 3  # q, k, v; omega1, omega2, tau
    assert not any(t.requires_grad for t in inputs)  # shared with the forward: left as they were


def test_kernels_with_a_choice_get_as_many_features_as_flexformer_n():
    assert {build_kernel(name, SMALL).num_features for name in (OURS, "performer", "rfa", "hedgehog")} == {32}
    assert build_kernel("cosformer", replace(SMALL, length=9999)).max_length == 9999


@pytest.mark.parametrize(("module", "row"), PEERS, ids=[row.name for _, row in PEERS])
@pytest.mark.parametrize("case", [SMALL, CAUSAL], ids=["bidirectional", "causal"])
def test_peer_row_is_finite_and_equals_its_definition(module, row, case):
    pytest.importorskip(module, reason="other packages are compared where they are installed")
    if not row.fits(case):
        pytest.skip("has no such form")
    check(row, case)


def test_packages_that_are_not_installed_are_named_with_the_reason(monkeypatch):
    monkeypatch.setattr(peers, "PEERS", (peers.Peer("some-package", "no_such_module", (ROWS["linear"],)),))
    rows, missing = peers.peer_rows()
    assert rows == []
    assert missing == {"some-package": "not importable: No module named 'no_such_module'"}


def test_unknown_rows_are_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"rows: 'flexfomer-n' is unknown; did you mean 'flexformer-n'\?"):
        choose_rows(["flexfomer-n"], is_causal=False)


def test_rows_without_a_causal_form_are_left_out_of_causal_runs():
    names = [row.name for row in choose_rows([], is_causal=True)[0]]
    assert "flexformer-n" in names
    assert "skyformer" not in names


def test_a_peer_row_is_found_by_name_without_importing_its_package():
    assert row_called("fast-transformers-elu").tokens_first


def flops(call):
    # Torch counts a product that is added to something, but not where it is added in place.
    in_place = {torch.ops.aten.baddbmm_: lambda total, a, b, out_shape=None: flop_counter.bmm_flop(a, b)}
    with flop_counter.FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
def test_the_limit_counts_matrix_products_of_attention_and_no_more(direction, is_causal):
    case = Case(length=1024, heads=2, head_dim=64, frequencies=64, is_causal=is_causal)
    ours = flops(prepare(ROWS[OURS], case, direction, Inputs.draw(case)))
    limit = sum(part.times * flops(part.call) for part in parts(Work(case), direction))
    assert 0.7 * ours < limit < 1.02 * ours


@pytest.mark.parametrize(("direction", "per_side"), [("forward", 3), ("forward+backward", 7)])
def test_the_limit_counts_three_cosines_and_sines_a_frequency_and_one_more_for_the_slope(direction, per_side):
    found = {part.name: part.times for part in parts(Work(SMALL), direction)}
    assert found["cosine"] + found["sine"] == 2 * per_side


@pytest.mark.parametrize("length", [1, 63, 100, 1000])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_limit_can_be_timed_at_any_length(length, is_causal):
    for part in parts(Work(replace(SMALL, length=length, is_causal=is_causal)), "forward+backward"):
        part.call()
