"""Waiting for processes and tasks inside the agent's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from rezone.local.processes import ProcessId

_POLL_SECONDS = 0.1


async def ended(process: ProcessId) -> None:
    """Wait until a process has ended, a child of ours or not."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # No such process any more, or no such call here (macOS).
        while process.alive():  # noqa: ASYNC110 - without the call nothing tells
            await asyncio.sleep(_POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(descriptor, done.set)
    try:
        # The descriptor may be of a later process with this pid; only a look after opening it
        # tells.
        if process.alive():
            await done.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        process.alive()


async def cancelled(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task and wait for its end; its own errors are its own business."""
    if task is None:
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
