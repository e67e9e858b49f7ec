"""The Spark image starts what Spark on Kubernetes means by its arguments and variables."""

import pytest

from rezone.transfer.entrypoint import BACKEND, class_path, command, java_options

ENVIRONMENT = {
    "JAVA_HOME": "/opt/java",
    "SPARK_HOME": "/opt/spark",
    "SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "2048m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.4",
    "SPARK_EXECUTOR_POD_NAME": "copy-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def test_a_driver_runs_where_it_is() -> None:
    """In cluster mode the pod would submit itself again, and again."""
    words = command(["driver", "--properties-file", "p", "local:///job.py", "a b"], ENVIRONMENT)
    assert words[:5] == [
        "/opt/spark/bin/spark-submit",
        *("--conf", "spark.driver.bindAddress=10.1.2.3"),
        *("--deploy-mode", "client"),
    ]
    assert words[5:] == ["--properties-file", "p", "local:///job.py", "a b"]


def test_an_executor_finds_its_driver() -> None:
    """An executor that is told nothing, or something wrong, never gets a task."""
    words = command(["executor"], {**ENVIRONMENT, "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078"})
    assert words[:4] == ["/opt/java/bin/java", "-Dspark.driver.port=7078", "-Xms2048m", "-Xmx2048m"]
    options = words[words.index(BACKEND) + 1 :]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--driver-url": ENVIRONMENT["SPARK_DRIVER_URL"],
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.2.4",
        "--resourceProfileId": "0",
        "--podName": "copy-exec-1",
    }


def test_java_options_keep_their_order() -> None:
    """By the names' letters option 10 would come before option 2, and the last one wins in Java."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-D{number}" for number in range(12)}
    assert java_options(options) == [f"-D{number}" for number in range(12)]


def test_settings_come_before_jars() -> None:
    """Defaults inside the jars would win over the cluster's own log and Hadoop settings."""
    assert class_path(ENVIRONMENT) == "/opt/spark/conf:/opt/spark/jars/*"
    chosen = {**ENVIRONMENT, "SPARK_CONF_DIR": "/conf", "SPARK_CLASSPATH": "/a.jar"}
    assert class_path(chosen) == "/conf:/opt/spark/jars/*:/a.jar"


def test_what_spark_left_out_is_named() -> None:
    """A Java stack trace about a null URL says nothing of the variable that is missing."""
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        command(["executor"], {k: v for k, v in ENVIRONMENT.items() if k != "SPARK_DRIVER_URL"})


def test_other_words_are_run_as_they_are() -> None:
    """Nobody could look into the image, or run spark-submit from it."""
    assert command(["spark-submit", "--version"], ENVIRONMENT) == ["spark-submit", "--version"]
