"""Data through the Hugging Face `datasets` library: an id on the hub, or a folder it can read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flexformer.tasks.errors import MissingDataError

if TYPE_CHECKING:
    from datasets import Dataset


def load_split(source: str, split: str, columns: Sequence[str | tuple[str, ...]]) -> Dataset:
    """One split of a dataset, with the given columns in the given order.

    Args:
        source: "owner/name", "owner/name:configuration", or a local folder of JSONL, CSV or Parquet files.
        split: As the dataset names it.
        columns: A tuple lists names of which one must be there.

    Raises:
        MissingDataError: It cannot be had; the message says why.
    """
    import datasets

    name, _, configuration = (source, "", "") if os.path.exists(source) else source.partition(":")
    try:
        loaded = datasets.load_dataset(name, configuration or None, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingDataError(
            f"datasets.load_dataset({source!r}, split={split!r}) failed: {reason}. Check the id and the network, or "
            "fill the cache that HF_HOME names where there is one, or put files under the root instead"
        ) from error
    return loaded.select_columns([_column(source, loaded.column_names, names) for names in columns])


def _column(source: str, present: Sequence[str], names: str | tuple[str, ...]) -> str:
    wanted = (names,) if isinstance(names, str) else names
    for name in wanted:
        if name in present:
            return name
    raise ValueError(f"source {source!r} has the columns {', '.join(present)}; {' or '.join(wanted)} is needed")
