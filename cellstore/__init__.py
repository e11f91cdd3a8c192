"""A self-hosted server that keeps the durable state of agent runs."""

from importlib.metadata import version

__version__ = version("cellstore")
