"""The command line, one file per command; `main` starts it."""

from time2decide.cli.app import app, main

__all__ = ["app", "main"]
