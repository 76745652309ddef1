"""FSDP2 on CPUs, through `fully_shard` itself: accelerate would silently run DDP instead."""

from __future__ import annotations

import pytest
import sharded_cases
from ranks import on_ranks


def test_sharded_model_trains_saves_and_reloads_as_the_whole_one_does(tmp_path):
    for found in on_ranks(2, tmp_path, sharded_cases.trained_saved_and_loaded, str(tmp_path)):
        assert found["losses"] == pytest.approx(found["expected"], rel=1e-9)
        assert found["difference"] < 1e-9
        assert found["local"] == pytest.approx(found["total"] / 2, rel=0.05)
