"""Outputs that would cost a user a file, each with what the command says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.refused.cases import Case
from tests.refused.playground import WEB_APP

GROUP = "output folders and inputs inside them"


@dataclass(frozen=True)
class FolderCase(Case):
    """A command in the folder of `playground.build`.

    Attributes:
        command: of `playground.COMMANDS`.
        arguments: separated by spaces.
        says: part of the one line on standard error; of an allowed one, of its output.
        planted: further files of the user's.
    """

    command: str
    arguments: str
    says: str
    planted: Mapping[str, str] = field(default_factory=dict)


def _case(name: str, line: str, says: str, planted: Mapping[str, str] | None = None) -> FolderCase:
    command, _, arguments = line.partition(" ")
    return FolderCase(GROUP, name, "refused", command, arguments, says, planted or {})


def _valid(name: str, line: str, says: str) -> FolderCase:
    return replace(_case(name, line, says), outcome="valid")


_CUSTOM = "data_prep custom --source mine.csv --out"
_MODEL = "evaluate model --model base=model --probes data/probes.parquet --out"
_JUDGE = "evaluate judge --results evaluation --base-url http://localhost:9/v1 --judge-model m --out"
_REPORT = "report --results evaluation --out"
CASES = [
    _case("a web app's manifest.json", f"{_CUSTOM} own --overwrite", "own/"),
    _case("a folder of files", f"{_CUSTOM} files --overwrite", "has no manifest.json", {"files/a.txt": "a"}),
    _case("a manifest.json that is garbage", f"{_CUSTOM} x --overwrite", "x/manifest.json was not written",
          {"x/manifest.json": "{"}),
    _case("a manifest.json that is deep", f"{_CUSTOM} x --overwrite", "x/manifest.json was not written",
          {"x/manifest.json": "[" * 99999}),
    _case("a web app alone", f"{_CUSTOM} x --overwrite", "x/manifest.json was not written",
          {"x/manifest.json": WEB_APP}),
    _case("a file of one's own in a folder of rows", f"{_CUSTOM} data --overwrite",
          "data/notes.txt is not named in manifest.json", {"data/notes.txt": "a"}),
    _case("a folder of one's own in a folder of rows", f"{_CUSTOM} data --overwrite",
          "data/deep/notes.txt is not named", {"data/deep/notes.txt": "a"}),
    _case("the source in the output", "data_prep custom --source data/x.csv --out data --overwrite",
          "--out is data, in which --source data/x.csv lies", {"data/x.csv": "a"}),
    _case("the probes in the output",
          "data_prep custom --source mine.csv --probes data/x.csv --out data --overwrite",
          "--out is data, in which --probes data/x.csv lies", {"data/x.csv": "a"}),
    _case("the source in the output, through a link",
          "data_prep custom --source link_to_data/x.csv --out data --overwrite",
          "--out is data, in which --source link_to_data/x.csv lies", {"data/x.csv": "a"}),
    _case("the source in the output, through ..",
          "data_prep custom --source own/../data/x.csv --out data --overwrite", "--out is data, in which",
          {"data/x.csv": "a"}),
    _case("the source as the output", f"{_CUSTOM} mine.csv --overwrite",
          "--out is mine.csv, which --source reads"),
    _case("the output in the source", "data_prep tofu --source own --out own/rows",
          "--out is own/rows, which lies in what --source reads, own"),
    _case("rows over an evaluation", f"{_CUSTOM} evaluation --overwrite", "evaluation has no manifest.json"),
    _case("a link that leads nowhere", f"{_CUSTOM} dangling --overwrite",
          "dangling is a link that leads nowhere"),
    _case("a link to a folder of one's own", f"{_CUSTOM} link --overwrite", "link/"),
    _case("the folder of everything", f"{_CUSTOM} . --overwrite",
          "--out is ., in which --source mine.csv lies"),
    _case("a cache in the output",
          "data_prep custom --source mine.csv --out new --cache new/cache --base-url http://x/v1 --model m",
          "--out is new, in which --cache new/cache lies"),
    _case("an evaluation over a folder of one's own", f"{_MODEL} own --overwrite", "own/"),
    _case("an evaluation over a meta.json of one's own", f"{_MODEL} x --overwrite", 
          "x/meta.json was not written", {"x/meta.json": "{}"}),
    _case("an evaluation over rows", f"{_MODEL} data --overwrite", "--out is data, in which --probes"),
    _case("an evaluation with a file of one's own", f"{_MODEL} evaluation --overwrite",
          "evaluation/notes.txt is not named in meta.json", {"evaluation/notes.txt": "a"}),
    _case("an evaluation over its model", f"{_MODEL} model --overwrite", "model has no meta.json"),
    _case("an evaluation in its model", f"{_MODEL} model/evaluation",
          "--out is model/evaluation, which lies in what --model reads, model"),
    _case("answers of one's own where answers are kept", f"{_MODEL} new",
          "new.partial/base.jsonl holds no answers", {"new.partial/base.jsonl": '{"format_version": 1}\n'}),
    _case("scores over the evaluation", f"{_JUDGE} evaluation --overwrite", "which --results reads"),
    _case("scores in the evaluation", f"{_JUDGE} evaluation/scores", "which lies in what --results reads"),
    _case("scores over a naturalness.json of one's own", f"{_JUDGE} own --overwrite", "own/"),
    _case("a report over its evaluation", f"{_REPORT} evaluation --overwrite",
          "--out is evaluation/report.html, which lies in what --results reads, evaluation"),
    _case("a page of one's own", f"{_REPORT} own/mine.html --overwrite",
          "own/mine.html was not written by a report"),
    _case("a Markdown file of one's own", f"{_REPORT} x/mine.html --overwrite",
          "x/mine.md was not written by a report", {"x/mine.md": "# mine\n"}),
    _case("a folder of one's own beside the page", f"{_REPORT} x/mine.html --overwrite",
          "x/mine has no contents.json, so it is not replaced", {"x/mine/replay.png": "a photo"}),
    _case("a file of one's own among a report's figures", f"{_REPORT} report.html --overwrite",
          "report/notes.txt is not named in contents.json", {"report/notes.txt": "a"}),
    _valid("rows over earlier rows", f"{_CUSTOM} data --overwrite", "data:"),
    _valid("rows over earlier rows, through a link", f"{_CUSTOM} link_to_data --overwrite", "link_to_data:"),
    _valid("an evaluation over an earlier one", f"{_MODEL} evaluation --overwrite", "written to"),
    _valid("a report over an earlier one", f"{_REPORT} report.html --overwrite", "report: report.html"),
]  # fmt: skip
