"""The rows that benchmarks, trainer and evaluator exchange, and the check that a file holds such rows.

An RL row (train, validation, probes) is one prompt; a stage-1 row is one conversation. Extra columns and
extra keys are allowed. Every error is one line naming the file, the row (from 0) and the field.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from reward.keyword import names_of

# ---- what counts as the same prompt, and what no text may hold ----


_NOT_IN_WORDS = re.compile(r"[^\w\s]")
_DASHES = str.maketrans("‐–−", "---")
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters other than white space (a tab, a line end of any kind, a form feed), and halves of
surrogate pairs, which JSON can write and no file can hold."""


def normalise(text: str) -> str:
    """Words and symbols alone, in lower case: what prompts are compared by.

    Unicode forms of one text (NFKC), quotation marks, punctuation, white space, invisible characters and the
    length of a blank make no difference; vowel signs, symbols such as + or %, the # of C#, and signs of
    arithmetic (3*4, 3-4, -5) do.
    """
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_DASHES)
    return " ".join(re.sub("_+", "_", _NOT_IN_WORDS.sub(_replacement, folded)).split())


def whole(name: str) -> str:
    """A pattern of a name; scripts without upper and lower case may have no spaces between words."""
    ends = name[0], name[-1]
    before, after = (r"\d" if c.isdecimal() else r"\w" if c.lower() != c.upper() else "" for c in ends)
    return (rf"(?<!{before})" if before else "") + re.escape(name) + (rf"(?!{after})" if after else "")


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern of names, for texts that `normalise` gave."""
    return re.compile("|".join(whole(name) for name in map(normalise, names) if name) or "(?!)")


def control_character(text: str) -> str | None:
    """The first of CONTROL in a text, and where it is; None where there is none."""
    found = CONTROL.search(text)
    return found and f"the control character U+{ord(found[0]):04X} at character {found.start() + 1}"


def _replacement(match: re.Match[str]) -> str:
    category = unicodedata.category(match[0])
    if category == "Cf":  # soft hyphens, joiners and other invisible characters
        return ""
    if category in ("Sm", "Sc", "So") or match[0] in "/%&@" or (match[0] == "#" and _follows_letter(match)):
        return f" {match[0]} "
    if match[0] in "*-" and _is_arithmetic(match):
        return f" {match[0]} "
    return match[0] if category.startswith("M") and _follows_letter(match) else " "


def _is_arithmetic(sign: re.Match[str]) -> bool:
    """Whether "*" stands alone or within a word, and "-" between numbers or in front of one."""
    before, after = sign.string[: sign.start()], sign.string[sign.end() :]
    left, right = before[-1:], after[:1]
    if sign[0] == "*":
        return (left.isalnum() and right.isalnum()) or not (left + right).strip()
    between = before.rstrip()[-1:].isdecimal() and after.lstrip()[:1].isdecimal()
    return between or (right.isdecimal() and not left.isalnum())


def _follows_letter(mark: re.Match[str]) -> bool:
    """Whether a combining mark belongs to a word: an accent used as a quote is a space and a mark in NFKC."""
    before = mark.string[mark.start() - 1] if mark.start() else " "
    return before.isalnum() or unicodedata.category(before).startswith("M")


# ---- rows, and the check that a file holds them ----


Row = dict[str, Any]

Side = Literal["forget", "retain"]
_Mode = Literal["qa", "fb", "aa", "completion"]
_Section = Literal["forget", "retain", "retain_unseen"]
SIDES, MODES, SECTIONS = get_args(Side), get_args(_Mode), get_args(_Section)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


_Filled = Annotated[str, AfterValidator(_not_blank)]
_Index = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True)


class _Message(_Model):
    role: Literal["system", "user", "assistant"]
    content: _Filled


_Messages = Annotated[list[_Message], Field(min_length=1)]


class _Truth(_Model):
    type: Side
    golds: Annotated[list[_Filled], Field(min_length=1)]
    keyword: str


class _RewardModel(_Model):
    style: Literal["rule"]
    ground_truth: _Truth


class _RLInfo(_Model):
    index: _Index
    mode: _Mode
    subject: _Filled
    split: Literal["train", "val", "probe"]
    section: _Section
    family: _Filled
    query: _Filled
    raw: bool


class _RLRow(_Model):
    data_source: _Filled
    prompt: _Messages
    reward_model: _RewardModel
    extra_info: _RLInfo

    @model_validator(mode="after")
    def _fits(self) -> Self:
        truth, section = self.reward_model.ground_truth, self.extra_info.section
        _check_messages("prompt", self.prompt, "user", self.extra_info.raw, (1,))
        if (truth.type == "forget") != any(map(str.strip, names_of(truth.keyword))):
            rule = "is empty" if truth.type == "forget" else "must be \"\" on a row of type 'retain'"
            raise ValueError(f"reward_model.ground_truth.keyword {rule}")
        if (truth.type == "forget") != (section == "forget"):
            raise ValueError(f"extra_info.section is {section!r} on a row of type {truth.type!r}")
        return self


class _Reference(_Model):
    paraphrased: _Filled | None
    perturbed: Annotated[list[_Filled], Field(min_length=1)]


class _Probe(_RLRow):
    """A row that may have REFERENCE too."""

    reference: _Reference | None = None


class _SFTInfo(_Model):
    index: _Index
    mode: _Mode
    subject: _Filled
    raw: bool


class _SFTRow(_Model):
    messages: _Messages
    extra_info: _SFTInfo

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_messages("messages", self.messages, "assistant", self.extra_info.raw, (2, 1))
        return self


def _check_messages(
    field: str, messages: Sequence[_Message], last: str, raw: bool, counts: Sequence[int]
) -> None:
    """Raises ValueError where messages end with another role, or a raw row has another number of them."""
    if messages[-1].role != last:
        raise ValueError(f"{field}.role ends with {messages[-1].role!r}, expected {last!r}")
    if raw and len(messages) not in counts:
        needed = " or ".join(map(str, counts))
        raise ValueError(f"extra_info.raw is true, which needs {needed} messages, not {len(messages)}")


def _fields(model: type[BaseModel]) -> dict[str, pa.DataType]:
    """A model's fields as columns of parquet."""
    return {name: _column(field.annotation) for name, field in model.model_fields.items()}


def _column(kind: Any) -> pa.DataType:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return pa.struct(_fields(kind))
    if get_origin(kind) is list:
        return pa.list_(_column(get_args(kind)[0]))
    return {int: pa.int64(), bool: pa.bool_()}.get(kind, pa.string())


RL_SCHEMA, SFT_SCHEMA = pa.schema(_fields(_RLRow)), pa.schema(_fields(_SFTRow))
REFERENCE = pa.field("reference", _column(_Reference))
"""Column of probes whose benchmark compares the likelihood of answers: the right answer in other words (null
where it has none), and wrong answers."""
FACT = pa.field("fact", pa.string())
"""Key of extra_info that a row may have: equal for the rows that ask for one fact."""
TRACE = pa.field("trace", pa.string())
"""Key of extra_info that a row may have: the chain of thought that leads to its first gold."""


def rl_row(
    *,
    data_source: str,
    prompt: str,
    side: Side,
    golds: list[str],
    keyword: str,
    extra_info: Row,
    query: str | None = None,
    raw: bool = False,
    reference: Row | None = None,
) -> Row:
    """An RL row whose prompt is one user turn.

    `extra_info` holds the keys of RL_SCHEMA but for query and raw, and FACT and TRACE where they are known:
    `query` is the bare question, where the prompt wraps it in more text; with `raw`, the prompt goes to a
    base model as it is. `reference` as of REFERENCE.
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
    """Writes checked RL rows; the same rows give the same bytes. Raises ValueError."""
    _validate(rows, path.name, _Probe)
    _refuse_control_characters(rows, path.name)
    pq.write_table(pa.Table.from_pylist(rows, schema=_schema(rows)), path)


def _schema(rows: list[Row]) -> pa.Schema:
    """RL_SCHEMA, with what some row has beyond it."""
    schema = RL_SCHEMA
    if more := [key for key in (FACT, TRACE) if any(row["extra_info"].get(key.name) for row in rows)]:
        place = schema.get_field_index("extra_info")
        keys = pa.struct([*schema.field(place).type, *more])
        schema = schema.set(place, pa.field("extra_info", keys))
    return schema.append(REFERENCE) if any(row.get("reference") for row in rows) else schema


def write_sft_rows(path: Path, rows: list[Row]) -> None:
    """Writes checked stage-1 rows; the same rows give the same bytes. Raises ValueError."""
    _validate(rows, path.name, _SFTRow)
    _refuse_control_characters(rows, path.name)
    pq.write_table(pa.Table.from_pylist(rows, schema=SFT_SCHEMA), path)


def read_rows(path: str | Path) -> list[Row]:
    """The RL rows of a parquet file. Raises ValueError at the first thing that is wrong."""
    rows = _read(Path(path), RL_SCHEMA)
    _validate(rows, str(path), _Probe)
    return rows


def read_sft_rows(path: str | Path) -> list[Row]:
    """The stage-1 rows of a parquet file. Raises ValueError at the first thing that is wrong."""
    rows = _read(Path(path), SFT_SCHEMA)
    _validate(rows, str(path), _SFTRow)
    return rows


def control_character_place(row: Row) -> str | None:
    """The first text of a row with a control character, and which; None where no text has one."""
    found = ((name, control_character(text)) for name, text in _texts(row))
    return next((f"{name} holds {character}" for name, character in found if character), None)


def _refuse_control_characters(rows: list[Row], source: str) -> None:
    for number, row in enumerate(rows):
        if place := control_character_place(row):
            raise ValueError(f"{source}: row {number}: {place}; take it out")


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


def _read(path: Path, schema: pa.Schema) -> list[Row]:
    table = _table(path)
    found = ", ".join(table.column_names)
    for name in schema.names:
        if name not in table.column_names:
            raise ValueError(f"{path}: column {name} is missing; the columns found are {found}")
        if table.column_names.count(name) > 1:
            raise ValueError(f"{path}: column {name} is there twice")
    try:
        return table.to_pylist()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: holds a text that is not UTF-8 ({error.reason})") from None


def _table(path: Path) -> pa.Table:
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: is a {'folder' if path.is_dir() else 'special file'}, not a parquet file")
    if not path.stat().st_size:
        raise ValueError(f"{path}: is empty")
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(
            f"{path}: not a readable parquet file ({first_line}); python -m data_prep makes such files"
        ) from error


def _validate(rows: list[Row], source: str, kind: type[_Model]) -> None:
    """Checks the values of rows; `source` names them. Raises ValueError."""
    if not rows:
        raise ValueError(f"{source}: no rows")
    first_seen: dict[int, int] = {}
    for number, row in enumerate(rows):
        where = f"{source}: row {number}"
        try:
            kind.model_validate(row)
        except ValidationError as error:
            raise ValueError(f"{where}: {_problem(error)}") from None
        index = row["extra_info"]["index"]
        if index in first_seen:
            raise ValueError(f"{where}: extra_info.index {index} occurs before, in row {first_seen[index]}")
        first_seen[index] = number


def _problem(error: ValidationError) -> str:
    """The first field that is wrong, and what is wrong with it."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    if first["type"] == "value_error":
        return f"{field} {first['ctx']['error']}".strip()
    if first["type"] == "missing" or first["input"] is None:
        return f"{field} is missing"
    if first["type"] == "too_short":
        return f"{field} is empty"
    told = first["msg"].replace("Input should be", "expected").split(" or instance of")[0]
    return f"{field} is {first['input']!r:.60}, {told}"
