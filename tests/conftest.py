"""What all tests share."""

import os

import pytest
import torch

from flexformer import kernels
from flexformer.kernels import registry
from flexformer.kernels.complex_spectrum import ComplexKernel

# Small matrices gain nothing from threads, and a fixed number keeps results the same everywhere.
torch.set_num_threads(1)

# Nothing is downloaded; without a network the hub would be asked again and again before it is given up.
os.environ["HF_HUB_OFFLINE"] = "1"

# Set where tests run in several processes; tables should be as wide as without it.
os.environ.pop("COLUMNS", None)

KERNELS = kernels.names()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """A kernel that a test or an example registers is gone after it: tables list all that are registered."""
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))


class ComplexPairs(ComplexKernel):
    """flexformer-c as far from its default as can be, which has other code: all suites take it for one kernel more."""

    def __init__(self, num_heads, head_dim, num_frequencies=None, floor=None):
        super().__init__(num_heads, head_dim, num_frequencies, num_real=0, floor=floor)


@pytest.fixture(params=(*KERNELS, "complex-pairs"))
def kernel_name(request, own_registry):
    if request.param not in KERNELS:
        kernels.register(request.param)(ComplexPairs)
    return request.param


@pytest.fixture(scope="session")
def data_folder():
    """The folder that FLEXFORMER_DATA names; tests that need real data skip without it."""
    folder = os.environ.get("FLEXFORMER_DATA")
    if not folder:
        pytest.skip("FLEXFORMER_DATA is not set: real data is absent")
    return folder
