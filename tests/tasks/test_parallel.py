"""Work in several processes: results in order, errors told, nothing left running."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest

from flexformer.tasks.parallel import default_workers, ordered_map


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_from_an_endless_iterable(workers):
    results = ordered_map(math.factorial, itertools.count(), workers)
    assert list(itertools.islice(results, 12)) == [math.factorial(i) for i in range(12)]
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_error_of_a_worker_is_raised_here(workers):
    with pytest.raises(ValueError, match="factorial"):
        list(ordered_map(math.factorial, [3, -1], workers))


def test_no_workers_are_refused():
    with pytest.raises(ValueError, match="workers 0 do nothing"):
        list(ordered_map(math.factorial, [1], 0))


def test_there_is_one_worker_for_each_core_by_default():
    assert default_workers() >= 1


def test_script_without_a_guard_is_told_what_is_missing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import math\nfrom flexformer.tasks.parallel import ordered_map\nlist(ordered_map(math.factorial, [1, 2], 2))\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "put its code under `if __name__ == '__main__':`, or use workers=1" in result.stderr
