"""SparkApplications of jobs that people ask for."""

from kube_helpers import zone_of

from rezone.kube.jobs.bulk_jobs import Means, Volume, bulk_job
from rezone.resources.zone_status import DataNodeStatus, DistributionZoneStatus


def test_volumes_are_named_by_their_place() -> None:
    """A claim may have dots and 253 characters: the API server would refuse the driver's pod."""
    node = DataNodeStatus(id=0, pod_name="orders-0", address="10.0.0.1:7400")
    status = DistributionZoneStatus(data_nodes=(node,))
    zone = zone_of().model_copy(update={"status": status})
    claims = ("exports.of.last-year", "x" * 200)
    volumes = [Volume(claim, f"/data/{index}") for index, claim in enumerate(claims)]
    job = bulk_job("export", "orders-export-1", zone, [], Means(volumes=volumes))
    assert job.both["volumeMounts"] == [
        {"name": "data-0", "mountPath": "/data/0"},
        {"name": "data-1", "mountPath": "/data/1"},
    ]
    assert job.spec["volumes"] == [
        {"name": f"data-{index}", "persistentVolumeClaim": {"claimName": claim}}
        for index, claim in enumerate(claims)
    ]
