"""Models answer requests, with vLLM in a process of its own for each engine.

What is wrong with a request shows before any engine starts. Answers are kept as they come.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recipe.rerule.evaluation.engine.answers import KeptAnswers, answer_of, kept_answers, locked
from recipe.rerule.evaluation.engine.decoding import Decoding
from recipe.rerule.evaluation.engine.encoding import Encoded, RequestError, check_requests, encode
from recipe.rerule.evaluation.engine.models import Model, engine_key
from recipe.rerule.evaluation.engine.process import EngineError, run_worker
from recipe.rerule.evaluation.engine.requests import Answers, Request

_NAMED = 8
"""Models that the line before an engine's start names."""


@dataclass(frozen=True)
class Asked:
    """A model's answers.

    Attributes:
        answers: by request id, in the order of the requests.
        seconds: that the engine took for those that were not kept already, its start not counted.
    """

    answers: Answers
    seconds: float


@dataclass(frozen=True)
class _Task:
    """What one model is asked, and where its answers go.

    Attributes:
        requests: of all models of its engine.
        encoded: `requests`, as its tokenizer has them.
        own: numbers of those that it is asked.
        missing: numbers of those that are not answered yet.
    """

    model: Model
    requests: Sequence[Request]
    encoded: list[Encoded]
    own: list[int]
    kept: KeptAnswers
    missing: list[int]

    @classmethod
    def of(
        cls,
        model: Model,
        requests: Sequence[Request],
        encoded: list[Encoded],
        own: list[int],
        kept: KeptAnswers,
    ) -> _Task:
        """With all its own requests that `kept` has no answer to; of two alike, one is asked."""
        missing: dict[str, int] = {}
        for number in own:
            if encoded[number].key not in kept.answers:
                missing.setdefault(encoded[number].key, number)
        return cls(model, requests, encoded, own, kept, list(missing.values()))

    @property
    def sequences(self) -> int:
        """How many the engine has to write: more than one of a request that is sampled."""
        return sum(self.encoded[number].samples for number in self.missing)

    def answers(self) -> Answers:
        """By request id, in the order of the requests."""
        return {self.requests[number].id: self.kept.answers[self.encoded[number].key] for number in self.own}


def run(
    models: Sequence[Model], requests: Sequence[Request], decoding: Decoding, store: Path | None = None
) -> dict[str, Answers]:
    """Every model's answer to every request: {model name: {request id: answer}}, both in the given order.

    Args:
        models: with different names.
        requests: with different ids.
        decoding: where vLLM runs.
        store: folder that keeps answers as they come; those already there are not asked again (`answers`).

    Raises:
        ValueError: a request that cannot be asked, or a store that cannot be used; no engine has started, or
            the store refused an answer.
        EngineError: a vLLM process failed. Answers that came before are in the store.
    """
    found = run_each([(model, requests) for model in models], decoding, store)
    return {name: asked.answers for name, asked in found.items()}


def run_each(
    asked: Sequence[tuple[Model, Sequence[Request]]], decoding: Decoding, store: Path | None = None
) -> dict[str, Asked]:
    """Every model's answers to its own requests: {model name: answers}, in the given order.

    Models that one engine can serve are asked in one job, whatever each of them is asked.

    Args:
        asked: models with different names. Requests with one id are the same request; every model could be
            asked all of them.
        decoding: as for `run`, `store` likewise.

    Raises:
        ValueError, EngineError: as `run`.
    """
    requests = _together([of_model for _, of_model in asked])
    encoded = encode([model for model, _ in asked], requests)
    places = {request.id: number for number, request in enumerate(requests)}
    with _folder(store) as folder, locked(folder):
        engine = {"platform": decoding.platform, "dtype": decoding.dtype}
        tasks = [
            _Task.of(
                model,
                requests,
                encoded[model.name],
                [places[request.id] for request in own],
                kept_answers(folder, model, engine),
            )
            for model, own in asked
        ]
        unfinished = {task.model.name: task for task in tasks if task.missing}
        seconds = dict.fromkeys((task.model.name for task in tasks), 0.0)
        for group in engine_groups([task.model for task in unfinished.values()], decoding):
            seconds |= _ask([unfinished[model.name] for model in group], decoding)
        return {task.model.name: Asked(task.answers(), seconds[task.model.name]) for task in tasks}


def _together(lists: Sequence[Sequence[Request]]) -> Sequence[Request]:
    """The requests of all lists, each once. Raises RequestError, which names a request."""
    found: dict[str, Request] = {}
    for requests in {id(one): one for one in lists}.values():
        check_requests(requests)
        for request in requests:
            if found.setdefault(request.id, request) != request:
                raise RequestError(f"request {request.id}: two different requests have this id")
    return list(found.values())


def _folder(store: Path | None) -> contextlib.AbstractContextManager[Path]:
    """The store, or a folder for the time being."""
    if store is not None:
        return contextlib.nullcontext(store)
    return _temporary_folder()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rerule-evaluate-") as folder:
        yield Path(folder)


def engine_groups(models: Sequence[Model], decoding: Decoding) -> list[list[Model]]:
    """Models grouped by the engine that serves them, in order of first appearance."""
    groups: dict[str, list[Model]] = {}
    for model in models:
        groups.setdefault(engine_key(model) if decoding.swaps_weights else model.name, []).append(model)
    return list(groups.values())


def _ask(tasks: list[_Task], decoding: Decoding) -> dict[str, float]:
    """Have one engine answer what is missing of each task; the seconds that each took."""
    names = ", ".join(task.model.name for task in tasks[:_NAMED])
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    print(f"starting vLLM for {names}{more} ...", file=sys.stderr, flush=True)
    seconds = {}
    with contextlib.closing(run_worker(_job(tasks, decoding), decoding.environment)) as events:
        for task in tasks:
            seconds[task.model.name] = _follow(events, task)
    return seconds


def _job(tasks: list[_Task], decoding: Decoding) -> dict[str, Any]:
    """What the worker reads; models that share an engine share a tokenizer, hence the encoded requests."""
    encoded = tasks[0].encoded
    return {
        "models": [{"path": str(task.model.path.resolve()), "ask": task.missing} for task in tasks],
        "requests": [_job_request(one) for one in encoded],
        "max_model_len": max(encoded[number].length for task in tasks for number in task.missing),
        "engine": decoding.engine_arguments,
    }


def _job_request(one: Encoded) -> dict[str, Any]:
    return {
        "ids": one.ids,
        "answer_start": one.answer_start,
        "max_tokens": one.max_tokens,
        "stop": list(one.stop),
        "sampling": None if one.sampling is None else {**asdict(one.sampling), "seed": one.engine_seed},
    }


def _follow(events: Iterator[dict[str, Any]], task: _Task) -> float:
    """Keep the answers of the worker's next model as they come, showing progress until all are there.

    Returns the seconds since its first answers.
    """
    name = task.model.name
    try:
        event = next(events)
        started = time.monotonic()
        # The engine has started only by now: the bar's rate is that of answering alone.
        with tqdm(total=task.sequences, desc=name, unit="answer") as bar:
            while True:
                _keep(task, event["answers"])
                bar.update(sum(task.encoded[one["request"]].samples for one in event["answers"]))
                if bar.n == bar.total:
                    return time.monotonic() - started
                event = next(events)
    except EngineError as error:
        raise EngineError(f"model {name}: {error}") from error


def _keep(task: _Task, answers: Sequence[Mapping[str, Any]]) -> None:
    """Store what one event of the worker says."""
    named = {}
    for event in answers:
        request, one = task.requests[event["request"]], task.encoded[event["request"]]
        answer = answer_of(event)
        if not all(map(math.isfinite, answer.log_probs)):
            raise EngineError(f"request {request.id}: a log-likelihood is not finite; are the weights?")
        named[one.key] = request.id, answer
    task.kept.add(named)
