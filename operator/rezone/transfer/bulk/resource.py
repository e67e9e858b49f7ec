"""What a job says stands in its SparkApplication, where people and `rezone job` look (SP-10).

By the Kubernetes client that Spark itself brings, as the driver's account, and as an annotation:
the status is the spark-operator's. A job never fails because nobody can be told.
"""

import json
import time
from collections.abc import Callable
from typing import Any, Self

import structlog

PROGRESS_ANNOTATION = "rezone.dev/progress"
RESULT_ANNOTATION = "rezone.dev/result"
RESULT_CHARACTERS_MAX = 60_000
"""All annotations of an object may have 256 KiB."""
SECONDS_BETWEEN = 2.0
FAILURES_MAX = 5
"""After so many failures in a row nothing is told of progress any more."""
END_PAUSES = (1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds between attempts to tell of the end: without it, a job that has ended has failed."""

log = structlog.get_logger(__name__)

Patch = Callable[[str], object]
"""Merges a JSON text into the SparkApplication."""


class Resource:
    """The SparkApplication of this driver."""

    def __init__(
        self,
        patch: Patch,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._patch = patch
        self._clock = clock
        self._sleep = sleep
        self._told_at = -SECONDS_BETWEEN
        self._failures = 0

    @classmethod
    def of(cls, context: Any, application: str | None) -> Self | None:
        """Return that of a "namespace/name"; None without one."""
        if not application:
            return None
        namespace, _, name = application.partition("/")
        return cls(_patch_of(context, namespace, name))

    def tell(self, said: dict[str, Any]) -> None:
        """Tell of progress, not more often than each two seconds but for the end of a phase."""
        now = self._clock()
        if self._failures >= FAILURES_MAX:
            return
        if now - self._told_at < SECONDS_BETWEEN and said["unitsDone"] < said["units"]:
            return
        self._told_at = now
        written = self._write(PROGRESS_ANNOTATION, json.dumps(said))
        self._failures = 0 if written else self._failures + 1

    def end(self, said: dict[str, Any]) -> None:
        """Tell of the end, in several attempts; keys of rows are for the log alone."""
        kept = {
            name: value for name, value in said.items() if name not in {"differences", "refused"}
        }
        text = json.dumps(kept)
        if len(text) > RESULT_CHARACTERS_MAX:
            kept = {name: value for name, value in kept.items() if not isinstance(value, list)}
            text = json.dumps(kept)
        for seconds in (*END_PAUSES, None):
            if self._write(RESULT_ANNOTATION, text) or seconds is None:
                return
            self._sleep(seconds)

    def _write(self, annotation: str, text: str) -> bool:
        """Return whether it is written."""
        try:
            self._patch(json.dumps({"metadata": {"annotations": {annotation: text}}}))
        except Exception as error:  # noqa: BLE001 - of Java's side; the job goes on
            log.warning(
                "the SparkApplication is not told", annotation=annotation, error=str(error)[:500]
            )
            return False
        return True


def _patch_of(context: Any, namespace: str, name: str) -> Patch:
    java = context._jvm.io.fabric8.kubernetes.client  # noqa: SLF001 - PySpark's only way to Java
    kept: list[Any] = []

    def patch(text: str) -> None:
        if not kept:
            client = java.KubernetesClientBuilder().build()
            found = client.genericKubernetesResources(
                "sparkoperator.k8s.io/v1beta2", "SparkApplication"
            )
            kept.append(found.inNamespace(namespace).withName(name))
        merge = java.dsl.base.PatchContext.of(java.dsl.base.PatchType.JSON_MERGE)
        kept[0].patch(merge, text)

    return patch
