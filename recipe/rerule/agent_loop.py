"""The name under which configurations load the agent loop; it stands in `training.agent_loop`."""

from recipe.rerule.training.agent_loop import PromptAgentLoop as PromptAgentLoop
