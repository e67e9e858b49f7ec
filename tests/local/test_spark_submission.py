"""What the end-to-end suite's submitter tells spark-submit is what the spark-operator would."""

from __future__ import annotations

from typing import Any

from e2e.spark.submission import EXECUTOR_CONTAINER, settings_of, submission_of

MASTER = "k8s://https://127.0.0.1:6443"


def application(**spec: Any) -> Any:
    """Return an application that is being submitted."""
    return {
        "metadata": {"name": "app", "namespace": "n", "uid": "u", "labels": {"zone": "z"}},
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "image": "spark:1",
            "mainApplicationFile": "local:///opt/rezone/transfer/copy_job.py",
            "arguments": ["--plan-json", "[1, 2]"],
            "driver": {},
            "executor": {},
            **spec,
        },
        "status": {"submissionID": "s1", "sparkApplicationId": "spark-s1"},
    }


def test_words_end_with_the_file_and_its_arguments() -> None:
    """Spark takes what follows the file for the job's, and what stands before it for its own."""
    words = submission_of(application(), MASTER).words
    assert words[:6] == ("--master", MASTER, "--deploy-mode", "cluster", "--name", "app")
    assert words[-3:] == ("local:///opt/rezone/transfer/copy_job.py", "--plan-json", "[1, 2]")


def test_fields_become_settings() -> None:
    """A field that is left out is an executor too big for its node, or one without rights."""
    driver = {
        "cores": 1,
        "coreRequest": "100m",
        "memory": "1g",
        "serviceAccount": "rezone-spark",
        "labels": {"zone": "other"},
        "envVars": {"A": "1"},
        "secrets": [{"name": "tls", "path": "/tls", "secretType": "Generic"}],
    }
    executor = {"instances": 3, "cores": 2, "memory": "2g", "envVars": {"B": "2"}}
    found = settings_of(
        application(driver=driver, executor=executor, sparkConf={"spark.executor.cores": "4"})
    )
    expected = {
        "spark.kubernetes.namespace": "n",
        "spark.kubernetes.container.image": "spark:1",
        "spark.kubernetes.driver.pod.name": "app-driver",
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.driver.cores": "1",
        "spark.driver.memory": "1g",
        "spark.kubernetes.driver.request.cores": "100m",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "rezone-spark",
        "spark.kubernetes.driver.label.zone": "other",
        "spark.kubernetes.driver.label.sparkoperator.k8s.io/app-name": "app",
        "spark.kubernetes.driver.label.sparkoperator.k8s.io/submission-id": "s1",
        "spark.kubernetes.driverEnv.A": "1",
        "spark.kubernetes.driver.secrets.tls": "/tls",
        "spark.executor.instances": "3",
        "spark.executor.cores": "4",
        "spark.executorEnv.B": "2",
        "spark.kubernetes.executor.label.zone": "z",
    }
    assert expected.items() <= found.items()


def test_driver_goes_with_its_application() -> None:
    """The driver of a deleted application would copy on, and nobody would know it."""
    submission = submission_of(application(), MASTER)
    (owner,) = submission.driver_template["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("SparkApplication", "u")
    assert "ownerReferences" not in submission.executor_template["metadata"]


def test_templates_have_what_a_webhook_would_add() -> None:
    """A plan too long for an argument lies in a ConfigMap; without it the driver has no plan."""
    confined = {"securityContext": {"readOnlyRootFilesystem": True}}
    submission = submission_of(
        application(
            volumes=[{"name": "tmp", "emptyDir": {}}, {"name": "unused", "emptyDir": {}}],
            driver={
                **confined,
                "podSecurityContext": {"runAsNonRoot": True},
                "configMaps": [{"name": "plan", "path": "/etc/rezone/plan"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/scratch"}],
                "tolerations": [{"operator": "Exists"}],
            },
        ),
        MASTER,
    )
    pod = submission.driver_template["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {"readOnlyRootFilesystem": True}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
        "/scratch",
        "/etc/rezone/plan",
    }
    assert pod["volumes"] == [
        {"name": "tmp", "emptyDir": {}},
        {"name": "plan-vol", "configMap": {"name": "plan"}},
    ]
    assert pod["securityContext"] == {"runAsNonRoot": True}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert submission.executor_template["spec"]["containers"][0]["name"] == EXECUTOR_CONTAINER
