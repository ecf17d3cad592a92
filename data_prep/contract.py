"""The rows that benchmarks, trainer and evaluator exchange, and the check that a file holds such rows.

An RL row (train, validation, probes) is one prompt; a stage-1 row is one conversation. Extra columns and
extra keys are allowed. Every error is one line naming the file, the row (from 0) and the field.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

# ---- what counts as the same prompt, and what no text may hold ----


_NOT_IN_WORDS = re.compile(r"[^\w\s]")
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""Control characters other than white space: a tab, a line end of any kind, a form feed."""


def normalise(text: str) -> str:
    """Words and symbols alone, in lower case: what prompts are compared by.

    Unicode forms of one text (NFKC), quotation marks, punctuation, white space, invisible characters and the
    length of a blank make no difference; vowel signs and symbols such as + or € do.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.sub("_+", "_", _NOT_IN_WORDS.sub(_replacement, folded)).split())


def control_character(text: str) -> str | None:
    """The first of CONTROL in a text, and where it is; None where there is none."""
    found = CONTROL.search(text)
    return found and f"the control character U+{ord(found[0]):04X} at character {found.start() + 1}"


def _replacement(match: re.Match[str]) -> str:
    category = unicodedata.category(match[0])
    if category == "Cf":  # soft hyphens, joiners and other invisible characters
        return ""
    if category in ("Sm", "Sc", "So"):
        return f" {match[0]} "
    return match[0] if category.startswith("M") and _follows_letter(match) else " "


def _follows_letter(mark: re.Match[str]) -> bool:
    """Whether a combining mark belongs to a word: an accent used as a quote is a space and a mark in NFKC."""
    before = mark.string[mark.start() - 1] if mark.start() else " "
    return before.isalnum() or unicodedata.category(before).startswith("M")


# ---- rows, and the check that a file holds them ----


Row = dict[str, Any]

TYPES = ("forget", "retain")
MODES = ("qa", "fb", "aa", "completion")
SPLITS = ("train", "val", "probe")
SECTIONS = ("forget", "retain", "retain_unseen")
ROLES = ("system", "user", "assistant")
_INT64 = range(-(2**63), 2**63)

_MESSAGES = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
RL_SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": _MESSAGES,
        "reward_model": pa.struct(
            {
                "style": pa.string(),
                "ground_truth": pa.struct(
                    {"type": pa.string(), "golds": pa.list_(pa.string()), "keyword": pa.string()}
                ),
            }
        ),
        "extra_info": pa.struct(
            {
                "index": pa.int64(),
                "mode": pa.string(),
                "subject": pa.string(),
                "split": pa.string(),
                "section": pa.string(),
                "family": pa.string(),
                "query": pa.string(),
                "raw": pa.bool_(),
            }
        ),
    }
)
SFT_SCHEMA = pa.schema(
    {
        "messages": _MESSAGES,
        "extra_info": pa.struct(
            {"index": pa.int64(), "mode": pa.string(), "subject": pa.string(), "raw": pa.bool_()}
        ),
    }
)


REFERENCE = pa.field("reference", pa.struct({"paraphrased": pa.string(), "perturbed": pa.list_(pa.string())}))
"""Column of probes whose benchmark compares the likelihood of answers: the right answer in other words (null
where it has none), and wrong answers."""


FACT = pa.field("fact", pa.string())
"""Key of extra_info that a row may have: equal for the rows that ask for one fact."""


class ContractError(ValueError):
    """A file or a row that breaks the contract; the message is one line."""


def rl_row(
    *,
    data_source: str,
    prompt: str,
    side: Literal["forget", "retain"],
    golds: list[str],
    keyword: str,
    extra_info: Row,
    query: str | None = None,
    raw: bool = False,
    reference: Row | None = None,
) -> Row:
    """An RL row whose prompt is one user turn.

    `extra_info` holds the keys of RL_SCHEMA but for query and raw, and FACT where it is known: `query` is the
    bare question, where the prompt wraps it in more text; with `raw`, the prompt goes to a base model as it
    is. `reference` as of REFERENCE.
    """
    row: Row = {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {
            "style": "rule",
            "ground_truth": {"type": side, "golds": golds, "keyword": keyword},
        },
        "extra_info": {**extra_info, "query": prompt if query is None else query, "raw": raw},
    }
    return row if reference is None else row | {"reference": reference}


def sft_row(*, prompt: str, answer: str, extra_info: Row, raw: bool = False) -> Row:
    """A stage-1 row: one user turn and the answer to be learnt; `raw` as in `rl_row`."""
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "extra_info": {**extra_info, "raw": raw}}


def text_row(text: str, extra_info: Row) -> Row:
    """A stage-1 row of a text without a prompt: all of it is learnt, but for the token that begins a text."""
    return {"messages": [{"role": "assistant", "content": text}], "extra_info": {**extra_info, "raw": True}}


def write_rows(path: Path, rows: list[Row]) -> None:
    """Writes checked RL rows; the same rows give the same bytes. Raises ContractError."""
    validate_rows(rows, path.name)
    _refuse_control_characters(rows, path.name)
    pq.write_table(pa.Table.from_pylist(rows, schema=_schema(rows)), path)


def _schema(rows: list[Row]) -> pa.Schema:
    """RL_SCHEMA, with what some row has beyond it."""
    schema = RL_SCHEMA
    if any(row["extra_info"].get(FACT.name) for row in rows):
        place = schema.get_field_index("extra_info")
        keys = pa.struct([*schema.field(place).type, FACT])
        schema = schema.set(place, pa.field("extra_info", keys))
    return schema.append(REFERENCE) if any(row.get("reference") for row in rows) else schema


def write_sft_rows(path: Path, rows: list[Row]) -> None:
    """Writes checked stage-1 rows; the same rows give the same bytes. Raises ContractError."""
    validate_sft_rows(rows, path.name)
    _refuse_control_characters(rows, path.name)
    pq.write_table(pa.Table.from_pylist(rows, schema=SFT_SCHEMA), path)


def read_rows(path: str | Path) -> list[Row]:
    """The RL rows of a parquet file. Raises ContractError at the first thing that is wrong."""
    rows = _read(Path(path), RL_SCHEMA, optional=REFERENCE)
    validate_rows(rows, str(path))
    return rows


def read_sft_rows(path: str | Path) -> list[Row]:
    """The stage-1 rows of a parquet file. Raises ContractError at the first thing that is wrong."""
    rows = _read(Path(path), SFT_SCHEMA)
    validate_sft_rows(rows, str(path))
    return rows


def validate_rows(rows: list[Row], source: str) -> None:
    """Checks the values of RL rows of the right types; `source` names them. Raises ContractError."""
    _validate(rows, source, _check_rl_row)


def validate_sft_rows(rows: list[Row], source: str) -> None:
    """Checks the values of stage-1 rows of the right types. Raises ContractError."""
    _validate(rows, source, _check_sft_row)


def control_character_place(row: Row) -> str | None:
    """The first text of a row with a control character, and which; None where no text has one."""
    found = ((name, control_character(text)) for name, text in _texts(row))
    return next((f"{name} holds {character}" for name, character in found if character), None)


def _refuse_control_characters(rows: list[Row], source: str) -> None:
    for number, row in enumerate(rows):
        if place := control_character_place(row):
            raise ContractError(f"{source}: row {number}: {place}; take it out")


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text inside a row, with its field."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, name)


def _read(path: Path, schema: pa.Schema, optional: pa.Field | None = None) -> list[Row]:
    table = _table(path)
    found = ", ".join(table.column_names)
    for field in schema:
        if field.name not in table.column_names:
            raise ContractError(f"{path}: column {field.name} is missing; the columns found are {found}")
        if table.column_names.count(field.name) > 1:
            raise ContractError(f"{path}: column {field.name} is there twice")
        _check_type(table.schema.field(field.name).type, field.type, f"{path}: column {field.name}")
    if optional is not None and optional.name in table.column_names:
        reference = table.schema.field(optional.name).type
        if not pa.types.is_null(reference):
            _check_type(reference, optional.type, f"{path}: column {optional.name}")
    try:
        return table.to_pylist()
    except UnicodeDecodeError as error:
        raise ContractError(f"{path}: holds a text that is not UTF-8 ({error.reason})") from None


def _table(path: Path) -> pa.Table:
    if not path.exists():
        raise ContractError(f"{path}: no such file")
    if not path.is_file():
        raise ContractError(
            f"{path}: is a {'folder' if path.is_dir() else 'special file'}, not a parquet file"
        )
    if not path.stat().st_size:
        raise ContractError(f"{path}: is empty")
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        first_line = str(error).splitlines()[0]
        raise ContractError(
            f"{path}: not a readable parquet file ({first_line}); python -m data_prep makes such files"
        ) from error


def _check_type(found: pa.DataType, wanted: pa.DataType, where: str) -> None:
    """Compares types by family (string or large_string, any integer width), structs key by key."""
    if not _same_family(found, wanted):
        raise ContractError(f"{where} has type {found}, expected {wanted}")
    if pa.types.is_list(wanted):
        _check_type(found.value_type, wanted.value_type, f"{where}[]")
    elif pa.types.is_struct(wanted):
        for key in wanted:
            place = found.get_field_index(key.name)
            if place < 0:
                raise ContractError(f"{where}.{key.name} is missing")
            _check_type(found.field(place).type, key.type, f"{where}.{key.name}")


def _same_family(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_string(wanted):
        return pa.types.is_string(found) or pa.types.is_large_string(found)
    if pa.types.is_integer(wanted):
        return pa.types.is_integer(found)
    if pa.types.is_boolean(wanted):
        return pa.types.is_boolean(found)
    if pa.types.is_list(wanted):
        return pa.types.is_list(found) or pa.types.is_large_list(found)
    return pa.types.is_struct(found)


def _validate(rows: list[Row], source: str, check: Callable[[Row, str], None]) -> None:
    if not rows:
        raise ContractError(f"{source}: no rows")
    first_seen: dict[int, int] = {}
    for number, row in enumerate(rows):
        where = f"{source}: row {number}"
        check(row, where)
        index = row["extra_info"]["index"]
        if index in first_seen:
            _bad(where, "extra_info.index", f"{index} occurs before, in row {first_seen[index]}")
        first_seen[index] = number


def _check_rl_row(row: Row, where: str) -> None:
    _check_filled(row["data_source"], where, "data_source")
    _check_messages(row["prompt"], where, "prompt", last_role="user")
    truth = (row["reward_model"] or {}).get("ground_truth")
    if truth is None:
        _bad(where, "reward_model.ground_truth", "is missing")
    _check_one_of(row["reward_model"]["style"], ("rule",), where, "reward_model.style")
    _check_one_of(truth["type"], TYPES, where, "reward_model.ground_truth.type")
    if not truth["golds"]:
        _bad(where, "reward_model.ground_truth.golds", "is empty: give at least one right answer")
    for gold in truth["golds"]:
        _check_filled(gold, where, "reward_model.ground_truth.golds")
    if truth["type"] == "forget":
        _check_filled(truth["keyword"], where, "reward_model.ground_truth.keyword")
    elif truth["keyword"] != "":
        _bad(where, "reward_model.ground_truth.keyword", "must be \"\" on a row of type 'retain'")
    info = _checked_info(row, row["prompt"], (1,), where)
    _check_one_of(info["split"], SPLITS, where, "extra_info.split")
    _check_one_of(info["section"], SECTIONS, where, "extra_info.section")
    for field in ("family", "query"):
        _check_filled(info[field], where, f"extra_info.{field}")
    if (truth["type"] == "forget") != (info["section"] == "forget"):
        _bad(where, "extra_info.section", f"is {info['section']!r} on a row of type {truth['type']!r}")
    if (reference := row.get("reference")) is not None:
        if not reference["perturbed"]:
            _bad(where, "reference.perturbed", "is empty: give at least one wrong answer")
        for answer in reference["perturbed"]:
            _check_filled(answer, where, "reference.perturbed")
        if reference["paraphrased"] is not None:
            _check_filled(reference["paraphrased"], where, "reference.paraphrased")


def _check_sft_row(row: Row, where: str) -> None:
    _check_messages(row["messages"], where, "messages", last_role="assistant")
    _checked_info(row, row["messages"], (2, 1), where)


def _checked_info(row: Row, messages: list[Row], raw_counts: Sequence[int], where: str) -> Row:
    """The extra_info of a row, of which a raw one has so many messages."""
    info: Row | None = row["extra_info"]
    if info is None:
        _bad(where, "extra_info", "is missing")
    if info["index"] is None:
        _bad(where, "extra_info.index", "is missing")
    if info["index"] not in _INT64:
        _bad(where, "extra_info.index", f"is {info['index']}, expected a whole number of 64 bits")
    _check_one_of(info["mode"], MODES, where, "extra_info.mode")
    _check_filled(info["subject"], where, "extra_info.subject")
    if info["raw"] is None:
        _bad(where, "extra_info.raw", "is missing")
    if info["raw"] and len(messages) not in raw_counts:
        needed = " or ".join(map(str, raw_counts))
        _bad(where, "extra_info.raw", f"is true, which needs {needed} messages, not {len(messages)}")
    return info


def _check_messages(messages: list[Row] | None, where: str, field: str, last_role: str) -> None:
    if not messages:
        _bad(where, field, "is empty: give at least one message")
    for message in messages:
        if message is None:
            _bad(where, field, "holds a missing message")
        _check_one_of(message["role"], ROLES, where, f"{field}.role")
        _check_filled(message["content"], where, f"{field}.content")
    if messages[-1]["role"] != last_role:
        _bad(where, f"{field}.role", f"ends with {messages[-1]['role']!r}, expected {last_role!r}")


def _check_filled(value: str | None, where: str, field: str) -> None:
    if value is None or not value.strip():
        _bad(where, field, "is empty" if value is not None else "is missing")


def _check_one_of(value: str | None, allowed: Collection[str], where: str, field: str) -> None:
    if value not in allowed:
        _bad(where, field, f"is {value!r}, expected one of {', '.join(allowed)}")


def _bad(where: str, field: str, problem: str) -> NoReturn:
    raise ContractError(f"{where}: {field} {problem}")
