"""What goes wrong with a network source, in words for people; the same for every reader.

``place`` is host and port, or a URL without a login.
"""

from __future__ import annotations

import socket

from vidserve.errors import SourceSilent, SourceUnauthorized, SourceUnreachable


def refused_login(place: str, code: int, given: bool) -> SourceUnauthorized:
    """401 or 403; ``given``: there was a login to refuse."""
    if not given:
        return SourceUnauthorized(
            f"{place} asks for a login ({code}), and none is given: set username and password"
        )
    return SourceUnauthorized(f"{place} refused the login ({code}): check username and password")


def no_such_stream(place: str) -> SourceUnreachable:
    """404."""
    return SourceUnreachable(f"{place} knows no such stream (404): check the path of the URL")


def answered(place: str, words: str) -> SourceUnreachable:
    """Any other answer that is no success."""
    return SourceUnreachable(f"{place} answered: {words}: check the URL and the camera")


def refused(place: str) -> SourceUnreachable:
    """Nobody listens there."""
    return SourceUnreachable(
        f"{place} refuses the connection: check that the camera is on and the port is right"
    )


def silent(place: str, for_s: float) -> SourceSilent:
    """It takes the connection or not, but says nothing."""
    return SourceSilent(
        f"{place} gave no answer for {for_s:g} s: check the address and the network"
    )


def nonsense(place: str, scheme: str) -> SourceUnreachable:
    """It says something else."""
    return SourceUnreachable(
        f"{place} gave no sensible answer: check that the URL is right and {scheme} is spoken"
    )


def no_such_host(host: str) -> SourceUnreachable:
    """The name leads nowhere."""
    return SourceUnreachable(f"no such host: {host}: check the name and the name server")


def no_way(place: str, words: str) -> SourceUnreachable:
    """The network says no."""
    return SourceUnreachable(f"{place} cannot be reached: {words}: check the URL and the network")


def resolves(host: str) -> bool:
    """Whether the name leads somewhere. Asks the name server: may take seconds."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
