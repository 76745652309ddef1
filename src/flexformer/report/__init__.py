"""One HTML file about runs, results and benchmarks: `collect` reads them, `page` writes it."""

from .learned import read as read_kernels
from .page import page
from .sources import SourceError, Sources, collect

__all__ = ["SourceError", "Sources", "collect", "page", "read_kernels"]
