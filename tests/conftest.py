"""Tests use no network: a model that is not on disk is not looked for on the hub."""

import os

from hypothesis import HealthCheck, Phase, settings

os.environ["HF_HUB_OFFLINE"] = "1"

# For `make mutants`, which runs the tests thousands of times: few examples, always the same, no shrinking.
settings.register_profile(
    "mutants",
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
