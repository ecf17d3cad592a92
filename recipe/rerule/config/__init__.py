"""Hydra configuration of stage 2 (rerule_trainer) and stage 1 (sft), its platforms and experiments."""

from recipe.rerule.training import sizes

# Whoever composes the configuration by this module's name needs the functions that its values call.
sizes.register()
