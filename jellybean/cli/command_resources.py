"""What a command opens for as long as it runs, such as the way into a cluster: closed when it ends, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import TypeVar

Resource = TypeVar("Resource")
_stack: ContextVar[ExitStack] = ContextVar("command_resources")


@contextmanager
def command_resources() -> Iterator[None]:
    """Run one command: what it has opened by `open_for_command` is closed at the end."""
    with ExitStack() as stack:
        token = _stack.set(stack)
        try:
            yield
        finally:
            _stack.reset(token)


def open_for_command(resource: AbstractContextManager[Resource]) -> Resource:
    """Enter a context until the command that runs has ended."""
    return _stack.get().enter_context(resource)
