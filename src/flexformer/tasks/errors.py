"""What can be wrong with data on disk."""

from __future__ import annotations


class MissingDataError(FileNotFoundError):
    """A file is not there; the message says where to get it and how to lay it out."""


class CorruptDataError(ValueError):
    """A file is there but is not what it should be; the message says how that shows and what to do."""
