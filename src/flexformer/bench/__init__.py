"""Speed and memory, side by side in one run."""

from .attention import AttentionOptions, measure_attention
from .decode import DecodeOptions, measure_decode
from .model import ModelOptions, measure_model
from .page import page_with_figures
from .ranks import RanksOptions, measure_ranks
from .ranks_page import RANKS
from .record import Record, load, name_of, new_record, read_records
from .scaling import ScalingOptions, measure_scaling

__all__ = [
    "RANKS",
    "AttentionOptions",
    "DecodeOptions",
    "ModelOptions",
    "RanksOptions",
    "Record",
    "ScalingOptions",
    "load",
    "measure_attention",
    "measure_decode",
    "measure_model",
    "measure_ranks",
    "measure_scaling",
    "name_of",
    "new_record",
    "page_with_figures",
    "read_records",
]
