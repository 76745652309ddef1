"""A sequence divided over ranks gives what it gives in one process, gradients included."""

from __future__ import annotations

import pytest
import rank_suite
import split_cases
import torch
from ranks import on_ranks

from flexformer.parallel import sequence_parallel

EXACT = 1e-10
# A state of float32 sums S, z, w and the maximum m; gradients have no m of their own.
STATE = 4 * split_cases.BATCH * split_cases.HEADS * (16 * split_cases.DIM + 16 + 1)
MAXIMA = 4 * split_cases.BATCH * split_cases.HEADS
# Of each rank, forward and backward: to the next rank, then between all but the first at distances 1, 2 ...
MESSAGES = {2: [1, 1], 3: [1, 3, 2], 5: [1, 4, 5, 5, 3]}
SLOW = [pytest.param(ranks, marks=pytest.mark.slow) for ranks in (3, 5)]


@pytest.fixture(scope="module", params=[2, *SLOW], ids="{} ranks".format)
def size(request):
    return request.param


@pytest.fixture(scope="module")
def found(size, tmp_path_factory):
    return on_ranks(size, tmp_path_factory.mktemp("ranks"), rank_suite.everything, size)


def test_outputs_and_all_gradients_equal_those_of_one_process(size, found):
    for rank in found:
        assert rank["attention"].keys() == {case.name for case in split_cases.cases(size)}
        assert {name: error for name, error in rank["attention"].items() if not error < EXACT} == {}


def test_state_of_the_whole_sequence_is_known_on_every_rank_and_can_be_gone_on_from(found):
    assert all(rank["state"] < EXACT for rank in found)


def test_modules_and_language_models_learn_the_same_from_parts_as_from_the_whole(found):
    for rank in found:
        assert {name: error for name, error in rank["modules"].items() if not error < EXACT} == {}


def test_bytes_sent_do_not_depend_on_the_length(found):
    for rank in found:
        for form, sent in rank["traffic"].items():
            assert len(set(sent)) == 1, f"{form}: {sent}"
            assert sent[0] > 0


def test_bytes_sent_are_a_few_states(size, found):
    for number, rank in enumerate(found):
        whole = rank["traffic"]["bidirectional, seen"][0]
        assert whole == 2 * STATE + MAXIMA
        assert rank["traffic"]["bidirectional"][0] == pytest.approx(2 * whole * (size - 1) / size, abs=3)
        rounds = MESSAGES[size][number]
        assert rank["traffic"]["causal"] == rank["traffic"]["causal, seen"]
        assert rank["traffic"]["causal"][0] == rounds * (STATE + MAXIMA)


def test_what_has_no_meaning_on_a_divided_sequence_is_refused(found):
    for rank in found:
        softmax, labels, state, mesh = rank["refusals"]
        assert softmax.startswith("attention 'softmax' cannot run over a divided sequence; use a kernel attention")
        assert labels == "labels cannot be shifted from rank to rank; shift the whole and pass shift_labels"
        assert state.startswith("initial_state, cu_seqlens, update_state and query_start cannot go with")
        assert mesh == "group is a device mesh of 2 dimensions; pass one of them, mesh['name']"


def test_checkpointed_model_refuses_a_backward_pass_that_sees_sequences_whole_again(found):
    assert {rank["checkpointed outside"] for rank in found} == {"CheckpointError"}


def test_dividing_a_sequence_needs_a_process_group():
    assert not torch.distributed.is_initialized()
    with pytest.raises(RuntimeError, match=r"init_process_group first, or start with torchrun"), sequence_parallel():
        pass
