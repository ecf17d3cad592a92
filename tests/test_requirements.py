"""The pinned files hold what setup.py asks for, for every supported Python, and name no package index."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12")
LEFT_OUT = {"flash-attn": "its source build needs torch"}


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py gives to setuptools."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.setattr(setuptools, "find_namespace_packages", lambda **_: [])
    runpy.run_path(str(ROOT / "setup.py"))
    return given


def pins(name: str) -> dict[str, str]:
    """Version of each pinned distribution; every line that is no comment must be `name==version`."""
    found = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text:
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", text), f"{name}: {line}"
            distribution, version = text.split("==")
            assert canonicalize_name(distribution) not in found, f"{name}: {line} is there twice"
            found[canonicalize_name(distribution)] = version
    return found


def asked(requirement: Requirement, python: str) -> list[Requirement]:
    """The requirement and, for verl, what the extras asked of it need under CPython `python`."""
    found = [requirement]
    if requirement.name == "verl":
        for text in metadata.requires("verl") or []:
            other = Requirement(text)
            environments = [{"extra": extra, "python_version": python} for extra in ("", *requirement.extras)]
            if other.marker is None or any(other.marker.evaluate(one) for one in environments):
                found += asked(other, python) if other.name == "verl" and other.extras else [other]
    return found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("file", "extra"), [("cpu.txt", "cpu"), ("gpu.txt", "gpu")])
def test_every_requirement_is_pinned_within_its_bounds(
    project: dict[str, Any], file: str, extra: str, python: str
) -> None:
    pinned = pins(file)
    texts = [*project["install_requires"], *project["extras_require"][extra]]
    wanted = [one for text in texts for one in asked(Requirement(text), python)]
    assert len(wanted) > 30
    for requirement in wanted:
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{file} lacks {requirement}"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{file}: {version} is not {requirement}"
        )


def test_gpu_txt_pins_verls_own_choice() -> None:
    pinned = pins("gpu.txt")
    assert {name: pinned[name] for name in ("verl", "vllm", "torch", "transformers")} == {
        "verl": "0.9.1",
        "vllm": "0.24.0",
        "torch": "2.11.0",
        "transformers": "5.9.0",
    }
    assert SpecifierSet(">=0.1.10").contains(pinned["transferqueue"])
    assert SpecifierSet(">=77.0.3,<81").contains(pinned["setuptools"])  # vLLM's bound on CPython 3.12 alone


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "requirements").glob("*.txt")))
def test_no_index_no_hashes_no_flash_attention(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    for line in lines:
        assert not re.search(r"https?:|--|\bwhl\b|sha256", line) or line.startswith("#"), line
        assert "://" not in line
        assert not line.startswith(tuple(LEFT_OUT)), LEFT_OUT


def test_dev_tools_of_setup_are_pinned(project: dict[str, Any]) -> None:
    pinned = pins("dev.txt")
    assert {canonicalize_name(Requirement(text).name) for text in project["extras_require"]["dev"]} <= set(
        pinned
    )


@pytest.mark.parametrize("folder", ["assets", "templates"])
def test_what_the_page_is_made_from_is_packaged(project: dict[str, Any], folder: str) -> None:
    place = ROOT / "recipe/rerule/reporting" / folder
    patterns = project["package_data"][f"recipe.rerule.reporting.{folder}"]
    packaged = {path for pattern in patterns for path in place.glob(pattern)}
    there = {path for path in place.iterdir() if path.suffix != ".py" and path.is_file()}
    assert len(there) >= 2
    assert there == packaged


def test_both_supported_pythons_are_allowed() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(declared["requires-python"])
    assert [python for python in ("3.10", "3.11.0", "3.12.9", "3.13.0") if allowed.contains(python)] == [
        "3.11.0",
        "3.12.9",
    ]
    makefile = (ROOT / "Makefile").read_text()
    assert "((3, 11), (3, 12))" in makefile


def test_torch_cuda_txt_goes_with_the_torch_of_cpu_txt() -> None:
    """Its pins are what torch's CUDA build asks for; the release is the one that cpu.txt pins."""
    comment = (ROOT / "requirements/torch_cuda.txt").read_text().splitlines()[0]
    assert f"torch {pins('cpu.txt')['torch']}" in comment


def test_the_page_on_installation_names_the_pinned_versions() -> None:
    pinned = {**pins("gpu.txt"), "flash-attn": "2.8.3"}
    named = re.findall(r"([A-Za-z-]+)==([0-9.]+[0-9])", (ROOT / "docs/gpu.md").read_text())
    assert len(named) > 6
    for name, version in named:
        assert version == pinned[canonicalize_name(name)], name
