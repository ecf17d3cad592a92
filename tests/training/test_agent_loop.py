"""The agent loop before a server that keeps what it is sent; and the CPU platform's one loop for a worker."""

import asyncio
import copy
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker, DictConfigWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from recipe.rerule.platform import agent_loop
from recipe.rerule.schema import AGENT_LOOP
from recipe.rerule.training.agent_loop import PromptAgentLoop
from tests.made_tokenizers import ALTERNATING_TEMPLATE, LLAMA3_TEMPLATE, byte_level, sentencepiece

ANSWER = [7, 8, 9]
SAMPLING = {"temperature": 1.0, "logprobs": True}


class Server:
    """In place of the client of the rollout servers; as those, it takes keys out of what it gets."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[int], dict[str, Any]]] = []

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        self.sent.append((prompt_ids, copy.deepcopy(sampling_params)))
        await asyncio.sleep(0)
        sampling_params.pop("logprobs")
        sampling_params["stop"].clear()
        return TokenOutput(token_ids=ANSWER, log_probs=[-0.5, -0.25, -0.125])


class YieldingLoop(PromptAgentLoop):
    """Lets the other responses go on between the start of its run and its prompt, as images would."""

    async def process_multi_modal_info(self, messages: list[dict]) -> dict:
        await asyncio.sleep(0)
        return await super().process_multi_modal_info(messages)


def row(content: str, raw: bool) -> dict[str, Any]:
    return {"raw_prompt": [{"role": "user", "content": content}], "extra_info": {"raw": raw}}


def run(
    tokenizer: Any, rows: list[dict[str, Any]], stop: list[str] | None = None, prompt_length: int = 40
) -> tuple[Server, list[AgentLoopOutput]]:
    """One loop for all rows at once."""
    server, rollout = Server(), {"prompt_length": prompt_length, "response_length": 8}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {"stop": stop or []}})

    async def responses() -> list[AgentLoopOutput]:
        loop = YieldingLoop(
            trainer_config=DictConfigWrap(config), data_config=DictConfigWrap(config.data),
            server_manager=server, tokenizer=tokenizer, processor=None, dataset_cls=RLHFDataset,
            hf_model_type="llama",
        )  # fmt: skip
        return await asyncio.gather(*(loop.run(SAMPLING, **row) for row in rows))

    return server, asyncio.run(responses())


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (sentencepiece(), ["<s>", "▁Who", "▁wrote", "▁"]),
        (byte_level(LLAMA3_TEMPLATE), ["<|begin|>", "Who", "Ġwrote", "Ġ"]),
        (byte_level(adds_bos=False), ["Who", "Ġwrote", "Ġ"]),
    ],
)
def test_a_raw_row_is_sent_as_it_is(tokenizer: Any, expected: list[str]) -> None:
    server, (output,) = run(tokenizer, [row("Who wrote ", raw=True)])
    assert tokenizer.convert_ids_to_tokens(server.sent[0][0]) == expected
    assert tokenizer.convert_ids_to_tokens(output.prompt_ids) == expected
    assert (output.response_ids, output.response_mask) == (ANSWER, [1, 1, 1])
    assert output.response_logprobs == [-0.5, -0.25, -0.125]
    # One that is too long loses its beginning, as in verl.
    server, _ = run(tokenizer, [row("Who wrote ", raw=True)], prompt_length=2)
    assert tokenizer.convert_ids_to_tokens(server.sent[0][0]) == expected[-2:]


def test_rows_of_both_kinds_keep_apart_in_one_loop() -> None:
    """Each runs in a task of its own, all at once, as in platform/agent_loop.py. Chat rows are verl's."""
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    kinds = [number % 3 == 0 for number in range(24)]
    server, outputs = run(tokenizer, [row("Who", raw) for raw in kinds])
    raw_ids = tokenizer("Who").input_ids
    messages = row("Who", raw=False)["raw_prompt"]
    chat_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert [output.prompt_ids for output in outputs] == [raw_ids if raw else chat_ids for raw in kinds]
    assert sum(ids == raw_ids for ids, _ in server.sent) == 8


@pytest.mark.parametrize("raw", [True, False])
def test_every_row_has_the_stop_strings_and_its_own_sampling_parameters(raw: bool) -> None:
    tokenizer, stop = sentencepiece(template=ALTERNATING_TEMPLATE), ["\n", "Question:"]
    server, _ = run(tokenizer, [row("Who", raw)] * 3, stop)
    assert [sampling for _, sampling in server.sent] == [{**SAMPLING, "stop": stop}] * 3
    assert type(server.sent[0][1]["stop"]) is list  # vLLM asserts it
    assert SAMPLING == {"temperature": 1.0, "logprobs": True}


def worker() -> agent_loop.CpuAgentLoopWorker:
    """Built without verl's `__init__`, which loads a model's settings; nothing looks into its parts."""
    bare = object.__new__(agent_loop.CpuAgentLoopWorker)
    bare._loops = {}
    bare.rollout_config, bare.config = SimpleNamespace(trace={}), SimpleNamespace(data=None)
    bare.llm_client, bare.tools = "server", []
    bare.tokenizer = bare.processor = bare.hf_model_type = bare.dataset_cls = None
    bare._agent_loop_postprocess = AsyncMock(side_effect=lambda *given, **row: (*given, row))
    return bare


@pytest.mark.parametrize("name", ["single_turn_agent", AGENT_LOOP])
def test_one_loop_serves_every_response(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    class Loop:
        def __init__(self, **parts: Any) -> None:
            built.append(parts["server_manager"])

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> tuple[Any, ...]:
            return sampling_params, row

    monkeypatch.setitem(agent_loop.SHARED_LOOPS, name, Loop)
    one = worker()

    async def three() -> list[Any]:
        runs = (one._run_agent_loop({"n": n}, {"validate": True}, agent_name=name, row=n) for n in range(3))
        return await asyncio.gather(*runs)

    assert asyncio.run(three()) == [(({"n": n}, {"row": n}), True, {"row": n}) for n in range(3)]
    assert built == ["server"]


def test_any_other_agent_loop_is_left_to_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentLoopWorker, "_run_agent_loop", AsyncMock(return_value="verl's"))
    assert asyncio.run(worker()._run_agent_loop({}, {}, agent_name="tool_agent")) == "verl's"
