"""From a prompt to an answer: options, stages, the decision whether to compress, and the run itself."""

from sp.pipeline.load import Loaded, embedded, load, synthetic
from sp.pipeline.options import RunOptions
from sp.pipeline.plan import Decision, break_even, decide
from sp.pipeline.result import Answer, RunResult, Scored
from sp.pipeline.run import Pipeline

__all__ = [
    "Answer",
    "Decision",
    "Loaded",
    "Pipeline",
    "RunOptions",
    "RunResult",
    "Scored",
    "break_even",
    "decide",
    "embedded",
    "load",
    "synthetic",
]
