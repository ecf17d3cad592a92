"""Hydra configuration of the unlearning methods (unlearn_trainer), their presets and experiments."""
