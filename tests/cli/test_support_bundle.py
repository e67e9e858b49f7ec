"""`rezone support-bundle` on a real API server, with a kubelet's log endpoint behind it."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kubernetes_fixture import ApiServer
from rezone.cli.bundle.archive import Archive
from rezone.cli.bundle.collect import Collector, Wanted
from rezone.cli.look.text import text_of
from rezone.cli.look.views import SupportBundle, Unread
from rezone.cli.main import main
from rezone.domain.routing import routes
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.connection import MERGE_PATCH
from rezone.kube.api.errors import UnavailableError
from rezone.kube.api.kinds import Event, Kind, Node, Pod, Secret
from rezone.kube.api.names import DATA_NODE, labels_of
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import StatusStore
from rezone.local.agent.server import KubeletServer
from rezone.local.certificates import CertificateAuthority
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HIDDEN = "hunter2hunter2"
MACHINE = "support-bundle-machine"


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


@dataclass(frozen=True)
class Logs:
    """A pod of which a kubelet has logs."""

    path: Path
    done: bool = True

    def log_path(self, container: str, *, previous: bool) -> Path | None:
        """Return the log, that of the container's first run with `previous`."""
        return self.path.with_name(f"{container}{'.previous' if previous else ''}.log")


@pytest.fixture
async def machine(apiserver: ApiServer, api: Kube, tmp_path: Path) -> AsyncIterator[Path]:
    """Register a machine whose kubelet serves the logs in a directory; the API server asks it."""
    authority = CertificateAuthority(apiserver.kubeconfig.parent / "pki")
    server = KubeletServer(authority, lambda _namespace, _pod: Logs(tmp_path / "x"))  # type: ignore[arg-type,return-value]
    await server.start()
    port = await server.listen("127.0.0.1")
    await api.create(Node, {"metadata": {"name": MACHINE}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await patch_status(api, Node, "", MACHINE, status)
    yield tmp_path
    await api.delete(Node, "", MACHINE)
    await server.stop()


async def patch_status(
    api: Kube, kind: Kind, namespace: str, name: str, status: dict[str, Any]
) -> None:
    """Play a kubelet."""
    path = kind.path(namespace, name, "status")
    await api.connection.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)


@pytest.fixture
async def shop(api: Kube, namespace: str, machine: Path) -> str:
    """Return a namespace with a zone, a task, a data node's pod that has restarted, and secrets."""
    store = StatusStore(api)
    spec = {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}}
    made = await store.create(
        DistributionZone.parse({"metadata": {"name": "z", "namespace": namespace}, "spec": spec})
    )
    await RouteStore(api, made).create([routes.initial((0,), 1)])
    meta = {"name": "z-7", "namespace": namespace}
    await store.create(RebalanceTask.parse({"metadata": meta, "spec": {"zoneName": "z"}}))
    await api.create(
        Secret,
        {
            "metadata": {"name": "s", "namespace": namespace, "labels": labels_of("z", "x")},
            "stringData": {"a": HIDDEN},
        },
    )
    container = {
        "name": "data-node",
        "image": "x",
        "env": [{"name": "LOGIN", "value": HIDDEN}],
        "ports": [{"name": "health", "containerPort": 7401}],
    }
    labels = labels_of("z", DATA_NODE)
    pod = {"nodeName": MACHINE, "containers": [container]}
    await api.create(
        Pod, {"metadata": {"name": "z-0", "namespace": namespace, "labels": labels}, "spec": pod}
    )
    statuses = [
        {"name": "data-node", "restartCount": 1, "ready": True, "image": "x", "imageID": ""}
    ]
    await patch_status(
        api,
        Pod,
        namespace,
        "z-0",
        {"podIP": "127.0.0.1", "phase": "Running", "containerStatuses": statuses},
    )
    for name in ("z-0", "somebody-else"):
        await event(api, namespace, name)
    (machine / "data-node.log").write_text(f"started\nlogin token={HIDDEN}\nended\n")
    (machine / "data-node.previous.log").write_text("the first run\n")
    return namespace


async def event(api: Kube, namespace: str, pod: str) -> None:
    """Write an event about a pod."""
    body = {
        "metadata": {"name": f"{pod}.1", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "x",
        "reportingInstance": "x",
        "action": "Run",
        "reason": "Run",
        "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod},
    }
    await api.create(Event, body)


def files_of(bundle: Path) -> dict[str, str]:
    """Return the files of a bundle by their names in it."""
    with tarfile.open(bundle) as tar:
        return {
            entry.name.partition("/")[2]: (tar.extractfile(entry) or pytest.fail(entry.name))
            .read()
            .decode()
            for entry in tar
        }


@pytest.mark.proves("OB-07")
async def test_a_bundle_has_what_helpers_ask_for_and_no_secret(
    crds: Path, shop: str, tmp_path: Path
) -> None:
    """Who helps would ask again and again, or would be told a password."""
    bundle = tmp_path / "bundle.tar.gz"
    arguments = ["support-bundle", "z", "-n", shop, "--file", str(bundle)]
    done = await run(crds, arguments)
    assert done.startswith(f"{bundle}: "), done
    files = files_of(bundle)
    assert HIDDEN not in "".join(files.values())
    root = f"pods/{shop}/z-0/data-node"
    assert files[f"{root}.log"] == "started\nlogin token=REDACTED\nended\n"
    assert files[f"{root}.previous.log"] == "the first run\n"
    (zone,) = json.loads(files["objects/DistributionZone.json"])
    assert zone["spec"]["partitions"] == 1
    assert "managedFields" not in zone["metadata"]
    (task,) = json.loads(files["objects/RebalanceTask.json"])
    assert task["metadata"]["name"] == "z-7"
    (pod,) = json.loads(files["objects/Pod.json"])
    assert pod["spec"]["containers"][0]["env"] == [{"name": "LOGIN", "value": "REDACTED"}]
    (told,) = json.loads(files["objects/Event.json"])
    assert told["regarding"]["name"] == "z-0"
    assert json.loads(files["routes/z.json"])["layouts"][0]["partitions"][0]["leader"] == 0
    assert [each["metadata"]["name"] for each in json.loads(files["objects/Node.json"])] == [
        MACHINE
    ]
    # The API server refuses to go to a pod on a loopback address; of the operator there is none.
    unread = {each["what"]: each["why"] for each in json.loads(files["bundle.json"])["unread"]}
    assert "not allowed" in unread[f"pods/{shop}/z-0/metrics.txt"]
    assert "operator" in unread
    again = await run(crds, arguments, code=1)
    assert "cannot write the bundle" in again


async def run(crds: Path, arguments: list[str], code: int = 0) -> str:
    """Return what a command writes; it runs a loop of its own."""
    runner = CliRunner(env={"KUBECONFIG": str(crds)})
    done = await asyncio.to_thread(runner.invoke, main, arguments)
    assert done.exit_code == code, done.output
    return done.output


async def collected(
    api: Kube, tmp_path: Path, wanted: Wanted, bytes_max: int = 1 << 20
) -> tuple[dict[str, str], list[Unread]]:
    """Return the files of a bundle and what it could not read."""
    path = tmp_path / "bundle.tar.gz"
    with Archive(path, root="r", bytes_max=bytes_max, now=NOW) as archive:
        collector = Collector(api, wanted, archive)
        await collector.run()
    return files_of(path), collector.unread


@pytest.mark.proves("OB-07")
async def test_a_bundle_is_made_of_what_fits_and_says_what_does_not(
    api: Kube, shop: str, machine: Path, tmp_path: Path
) -> None:
    """A data node that logs without end would fill the disk, or there would be no bundle."""
    (machine / "data-node.log").write_text("".join(f"{n:06} {'x' * 900}\n" for n in range(9000)))
    wanted = Wanted(namespace=shop, zone="z", operator_namespace=shop)
    files, unread = await collected(api, tmp_path, wanted, 2 << 20)
    log = files[f"pods/{shop}/z-0/data-node.log"]
    assert len(log) <= 1 << 20
    assert [line[:6] for line in log.splitlines()] == [f"{n:06}" for n in range(8500, 9000)]
    assert f"pods/{shop}/z-0/data-node.log" not in {each.what for each in unread}
    (tmp_path / "bundle.tar.gz").unlink()
    files, unread = await collected(api, tmp_path, wanted, 64 << 10)
    assert f"pods/{shop}/z-0/data-node.log" not in files
    assert "the bundle is full" in {each.why for each in unread}
    assert f"pods/{shop}/z-0/data-node.previous.log" in files


async def test_a_bundle_ends_in_time(api: Kube, shop: str, tmp_path: Path) -> None:
    """A cluster in which nothing answers would keep who asks for ever."""
    wanted = Wanted(namespace=shop, zone="z", seconds=0.0)
    files, unread = await collected(api, tmp_path, wanted)
    assert [*files] == ["objects/DistributionZone.json"]
    assert "out of time" in {each.why for each in unread}


async def test_without_an_api_server_there_is_no_bundle(api: Kube, tmp_path: Path) -> None:
    """An empty archive would look like an answer."""
    await api.close()

    async def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("no connection")

    api.first = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(UnavailableError):
        await collected(api, tmp_path, Wanted(namespace="x"))
    assert not (tmp_path / "bundle.tar.gz").exists()


def test_much_that_is_missing_is_told_in_short() -> None:
    """A thousand pods without rights would push the name of the bundle off the screen."""
    unread = tuple(Unread(what=str(n), why="forbidden") for n in range(1000))
    made = SupportBundle(file="b", version="1", time=NOW, namespace="n", unread=unread)
    assert len(text_of(made).splitlines()) == 23
