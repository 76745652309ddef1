"""Where the weights are that a path means."""

from __future__ import annotations

from pathlib import Path

from ..convert import manifest
from ..training import RunFolder


class NoWeightsError(ValueError):
    """A path names no weights."""


def weights_of(path: Path) -> Path:
    """The folder of a model or of an adapter: that of a run, finished or not, or the path itself.

    Raises:
        NoWeightsError: There is none.
    """
    if not path.is_dir():
        raise NoWeightsError(f"{path} is not a folder; name a run, a checkpoint, an adapter or a model that was saved")
    run = RunFolder(path)
    if run.record_file.is_file():
        found = run.weights()
        if found is None:
            raise NoWeightsError(
                f"{path} holds no weights as yet, or a pretrained model's checkpoints alone, which are there to go on "
                "from; give the run's command again, and let it finish or interrupt it with Ctrl-C"
            )
        return found
    if (path / "config.json").is_file() or (path / manifest.FILE).is_file():
        return path
    raise NoWeightsError(f"{path} holds no model and no adapter: no run.json, config.json or {manifest.FILE}")
