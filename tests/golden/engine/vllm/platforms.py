"""What vLLM says of the machine."""

from types import SimpleNamespace

current_platform = SimpleNamespace(is_cpu=lambda: True)
