"""Servers that fail in the ways of `cases.txt`, and files that do not belong to a command."""

from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.data_prep.generate.server import Behaviour, Call, send

DEEP = b"[" * 10_000
NAN = float("nan")
ANSWER = {
    "index": 0, "section": "forget", "mode": "qa", "family": "direct", "subject": "Ada", "prompt": "Where?",
    "golds": ["Paris"], "response": "In Paris.",
}  # fmt: skip
ROW = {"base": {"forget/recall": 0.5}}


def metric(name: str, **sample: Any) -> dict[str, Any]:
    """A log of open-unlearning of one sample."""
    return {name: {"value_by_index": {"0": sample}}}


TOFU = metric("forget_Q_A_ROUGE", rougeL_recall=0.5)
MUSE = metric("forget_knowmem_ROUGE", rougeL_f1=0.5)


def page(code: int, title: str) -> Behaviour:
    """An HTML page, as proxies and log-in forms send it."""
    body = f"<!DOCTYPE html><html><head><style>p {{}}</style><title>{title}</title></head></html>".encode()
    return lambda handler, call: send(handler, code, body, **{"content-type": "text/html; charset=utf-8"})


def redirect(code: int, to: str) -> Behaviour:
    return lambda handler, call: send(handler, code, b"", location=to)


def garbage(handler: BaseHTTPRequestHandler, call: Call) -> None:
    """Something that is no HTTP."""
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    handler.wfile.flush()
    handler.close_connection = True
