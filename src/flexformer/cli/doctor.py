"""`flexformer doctor`: is attention right on this machine?"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import time

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from flexformer import ATTENTIONS, __version__, kernels
from flexformer.cli.main import console, print_json
from flexformer.extras import too_old
from flexformer.ops.forms import FORMS, Comparison, compare

LENGTH = 63
TOLERANCE = 1e-5
OPTIONAL = ("numpy", "transformers", "accelerate", "safetensors", "datasets", "matplotlib")


def doctor(json: bool = False) -> int:
    """Check on this machine that attention is right in every form.

    Prints versions and devices, then computes every form of attention (causal, step by step, packed, padded ...)
    with every kernel in float32 and compares outputs and all gradients with the quadratic definition in float64.
    The exit status is 0 if all agree.

    Args:
        json: Print everything as JSON instead of tables.

    Example:
        flexformer doctor --json > doctor.json
    """
    screen = console()
    started = time.perf_counter()
    machine = describe_machine()
    if not json:
        _print_machine(screen, machine)
    errors = worst_errors(screen, show_progress=not json)
    healthy = all(error < TOLERANCE for row in errors.values() for error in row.values())
    if json:
        print_json({"machine": machine, "errors": errors, "tolerance": TOLERANCE, "healthy": healthy})
    else:
        _print_errors(screen, errors)
        seconds = time.perf_counter() - started
        verdict = (
            f"[green]All forms agree with the definition[/] ({seconds:.0f} s)."
            if healthy
            else "[red]Some forms disagree with the definition.[/] Please report this table."
        )
        screen.print(verdict)
    return 0 if healthy else 1


def describe_machine() -> dict[str, str]:
    """Versions, threads and devices."""
    facts = {
        "flexformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "devices": ", ".join(_devices()),
    }
    for package in OPTIONAL:
        try:
            facts[package] = too_old(package) or importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed (optional)"
    return facts


def _devices() -> list[str]:
    devices = ["cpu"]
    devices += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def kernel_names() -> list[str]:
    """All kernels, those of the paper first and in its order."""
    known = kernels.names()
    return [name for name in ATTENTIONS if name in known] + [name for name in known if name not in ATTENTIONS]


def worst_errors(screen: Console, show_progress: bool) -> dict[str, dict[str, float]]:
    """Per form and kernel the worst relative error of outputs and gradients; infinite where a form fails."""
    pairs = [(form, name) for form in FORMS for name in kernel_names()]
    errors: dict[str, dict[str, float]] = {form.name: {} for form in FORMS}
    generator_state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
    for form, name in track(pairs, "checking", console=screen, disable=not show_progress, transient=True):
        kernel = kernels.build(name, num_heads=2, head_dim=16).double()
        try:
            error = compare(form, kernel, LENGTH, dtype=torch.float32, chunk_size=16)
        except RuntimeError:  # a form that cannot run here is the worst there can be
            error = Comparison(math.inf, math.inf)
        errors[form.name][name] = max(error) if all(map(math.isfinite, error)) else math.inf
    torch.set_rng_state(generator_state)
    torch.set_num_threads(threads)
    return errors


def _print_machine(screen: Console, machine: dict[str, str]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for key, value in machine.items():
        table.add_row(f"[bold]{key}[/]", value)
    screen.print(table)
    screen.print()


def _print_errors(screen: Console, errors: dict[str, dict[str, float]]) -> None:
    title = f"Worst relative error, float32 against the definition in float64 (passes below {TOLERANCE:g})"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("kernel", no_wrap=True)
    for form in errors:
        table.add_column(form.replace(" ", "\n"), justify="right")
    for name in kernel_names():
        row = [errors[form][name] for form in errors]
        table.add_row(name, *(f"[{'green' if error < TOLERANCE else 'red'}]{error:.0e}[/]" for error in row))
    screen.print(table)
