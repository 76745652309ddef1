"""The kernel of scripts/study_superset.py contains flexformer-c and flexformer-n, as the docs say."""

import importlib.util
from pathlib import Path

import pytest
import torch

from flexformer import kernels, linear_attention

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "study_superset.py"


@pytest.fixture
def build(own_registry):
    """Builds the kernel in float64; it is registered for the test alone."""
    spec = importlib.util.spec_from_file_location("study_superset", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda num_real: kernels.build(module.NAME, 2, 8, num_real=num_real).double()


def inputs():
    return [torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("num_real", [0, "half"])
def test_without_modulation_it_is_the_complex_spectrum(build, num_real):
    modulated, kernel = build(num_real), kernels.build("flexformer-c", 2, 8, num_real=num_real).double()
    with torch.no_grad():
        modulated.modulation.zero_()
        for name, parameter in kernel.named_parameters():
            parameter += 0.1 * torch.randn_like(parameter)
            modulated.get_parameter(name).copy_(parameter)
    q, k, v = inputs()
    torch.testing.assert_close(linear_attention(q, k, v, modulated), linear_attention(q, k, v, kernel))


def test_without_growth_it_is_the_nonstationary_kernel(build):
    modulated, kernel = build(0), kernels.build("flexformer-n", 2, 8).double()
    with torch.no_grad():
        modulated.alpha.zero_()
        modulated.omega.copy_((kernel.omega1 + kernel.omega2) / 2)
        modulated.modulation.copy_((kernel.omega1 - kernel.omega2) / 2)
        modulated.beta.copy_(kernel.tau.neg().exp())
    q, k, v = inputs()
    torch.testing.assert_close(linear_attention(q, k, v, modulated), linear_attention(q, k, v, kernel))
