"""All that is asked of ranks, in one start of the processes."""

from __future__ import annotations

from typing import Any

import module_cases
import split_cases

LENGTHS = [16, 256, 1024]


def everything(size: int) -> dict[str, Any]:
    return {
        "attention": split_cases.errors(size),
        "state": split_cases.state_error(),
        "traffic": split_cases.traffic(LENGTHS),
        "modules": module_cases.errors(),
        "refusals": module_cases.refusals(),
        "checkpointed outside": module_cases.checkpointed_outside(),
    }
