"""Where and how vLLM runs: dtype, memory, environment, and what is refused."""

from __future__ import annotations

import argparse

import pytest

from recipe.rerule.evaluation.engine.run import Decoding, add_decoding_arguments, decoding_of


def chosen(platform: str, *arguments: str) -> Decoding:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform")
    add_decoding_arguments(parser)
    return decoding_of(parser.parse_args(["--platform", platform, *arguments]))


def test_one_dtype_for_all_models_gpus_and_threads() -> None:
    """Never "auto", which is each model's own: a stage-2 folder's and a base model's may differ."""
    assert chosen("cpu").engine_arguments == {"dtype": "float32", "tensor_parallel_size": 1}
    assert chosen("gpu", "--dtype", "float16").dtype == "float16"
    several = chosen("gpu", "--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.8")
    expected = {"dtype": "bfloat16", "tensor_parallel_size": 4, "gpu_memory_utilization": 0.8}
    assert several.engine_arguments == expected
    assert set(Decoding("gpu").environment) == {"VLLM_LOGGING_LEVEL"}
    assert int(Decoding("cpu").environment["OMP_NUM_THREADS"]) >= 1


@pytest.mark.parametrize(
    ("platform", "arguments", "message"),
    [
        ("gpu", ["--tensor-parallel-size", "0"], "--tensor-parallel-size is 0"),
        ("gpu", ["--gpu-memory-utilization", "0"], "--gpu-memory-utilization is 0"),
        ("gpu", ["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization is 1.5"),
        ("gpu", ["--gpu-memory-utilization", "nan"], "--gpu-memory-utilization is nan"),
        ("cpu", ["--tensor-parallel-size", "2"], "leave them out with --platform cpu"),
        ("cpu", ["--gpu-memory-utilization", "0.5"], "leave them out with --platform cpu"),
    ],
)
def test_what_is_out_of_range_is_refused(platform: str, arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(platform, *arguments)
