"""Asking models: requests, their tokens, the vLLM process, and answers kept as they come."""
