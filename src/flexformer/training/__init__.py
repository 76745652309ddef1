"""Training on tasks through Hugging Face's `Trainer`: options, schedules, exact resume, records."""

from .evaluation import Evaluation, evaluate
from .job import ACCURACY, LOSS, Best, Job, Settings
from .language import LanguageJob, build_language_model
from .language_options import LanguageDataOptions, LanguageModelOptions, LanguageOptions
from .options import DataOptions, ModelOptions, OptimizerOptions, RunOptions, ScheduleOptions, TrainingOptions
from .record import Record, RunFolder, RunFolderError
from .run import RunInterruptedError, TaskJob, build_model, build_task, run, run_job
from .schedules import factor, scheduler

__all__ = [
    "ACCURACY",
    "LOSS",
    "Best",
    "DataOptions",
    "Evaluation",
    "Job",
    "LanguageDataOptions",
    "LanguageJob",
    "LanguageModelOptions",
    "LanguageOptions",
    "ModelOptions",
    "OptimizerOptions",
    "Record",
    "RunFolder",
    "RunFolderError",
    "RunInterruptedError",
    "RunOptions",
    "ScheduleOptions",
    "Settings",
    "TaskJob",
    "TrainingOptions",
    "build_language_model",
    "build_model",
    "build_task",
    "evaluate",
    "factor",
    "run",
    "run_job",
    "scheduler",
]
