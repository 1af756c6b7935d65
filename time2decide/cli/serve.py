"""``time2decide serve``: decisions over HTTP."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from time2decide.core.validation import InputError, validate_interval


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all, behind your own proxy.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to serve: market, decide, or a folder; repeatable.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Decisions made at once, in threads.")] = 2,
    megabytes: Annotated[float, typer.Option(help="Largest body.")] = 64.0,
    seconds: Annotated[float, typer.Option(help="Longest wait for an answer.")] = 60.0,
) -> None:
    """Answer POST /decide with decision files; /docs describes the requests. No passwords, no TLS: use a proxy.

    Example: time2decide serve --port 8000
    """
    validate_interval("port", port, "[1, 65535]")
    try:
        import uvicorn

        from time2decide.service.app import Limits, make_app
    except ImportError as error:
        needed = f"FastAPI and uvicorn to be installed, found no {error.name}; pip install 'time2decide[serve]'"
        raise InputError(f"serve: expected {needed}") from None
    limits = Limits(workers=workers, megabytes=megabytes, seconds=seconds)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the rest repeats the address
        raise InputError(f"port: expected one to listen on, found {host}:{port} ({reason})") from None
    with listening:  # before the models are loaded and compiled, which may take a minute
        app = make_app(tuple(model or ["market"]), limits)
        uvicorn.Server(uvicorn.Config(app, log_level="info")).run(sockets=[listening])
