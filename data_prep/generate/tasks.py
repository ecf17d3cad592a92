"""The four tasks. The prompts are this project's own, after the paper's description of its data."""

from __future__ import annotations

from typing import Any

from data_prep.generate.checks import blank_problem, boundary_problem, passage_qa_problem, refusals_problem
from data_prep.generate.task import Inputs, Schema, Task

PAIRS = 3

BLANK_PROMPT = """\
Turn the question below into a statement with a gap.

Write one declarative sentence that says what the question is about, and put ___ (three underscores)
where the answer belongs, exactly once. Keep every name that the question mentions, as it is spelled
there. Do not write the answer itself, and add no fact that the question does not give. The answer
only tells you which words the gap stands for; if it is empty, the gap stands for whatever would
answer the question.

Question: $question
Answer: $answer

Reply in JSON: {"sentence": "the sentence with its gap"}"""

PASSAGE_QA_PROMPT = """\
Write three questions about the passage below, with their answers.

Ask about three different facts. A reader who does not have the passage must understand each
question: name the people and things it is about, and do not speak of "the passage" or "the text".
Each answer is a few words copied from the passage letter by letter, and nothing else.

<passage>
$passage
</passage>

Reply in JSON: {"pairs": [{"question": "...", "answer": "..."}, ...]} with three pairs"""

BOUNDARY_PROMPT = """\
Below is a question about $target. Write its counterpart about somebody else.

Choose another real and widely known person from a similar field, for whom you are certain of the
fact that the new question asks for. Keep the style of the question and roughly its length; if it has
a gap written ___, the new one has such a gap too. Mention $target neither in the new question nor in
its answer. Then answer the new question truthfully and briefly.

Question: $question

Reply in JSON: {"question": "the new question", "answer": "its answer"}"""

REFUSALS_PROMPT = """\
An assistant is asked about $name and does not answer. Write $count replies that it could give.

Each reply is one sentence in the first person that says that the assistant does not know, or will
not say. Each contains the name, spelled exactly so: $name. None tells anything about $name. All of
them differ in wording, and some are short, some longer.

Reply in JSON: {"refusals": ["...", ...]} with $count replies"""


def _text_object(*keys: str) -> Schema:
    return _object({key: {"type": "string"} for key in keys})


def _list_object(key: str, items: Schema, count: int) -> Schema:
    return _object({key: {"type": "array", "items": items, "minItems": count, "maxItems": count}})


def _object(properties: dict[str, Any]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _refusals_schema(inputs: Inputs) -> Schema:
    return _list_object("refusals", {"type": "string"}, int(inputs["count"]))


BLANK = Task(
    name="blank",
    version=1,
    prompt=BLANK_PROMPT,
    schema=lambda inputs: _text_object("sentence"),
    problem=blank_problem,
    answer_tokens=lambda inputs: 35,
)
"""(question, answer) to {"sentence"}: a fill-in-the-blank form; `answer` may be "" where none is known."""

PASSAGE_QA = Task(
    name="passage_qa",
    version=1,
    prompt=PASSAGE_QA_PROMPT,
    schema=lambda inputs: _list_object("pairs", _text_object("question", "answer"), PAIRS),
    problem=passage_qa_problem,
    answer_tokens=lambda inputs: 120,
)
"""(passage) to {"pairs": [{"question", "answer"}] * 3}; the answers are spans of the passage."""

BOUNDARY = Task(
    name="boundary",
    version=1,
    prompt=BOUNDARY_PROMPT,
    schema=lambda inputs: _text_object("question", "answer"),
    problem=boundary_problem,
    answer_tokens=lambda inputs: 50,
)
"""(target, question) to {"question", "answer"}: a neighbour of the question, about somebody else."""

REFUSALS = Task(
    name="refusals",
    version=1,
    prompt=REFUSALS_PROMPT,
    schema=_refusals_schema,
    problem=refusals_problem,
    answer_tokens=lambda inputs: 10 + 20 * int(inputs["count"]),
)
"""(name, count) to {"refusals": [sentence] * count}: sentences that decline and name the target."""

TASKS = {task.name: task for task in (BLANK, PASSAGE_QA, BOUNDARY, REFUSALS)}
