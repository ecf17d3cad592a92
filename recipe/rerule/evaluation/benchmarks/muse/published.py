"""The metrics of MUSE that papers publish."""

from __future__ import annotations

KEYS = ("verbmem_f", "knowmem_f", "knowmem_r")
"""VerbMem, KnowMem, utility."""
