"""How an attempt can miss its answer, and what follows from it."""

from __future__ import annotations


class EndpointError(ValueError):
    """The endpoint will serve no request as it is called now: the run stops. The message is one line."""


class AttemptError(Exception):
    """An attempt that brought no answer; the message is the reason."""

    redraw = False
    """Whether the next attempt draws anew (the next seed), because a reply came."""
    pause = True
    """Whether the next attempt waits: the server may be out of order."""
    final = False
    """Whether there is no next attempt."""


class FaultError(AttemptError):
    """No chat completion came: a server error, a timeout, a broken connection."""


class UnreachableError(FaultError):
    """There was no connection."""


class MalformedError(AttemptError):
    """A reply that is not JSON of the schema."""

    redraw = True


class UnfitError(AttemptError):
    """An answer of the right form whose content is wrong. It is remembered: that call is not made again."""

    redraw = True
    pause = False


class RejectedError(AttemptError):
    """The server refuses this very request (HTTP 4xx), so asking again is of no use."""

    final = True


class BusyError(Exception):
    """The server asks every caller to slow down; that is no fault of the request, so no attempt is lost."""

    def __init__(self, reason: str, retry_after: float | None) -> None:
        """`retry_after`: seconds to wait, None where the server does not say."""
        super().__init__(reason)
        self.retry_after = retry_after
