"""What a release says about itself: one version, a citation that can be read, what others run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]


def project() -> dict[str, Any]:
    """[project] of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_stands_in_one_place_and_its_changes_are_listed_first() -> None:
    version = project()["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version
    assert len(set(headings)) == len(headings)
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert "version=" not in (ROOT / "setup.py").read_text()


def test_the_citation_names_what_the_readme_cites() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    readme = " ".join((ROOT / "README.md").read_text().replace("{", "").replace("}", "").split())
    assert len(citation["references"]) == 2
    for paper in citation["references"]:
        assert f"= {paper['title']}" in readme
        names = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
        assert f"= {' and '.join(names)}" in readme


def test_the_workflow_runs_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    declared = {
        line.rpartition(" ")[2] for line in project()["classifiers"] if re.search(r":: 3\.\d+$", line)
    }
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == declared


def test_every_package_says_that_it_is_typed() -> None:
    for package in ("recipe/rerule", "reward", "data_prep"):
        assert (ROOT / package / "py.typed").is_file()
