"""Data that a benchmark lacks, written by a language model behind any OpenAI-compatible endpoint.

`generate` asks for a list of requests and keeps every answer in a folder, so that a run can be killed at any
moment and started again; `estimate` says beforehand what it will cost. docs/data.md explains it.
"""

from data_prep.generate.endpoint import (
    Endpoint,
    EndpointError,
    add_call_arguments,
    add_endpoint_arguments,
    endpoint_of,
)
from data_prep.generate.run import MOST_USELESS, Failure, Generated, estimate, generate
from data_prep.generate.tasks import FACTS, NEIGHBOURS, TASKS, Request, Task, prompt_text, with_prompts

__all__ = [
    "FACTS",
    "MOST_USELESS",
    "NEIGHBOURS",
    "TASKS",
    "Endpoint",
    "EndpointError",
    "Failure",
    "Generated",
    "Request",
    "Task",
    "add_call_arguments",
    "add_endpoint_arguments",
    "endpoint_of",
    "estimate",
    "generate",
    "prompt_text",
    "with_prompts",
]
