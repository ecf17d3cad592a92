"""What a release says about itself, and its pinned files, which hold what setup.py asks for."""

import re
import runpy
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ("3.11", "3.12")


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py gives to setuptools."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.setattr(setuptools, "find_namespace_packages", lambda **_: [])
    runpy.run_path(str(ROOT / "setup.py"))
    return given


def pins(name: str) -> dict[str, str]:
    """Version of each pinned distribution; every line that is no comment is `name==version`."""
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if text := line.partition("#")[0].strip():
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", text), f"{name}: {line}"
            distribution, version = text.split("==")
            assert canonicalize_name(distribution) not in found, f"{name}: {line} is there twice"
            found[canonicalize_name(distribution)] = version
    return found


def asked(requirement: Requirement, python: str) -> list[Requirement]:
    """The requirement and, for verl, what the extras asked of it need under CPython `python`."""
    found = [requirement]
    if requirement.name == "verl":
        for other in map(Requirement, metadata.requires("verl") or []):
            environments = [{"extra": extra, "python_version": python} for extra in ("", *requirement.extras)]
            if other.marker is None or any(other.marker.evaluate(one) for one in environments):
                found += asked(other, python) if other.name == "verl" and other.extras else [other]
    return found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", ["cpu", "gpu", "dev"])
def test_requirements_are_pinned_within_bounds(project: dict[str, Any], extra: str, python: str) -> None:
    pinned = pins(f"{extra}.txt")
    texts = [*(project["install_requires"] if extra != "dev" else []), *project["extras_require"][extra]]
    wanted = [one for text in texts for one in asked(Requirement(text), python)]
    assert len(wanted) > 4
    for requirement in wanted:
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{extra}.txt lacks {requirement}"
        assert requirement.specifier.contains(version, prereleases=True), f"{version} is not {requirement}"


def test_gpu_txt_pins_verls_own_choice_and_the_documents_name_it() -> None:
    pinned = pins("gpu.txt")
    chosen = {"verl": "0.9.1", "vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0"}
    assert {name: pinned[name] for name in chosen} == chosen
    assert SpecifierSet(">=0.1.10").contains(pinned["transferqueue"])
    assert SpecifierSet(">=77.0.3,<81").contains(pinned["setuptools"])  # vLLM's bound on CPython 3.12 alone
    assert "flash-attn" not in pinned  # its source build needs torch
    texts = (ROOT / name for name in ("docs/gpu.md", "requirements/verl.Dockerfile"))
    named = re.findall(r"([A-Za-z-]+)==([0-9.]+[0-9])", "".join(map(Path.read_text, texts)))
    assert len(named) > 6
    for name, version in named:
        assert version == (pinned | {"flash-attn": "2.8.3"})[canonicalize_name(name)], name
    comment = (ROOT / "requirements/torch_cuda.txt").read_text().splitlines()[0]
    assert f"torch {pins('cpu.txt')['torch']}" in comment


def test_both_supported_pythons_are_allowed_and_tested() -> None:
    allowed = SpecifierSet(DECLARED["requires-python"])
    versions = ("3.10", "3.11.0", "3.12.9", "3.13.0")
    assert [version for version in versions if allowed.contains(version)] == ["3.11.0", "3.12.9"]
    assert "((3, 11), (3, 12))" in (ROOT / "Makefile").read_text()
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == set(PYTHONS)


def test_what_is_no_python_is_packaged(project: dict[str, Any]) -> None:
    """Configurations, and what the page of the report is made from; every package says that it is typed."""
    for folder in ("recipe/rerule/reporting/templates", "recipe/rerule/config"):
        patterns = project["package_data"][folder.replace("/", ".")]
        packaged = {path for pattern in patterns for path in (ROOT / folder).glob(pattern)}
        there = {path for path in (ROOT / folder).rglob("*") if path.suffix not in ("", ".py", ".pyc")}
        assert len(there) >= 2
        assert there <= packaged, folder
    for package in ("recipe/rerule", "reward", "data_prep"):
        assert (ROOT / package / "py.typed").is_file()


def test_the_version_stands_in_one_place_and_its_changes_are_listed_first() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == DECLARED["version"]
    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize("name", ["gpu", "verl"])
def test_an_image_gets_every_package_and_nothing_that_is_not_there(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.Dockerfile").read_text()
    copied = [path for line in re.findall("^COPY (.+) .+$", text, re.MULTILINE) for path in line.split()]
    assert {path for path in copied if not (ROOT / path).exists()} == set()
    assert {"pyproject.toml", "setup.py", "recipe", "reward", "data_prep"} <= set(copied)
    assert f"--file requirements/{name}.Dockerfile" in text
