"""What each task of the operator's loop waits for: names, files and lines, never values."""

import asyncio

TASKS_MAX = 1024
FRAMES_MAX = 32


def task_stacks() -> str:
    """Return the stack of each task of the running loop, the innermost call last."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    lines = [f"{len(tasks)} tasks"]
    for task in tasks[:TASKS_MAX]:
        lines += ["", task.get_name()]
        lines += [
            f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            for frame in task.get_stack(limit=FRAMES_MAX)
        ]
    return "\n".join(lines) + "\n"
