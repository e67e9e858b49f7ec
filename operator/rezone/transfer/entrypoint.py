"""What the Spark image starts: a driver or an executor, as Spark on Kubernetes asks for it.

Spark gives its pods `driver <arguments of spark-submit>` or `executor` and says the rest by
environment variables (SPARK_*), which is its contract with every image. Anything else is run as it
is, so that the image is good for looking around too.

The process is replaced by what it starts: exit codes and signals are that program's.
"""

import os
import sys
from collections.abc import Mapping, Sequence

JAVA_OPTION = "SPARK_JAVA_OPT_"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# What the backend is told, by the variable it is taken from.
EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return what to run; KeyError names a variable that Spark should have set."""
    match list(arguments):
        case ["driver", *rest]:
            return _driver(rest, environment)
        case ["executor"]:
            return _executor(environment)
        case []:
            return ["spark-submit", "--version"]
        case other:
            return other


def _driver(rest: list[str], environment: Mapping[str, str]) -> list[str]:
    address = environment["SPARK_DRIVER_BIND_ADDRESS"]
    # In the pod of a cluster-mode driver there is nothing left to submit: it runs here.
    bound = ["--conf", f"spark.driver.bindAddress={address}", "--deploy-mode", "client"]
    return [f"{environment['SPARK_HOME']}/bin/spark-submit", *bound, *rest]


def _executor(environment: Mapping[str, str]) -> list[str]:
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    options = [
        word
        for option, variable in EXECUTOR_OPTIONS.items()
        for word in (option, environment[variable])
    ]
    return [
        f"{environment['JAVA_HOME']}/bin/java",
        *java_options(environment),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        class_path(environment),
        BACKEND,
        *options,
    ]


def java_options(environment: Mapping[str, str]) -> list[str]:
    """Return the options in SPARK_JAVA_OPT_0, _1, ..., in the order of their numbers."""
    numbered = {
        int(name.removeprefix(JAVA_OPTION)): value
        for name, value in environment.items()
        if name.startswith(JAVA_OPTION)
    }
    return [numbered[number] for number in sorted(numbered)]


def class_path(environment: Mapping[str, str]) -> str:
    """Return where Java looks: Spark's settings first, its own jars, then what the job added."""
    home = environment["SPARK_HOME"]
    added = (environment.get(name) for name in ("SPARK_CLASSPATH", "SPARK_EXTRA_CLASSPATH"))
    parts = [environment.get("SPARK_CONF_DIR") or f"{home}/conf", f"{home}/jars/*", *added]
    return ":".join(part for part in parts if part)


def main() -> None:
    """Become the driver or the executor; ends with 1 and a reason if Spark did not say all."""
    try:
        words = command(sys.argv[1:], os.environ)
    except KeyError as error:
        sys.exit(f"rezone: {error.args[0]} is not set: is this pod of Spark's making?")
    os.execvp(words[0], words)  # noqa: S606 - from a list, and without a shell on purpose


if __name__ == "__main__":
    main()
