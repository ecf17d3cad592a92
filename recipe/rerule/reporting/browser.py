"""The data of a probe browser, packed into the page; assets/browser.js unpacks it."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any


def pack(data: Any) -> str:
    """JSON, deflated (zlib), in base64."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")


def unpack(text: str) -> Any:
    """What `pack` was given."""
    return json.loads(zlib.decompress(base64.b64decode(text)))
