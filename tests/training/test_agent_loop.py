"""The agent loop before a server that keeps what it is sent."""

from __future__ import annotations

import asyncio
import copy
import importlib
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop as verl_agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from recipe.rerule.schema import AGENT_LOOP, AGENT_LOOP_MODULE
from recipe.rerule.training.agent_loop import PromptAgentLoop
from tests.made_tokenizers import ALTERNATING_TEMPLATE, LLAMA3_TEMPLATE, byte_level, sentencepiece

ANSWER = [7, 8, 9]


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


def build(cls: type, tokenizer: Any, server: Server, stop: list[str], prompt_length: int = 40) -> Any:
    rollout = {"prompt_length": prompt_length, "response_length": 8}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {"stop": stop}})
    return cls(
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type="llama",
    )


def row(content: str, raw: bool) -> dict[str, Any]:
    return {"raw_prompt": [{"role": "user", "content": content}], "extra_info": {"raw": raw}}


SAMPLING = {"temperature": 1.0, "logprobs": True}


def run(
    tokenizer: Any, rows: list[dict[str, Any]], stop: list[str], **options: Any
) -> tuple[Server, list[AgentLoopOutput]]:
    """One loop for all rows at once."""

    async def responses(server: Server) -> list[AgentLoopOutput]:
        loop = build(YieldingLoop, tokenizer, server, stop, **options)
        return await asyncio.gather(*(loop.run(SAMPLING, **row) for row in rows))

    server = Server()
    return server, asyncio.run(responses(server))


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (sentencepiece(), ["<s>", "▁Who", "▁wrote", "▁"]),
        (byte_level(LLAMA3_TEMPLATE), ["<|begin|>", "Who", "Ġwrote", "Ġ"]),
        (byte_level(adds_bos=False), ["Who", "Ġwrote", "Ġ"]),
    ],
)
def test_a_raw_row_is_sent_as_it_is(tokenizer: Any, expected: list[str]) -> None:
    server, (output,) = run(tokenizer, [row("Who wrote ", raw=True)], [])
    assert tokenizer.convert_ids_to_tokens(server.sent[0][0]) == expected
    assert tokenizer.convert_ids_to_tokens(output.prompt_ids) == expected
    assert (output.response_ids, output.response_mask) == (ANSWER, [1, 1, 1])
    assert output.response_logprobs == [-0.5, -0.25, -0.125]
    # One that is too long loses its beginning, as in verl.
    server, _ = run(tokenizer, [row("Who wrote ", raw=True)], [], prompt_length=2)
    assert tokenizer.convert_ids_to_tokens(server.sent[0][0]) == expected[-2:]


def test_a_chat_row_is_sent_as_by_verl() -> None:
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    ours, (output,) = run(tokenizer, [row("Who wrote it?", raw=False)], [])

    async def response(server: Server) -> AgentLoopOutput:
        loop = build(SingleTurnAgentLoop, tokenizer, server, [])
        return await loop.run({**SAMPLING, "stop": []}, **row("Who wrote it?", raw=False))

    verls = Server()
    assert asyncio.run(response(verls)).model_dump(exclude={"metrics"}) == output.model_dump(
        exclude={"metrics"}
    )
    assert ours.sent == verls.sent


def test_rows_of_both_kinds_keep_apart_in_one_loop() -> None:
    """Each runs in a task of its own, all at once, as in platform/agent_loop.py."""
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    kinds = [number % 3 == 0 for number in range(24)]
    server, outputs = run(tokenizer, [row("Who", raw) for raw in kinds], [])
    raw_ids = tokenizer("Who").input_ids
    assert [output.prompt_ids == raw_ids for output in outputs] == kinds
    assert sum(ids == raw_ids for ids, _ in server.sent) == 8


@pytest.mark.parametrize("raw", [True, False])
def test_every_row_has_the_stop_strings_and_its_own_sampling_parameters(raw: bool) -> None:
    rows = [row("Who", raw)] * 3
    server, _ = run(sentencepiece(template=ALTERNATING_TEMPLATE), rows, ["\n", "Question:"])
    expected = {"temperature": 1.0, "logprobs": True, "stop": ["\n", "Question:"]}
    assert [sampling for _, sampling in server.sent] == [expected] * 3
    assert type(server.sent[0][1]["stop"]) is list  # vLLM asserts it
    assert SAMPLING == {"temperature": 1.0, "logprobs": True}


def test_verl_knows_the_loop_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 2's configuration has verl import our module wherever it reads the model's settings."""
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", [])
    assert config.actor_rollout_ref.model.external_lib == AGENT_LOOP_MODULE
    assert importlib.import_module(AGENT_LOOP_MODULE).PromptAgentLoop is PromptAgentLoop
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "single_turn_agent"
    assert config.data.stop == []
    monkeypatch.delitem(verl_agent_loop._agent_loop_registry, AGENT_LOOP)
    importlib.reload(importlib.import_module(PromptAgentLoop.__module__))
    target = verl_agent_loop._agent_loop_registry[AGENT_LOOP]["_target_"]
    assert target == f"{PromptAgentLoop.__module__}.PromptAgentLoop"
