"""Starts drivers in a real cluster: one run of this environment's spark-submit for each."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
import structlog

from e2e.spark.submission import Json, Submission, submission_of
from rezone.local.errors import LaunchError

SUBMIT_SECONDS_MAX = 300.0
MESSAGE_CHARS_MAX = 1000
# What spark-submit prints of a pod that is there already: ours, from a pass before.
_EXISTS = "AlreadyExists"
_NOT_PASSED = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME")

_log = structlog.get_logger(__name__)


class SubmitLauncher:
    """Submits in cluster mode; the driver's pod is there when `launch` returns."""

    def __init__(self, kubeconfig: Path, server: str) -> None:
        self._kubeconfig = kubeconfig
        self._master = f"k8s://{server}"

    async def launch(self, app: Json) -> None:
        """Submit the application. Raises LaunchError with spark-submit's last words."""
        submission = submission_of(app, self._master)
        with tempfile.TemporaryDirectory(prefix="rezone-submit-") as folder:
            templates = _write_templates(Path(folder), submission)
            code, output = await self._submit([*templates, *submission.words])
        name = app["metadata"]["name"]
        if code == 0 or _EXISTS in output:
            _log.info("submitted", application=name)
            return
        _log.warning("submission refused", application=name, output=output)
        raise LaunchError(f"spark-submit ended with {code}: {output[-MESSAGE_CHARS_MAX:]}")

    async def _submit(self, words: Sequence[str]) -> tuple[int | None, str]:
        # spark-submit would send this environment's Python along; the image has its own elsewhere.
        kept = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED}
        environment = {**kept, "KUBECONFIG": str(self._kubeconfig)}
        process = await asyncio.create_subprocess_exec(
            str(Path(pyspark.__path__[0], "bin", "spark-submit")),
            *words,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(SUBMIT_SECONDS_MAX):
                output, _ = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return process.returncode, output.decode(errors="replace")


def _write_templates(folder: Path, submission: Submission) -> list[str]:
    """Write the pods' templates and return the words that name them."""
    words = []
    for role, template in (
        ("driver", submission.driver_template),
        ("executor", submission.executor_template),
    ):
        file = folder / f"{role}.json"
        file.write_text(json.dumps(template))
        words += ["--conf", f"spark.kubernetes.{role}.podTemplateFile={file}"]
    return words
