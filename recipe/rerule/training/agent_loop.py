"""The agent loop of runs with raw prompts or stop strings: verl's single turn, and these two.

verl puts every prompt through the chat template and gives the rollout engine no stop strings. A run without
either keeps verl's own loop. Importing this module registers the loop under `settings.AGENT_LOOP`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from recipe.rerule.schema import AGENT_LOOP
from recipe.rerule.training.prompts import prompt_ids

# Of the response that the running task generates: one loop may serve many at once.
_raw: ContextVar[bool] = ContextVar("raw")


@register(AGENT_LOOP)
class PromptAgentLoop(SingleTurnAgentLoop):
    """Sends rows with `extra_info.raw` without a chat template, and every row with `data.stop`.

    A response ends with the token that completes a stop string; the token stays in it, with its log-prob.
    Stop strings are sought in the text without special tokens, as vLLM reads it.
    """

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **row: Any) -> AgentLoopOutput:
        """verl's run of one response; `row` holds the columns of the data set."""
        _raw.set(bool(row["extra_info"]["raw"]))
        # Not the caller's dictionary: its other responses may share it.
        sampling_params = {**sampling_params, "stop": list(self.data_config.stop)}
        return await super().run(sampling_params, priority, **row)

    async def ct_build_initial_tokens(
        self, messages: list[dict[str, str]], *media: Any, **more: Any
    ) -> list[int]:
        """Token ids of the prompt; of a raw one, those of `prompts.prompt_ids`."""
        if not _raw.get():
            return await super().ct_build_initial_tokens(messages, *media, **more)
        ids = await self.loop.run_in_executor(None, prompt_ids, self.tokenizer, messages, True)
        return self._cap_text_prompt_length(ids)
