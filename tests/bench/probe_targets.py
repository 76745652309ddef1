"""What the memory probe is asked to run in tests."""

import os
import signal
import time

import torch

MIB = 2**20


def allocate(mebibytes):
    """A call that takes memory and gives it back before it returns."""
    inputs = [torch.ones(MIB // 4)]

    def call():
        big = torch.ones(mebibytes * MIB // 4)
        return big[:4].clone()

    return lambda: None, call, inputs


def chatty():
    return lambda: print("warming up"), lambda: print("hello") or torch.ones(2), []


def not_a_number():
    return lambda: None, lambda: torch.tensor([float("nan")]), []


def fail():
    raise RuntimeError("this was\nnever going to work")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def sleep():
    return lambda: None, lambda: time.sleep(30), []


def too_much():
    return lambda: None, lambda: torch.ones(2**45), []
