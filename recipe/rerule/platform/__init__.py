"""What verl and vLLM need on a machine without an accelerator.

Nothing here acts unless `select("cpu")` was called (or VERL_PLATFORM=cpu set) before verl was imported.
"""

from recipe.rerule.platform.select import PLATFORMS, environment, select

__all__ = ["PLATFORMS", "environment", "select"]
