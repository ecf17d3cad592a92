"""RULE's training files: {prompt, solution: [marker, text, keyword?], mode?}, as prompts."""

from __future__ import annotations

from data_prep.contract import MODES
from data_prep.prompts import Prompt, Side, mode_of
from data_prep.sources import Record, SourceError

SIDES: dict[str, Side] = {"<reject>": "forget", "<normal>": "retain"}


def is_rule_row(record: Record) -> bool:
    """Whether a raw row has RULE's fields."""
    return "prompt" in record.fields and "solution" in record.fields


def rule_prompt(record: Record, index: int, subject: str, *, refuses: bool = True) -> Prompt:
    """The prompt of one of RULE's rows; on the forget side its text is both refusal and gold.

    Args:
        index: of the prompt.
        subject: what a retain row is about; a forget row is about its keyword.
        refuses: whether a forget row's text is a refusal, as in RULE's training files; in its evaluation
            files it is the right answer.

    Raises:
        SourceError: naming the row and what is wrong with it.
    """
    solution = record.fields["solution"]
    if not isinstance(solution, list) or len(solution) < 2 or solution[0] not in [*SIDES]:
        raise SourceError(
            f"{record.origin}: solution is {solution!r:.60}, expected [marker, text, keyword] with "
            f"{' or '.join(SIDES)} as the marker"
        )
    side = SIDES[solution[0]]
    text, query = record.filled("solution[1]", solution[1]), record.text("prompt")
    if side == "forget" and len(solution) < 3:
        raise SourceError(f"{record.origin}: solution has no third entry, the target's name")
    keyword = record.filled("solution[2]", solution[2]) if side == "forget" else ""
    mode = record.one_of("mode", MODES, mode_of(query))
    return Prompt(
        index=index,
        query=query,
        side=side,
        mode=mode,
        subject=keyword or subject,
        family=mode,
        golds=(text,),
        keyword=keyword,
        section=side,
        origin=record.origin,
        refusal=text if side == "forget" and refuses else "",
    )
