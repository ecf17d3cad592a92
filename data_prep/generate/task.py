"""A task is one kind of generated data; a request is one call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

Inputs = Mapping[str, str | int]
Answer = dict[str, Any]
Schema = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One kind of generated data.

    Attributes:
        name: of the JSON schema on the wire and of the task in failures: letters, digits, "_" and "-".
        version: part of every cache key; raise it when `problem` comes to judge differently.
        prompt: the user's turn, a `string.Template` whose $names are the task's inputs.
        schema: the JSON schema of the answer to a request with these inputs; every key required, no others.
        problem: what is wrong with an answer of that schema, or None; it must not depend on anything else.
        answer_tokens: about how many tokens an answer takes, for the estimate of the cost.
    """

    name: str
    version: int
    prompt: str
    schema: Callable[[Inputs], Schema]
    problem: Callable[[Inputs, Answer], str | None]
    answer_tokens: Callable[[Inputs], int]


@dataclass(frozen=True)
class Request:
    """One call of a task. Raises ValueError when the inputs are not those the task's prompt names."""

    task: Task
    inputs: Inputs

    def __post_init__(self) -> None:
        wanted, given = set(Template(self.task.prompt).get_identifiers()), set(self.inputs)
        if wanted != given:
            raise ValueError(
                f"task {self.task.name} takes the inputs {', '.join(sorted(wanted))}, "
                f"not {', '.join(sorted(given)) or 'none'}"
            )

    def messages(self) -> list[dict[str, str]]:
        """The conversation to send: one user turn, which every chat template can render."""
        return [{"role": "user", "content": Template(self.task.prompt).substitute(self.inputs)}]

    def schema(self) -> Schema:
        """The JSON schema of the answer."""
        return self.task.schema(self.inputs)
