"""An installation whose certificates are all cert-manager's, made as docs/operate/security.md says.

The manifests are read out of that page, so what people are told is what is run.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.histories import impossible_rows
from e2e.kind.command import CommandError, say
from e2e.kubernetes.cluster import Cluster, Json
from e2e.kubernetes.zone import condition
from e2e.operators.documented import manifests
from e2e.operators.programs import cert_manager, establish, serving
from rezone.cli.certificate import write
from rezone.cli.demo.ledger import Ledger
from rezone.cli.demo.operations import Operations, RowOperation
from rezone.cli.demo.proof import known_routes, prove
from rezone.cli.demo.table import generated_table
from rezone.cli.demo.traffic import Traffic
from rezone.client import ClientSettings, TableClient
from rezone.wire.errors import ForbiddenError, NotReadyError
from rezone.wire.transport.tls import DIRECTORY_VARIABLE, FILES, TlsDirectory, TlsFiles

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rezone"
# As the page names them.
NAMESPACE, ZONE, ISSUER, OPERATOR_NAMESPACE = "shop", "accounts", "rezone", "rezone-system"
AUTHORITY_NAMESPACE, AUTHORITY = "cert-manager", "rezone-ca"
PARTITIONS, REPLICAS, NODES = 6, 2, 3
NODE_NAMES = tuple(f"{ZONE}-data-node-{node}" for node in range(NODES))
WRITER_SECRET = f"{ZONE}-writer-tls"
SHORT = ClientSettings(timeout_seconds=2.0)
READY_SECONDS = 180.0
TABLE = generated_table(0)


class Installation:
    """The cluster, and what cert-manager has put into its Secrets."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._ledger = Ledger()
        self._history: list[RowOperation] = []

    def files(self, secret: str) -> TlsFiles:
        """Return a Secret of the zone's namespace as the files that a pod would mount."""
        data = self.cluster.get("secret", secret, f"--namespace={NAMESPACE}")["data"]
        return TlsFiles.parse(*(base64.b64decode(data[name]) for name in FILES))

    def mount(self, secret: str, holder: str = "") -> Path:
        """Write a Secret's newest files where a client has mounted it."""
        directory = self._folder / (holder or secret)
        write(directory, self.files(secret))
        return directory

    def addresses(self) -> list[str]:
        """Return where the zone's data nodes are."""
        nodes = self.cluster.get("dz", ZONE, f"--namespace={NAMESPACE}")["status"]["dataNodes"]
        return sorted(str(node["address"]) for node in nodes)

    def wait_ready(self) -> None:
        """Wait until all certificates are issued, the operator runs and the zone is ready."""
        self.wait_issued()
        rollout = ("rollout", "status", "deployment/rezone-operator", "--timeout=120s")
        self.cluster.kubectl(*rollout, f"--namespace={OPERATOR_NAMESPACE}", seconds=150)
        where = ("dz", ZONE, f"--namespace={NAMESPACE}")

        def ready() -> bool:
            return condition(self.cluster.get(*where), "Ready") == "True"

        def seen() -> str:
            return self.cluster.kubectl("get", "pods,certificates", "--all-namespaces")

        self.cluster.until("the zone is ready", ready, seconds=READY_SECONDS, seen=seen)

    def wait_issued(self) -> None:
        """Wait until cert-manager calls every Certificate ready."""
        issued = ("wait", "certificates", "--all", "--all-namespaces", "--for=condition=Ready")
        self.cluster.kubectl(*issued, "--timeout=60s", seconds=90)

    def renew(self, name: str, namespace: str = NAMESPACE) -> None:
        """Have a certificate issued again, as `cmctl renew` does, and wait until it is."""
        where = ("certificate", name, f"--namespace={namespace}")
        before = self.cluster.get(*where)["status"]["revision"]
        issuing = {
            "type": "Issuing",
            "status": "True",
            "reason": "ManuallyTriggered",
            "message": "renewed by hand",
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        patch = json.dumps([{"op": "add", "path": "/status/conditions/-", "value": issuing}])
        self.cluster.kubectl(
            "patch", *where, "--subresource=status", "--type=json", f"--patch={patch}"
        )

        def renewed() -> bool:
            found = self.cluster.get(*where)
            return bool(
                found["status"]["revision"] > before
                and condition(found, "Issuing") != "True"
                and condition(found, "Ready") == "True"
            )

        self.cluster.until(
            f"certificate {name} is issued again",
            renewed,
            seconds=60,
            seen=lambda: self.cluster.kubectl("describe", *where),
        )

    def wait_served(self) -> float:
        """Wait until every data node shows the certificate that is in the Secret now."""
        nodes = self.cluster.get("dz", ZONE, f"--namespace={NAMESPACE}")["status"]["dataNodes"]
        wanted = {
            str(node["address"]): ssl.PEM_cert_to_DER_cert(
                self.files(f"{ZONE}-data-node-{node['id']}-tls").certificate.decode()
            )
            for node in nodes
        }
        return self.cluster.until(
            "all data nodes show their new certificates",
            lambda: all(_served(address) == each for address, each in wanted.items()),
            seconds=READY_SECONDS,
            seen=lambda: "",
        )

    @contextmanager
    def under_traffic(self) -> Iterator[None]:
        """Write to all partitions and read meanwhile; no call may fail, nothing be lost.

        The writer's certificate is the documented one; digests are for an admin to ask.
        """
        addresses = self.addresses()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(DIRECTORY_VARIABLE, str(self.mount(WRITER_SECRET)))
            operations = Operations()
            traffic = Traffic(
                addresses, TABLE, PARTITIONS, ledger=self._ledger, operations=operations
            )
            traffic.start()
            try:
                yield
            finally:
                traffic.stop()
            patch.setenv(DIRECTORY_VARIABLE, str(self.mount(f"{ZONE}-admin-tls")))
            routes, peers = known_routes(addresses[0])
            proof = prove(addresses, TABLE, self._ledger.book(), routes, peers)
        assert (traffic.write_failures, traffic.read_failures, traffic.stale_reads) == ([], [], [])
        assert proof.problems == ()
        self._history += operations.take()
        assert impossible_rows(self._history, self._folder / "histories") == []
        assert proof.replicas_compared == PARTITIONS * (REPLICAS - 1)
        assert set(traffic.acks) == set(range(PARTITIONS))
        written = sum(len(acks) for acks in traffic.acks.values())
        say(f"{written} writes, {traffic.read_count} reads; {proof.rows_checked} rows proved")


def _served(address: str) -> bytes:
    """Return the certificate that a data node shows, in DER, whoever has signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), 5) as plain,
            context.wrap_socket(plain, server_hostname=f"{ZONE}.{NAMESPACE}.svc") as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""
    except OSError:
        return b""  # it is changing servers


def _zone_manifest() -> Json:
    """Return the zone that the page issues certificates for."""
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": ZONE, "namespace": NAMESPACE},
        "spec": {
            "partitions": PARTITIONS,
            "replicas": REPLICAS,
            "minInSyncReplicas": REPLICAS,
            "schema": {
                "columns": [
                    {"name": one.name, "type": one.type.value, "nullable": one.nullable}
                    for one in TABLE.schema.columns
                ],
                "primaryKey": list(TABLE.schema.primary_key),
            },
            "dataNodes": {"count": NODES},
        },
    }


def _in_role(writer: Json, role: str, issuer: Json | None = None) -> Json:
    """Return the documented client's Certificate for another role, perhaps of another issuer."""
    name = writer["metadata"]["name"].replace("writer", role)
    spec = {
        **writer["spec"],
        "secretName": f"{name}-tls",
        "uris": [uri.replace("writer", role) for uri in writer["spec"]["uris"]],
        **({"issuerRef": issuer} if issuer else {}),
    }
    return {**writer, "metadata": {**writer["metadata"], "name": name}, "spec": spec}


def runs_as(machine: Cluster) -> str:
    """Return the user that cert-manager is here, where it runs by the kubeconfig."""
    told = json.loads(machine.kubectl("auth", "whoami", "--output=json"))
    return str(told["status"]["userInfo"]["username"])


@pytest.fixture(scope="module")
def controller(machine: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run cert-manager with the definitions of its module."""
    foreign = cert_manager()
    say(f"cert-manager {foreign.version}")
    establish(machine, foreign.files / "deploy" / "crds")
    log = tmp_path_factory.mktemp("cert-manager") / "log"
    with serving([foreign.program, "--kubeconfig", machine.env["KUBECONFIG"]], log):
        yield


@pytest.fixture(scope="module")
def installation(
    machine: Cluster,
    controller: None,  # noqa: ARG001 - it has to run
    tmp_path_factory: pytest.TempPathFactory,
) -> Installation:
    """Install the chart and make a zone, then apply what the page says: pods wait for it."""
    for name in (AUTHORITY_NAMESPACE, NAMESPACE, OPERATOR_NAMESPACE):
        machine.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    machine.helm(
        *("install", "rezone", str(CHART), f"--namespace={OPERATOR_NAMESPACE}"),
        f"--values={CHART / 'examples' / 'one-machine.yaml'}",
        *("--set=tls.enabled=true", "--set=tls.issuer=secrets"),
        *("--set=tls.certManager.policy=true", f"--set=tls.certManager.account={runs_as(machine)}"),
        f"--set=zoneNamespaces={{{NAMESPACE}}}",
    )
    machine.apply(_zone_manifest())
    documented = manifests("operate/security.md", "cert-manager.io")
    machine.apply(*documented)
    (first,) = (
        one for one in documented if one["spec"].get("secretName") == f"{NODE_NAMES[0]}-tls"
    )
    for node in range(1, NODES):
        text = json.dumps(first).replace("data-node-0", f"data-node-{node}")
        machine.apply(json.loads(text))
    (writer,) = (one for one in documented if one["spec"].get("secretName") == WRITER_SECRET)
    stranger = _in_role(writer, "admin", {"kind": "ClusterIssuer", "name": "rezone-root"})
    stranger["metadata"]["name"] = "stranger"
    stranger["spec"]["secretName"] = "stranger-tls"
    machine.apply(_in_role(writer, "admin"), _in_role(writer, "reader"), stranger)
    made = Installation(machine, tmp_path_factory.mktemp("mounted"))
    made.wait_ready()
    return made


@pytest.mark.proves("B-12")
def test_clients_use_certificates_of_cert_manager(installation: Installation) -> None:
    """The names in its certificates could stand in another order, or nobody be told apart."""
    with installation.under_traffic():
        reader = TlsDirectory(installation.mount(f"{ZONE}-reader-tls"))
        with TableClient(installation.addresses(), tls=reader, settings=SHORT) as client:
            assert client.read(TABLE.key_batch([1])).num_rows <= 1
            with pytest.raises(ForbiddenError, match="reader may not write"):
                client.write(TABLE.batch({1: 1}))


@pytest.mark.proves("B-12")
def test_nobody_has_another_s_name_signed(installation: Installation) -> None:
    """cert-manager approves every request: the documented policy is what refuses it."""
    (writer,) = (
        one
        for one in manifests("operate/security.md", "cert-manager.io")
        if one["spec"].get("secretName") == WRITER_SECRET
    )
    for uri in ("rezone://operator", "rezone://zone/another/accounts/admin"):
        stolen = {**writer, "metadata": {"name": "stolen", "namespace": NAMESPACE}}
        stolen["spec"] = {**writer["spec"], "secretName": "stolen", "uris": [uri]}
        with pytest.raises(CommandError, match="denied request"):
            installation.cluster.apply(stolen)


@pytest.mark.proves("B-12")
def test_another_authority_is_refused(installation: Installation) -> None:
    """Whoever can run cert-manager with an issuer of their own could be an admin of the zone."""
    ours, theirs = installation.files(WRITER_SECRET), installation.files("stranger-tls")
    cases = {
        "has hung up in the TLS handshake": TlsFiles.parse(
            ours.authority, theirs.certificate, theirs.key
        ),
        "not one of this zone's": TlsFiles.parse(theirs.authority, ours.certificate, ours.key),
    }
    for message, files in cases.items():
        directory = installation.mount("stranger-tls")
        write(directory, files)
        tls = TlsDirectory(directory)
        with (
            TableClient(installation.addresses(), tls=tls, settings=SHORT) as client,
            pytest.raises(NotReadyError, match=message),
        ):
            client.read(TABLE.key_batch([1]))


@pytest.mark.proves("B-12")
def test_a_renewal_fails_no_write(installation: Installation) -> None:
    """Each renewal, every sixty days, would cost writes or ask for a restart."""
    before = installation.files(f"{NODE_NAMES[0]}-tls")
    with installation.under_traffic():
        for name in (*NODE_NAMES, f"{ZONE}-transfer", f"{ZONE}-writer"):
            installation.renew(name)
        installation.renew("rezone-operator", OPERATOR_NAMESPACE)
        installation.mount(WRITER_SECRET)
        say(f"renewed; served after {installation.wait_served():.0f} s")
    after = installation.files(f"{NODE_NAMES[0]}-tls")
    assert (after.authority, after.key != before.key) == (before.authority, True)
    installation.wait_ready()


@pytest.mark.proves("B-12")
def test_the_authority_is_renewed_under_load(installation: Installation) -> None:
    """By the documented issuer: with a new key old and new certificates would not trust."""
    before = installation.files(f"{NODE_NAMES[0]}-tls")
    # The traffic keeps the certificate and the authority of before, all along.
    with installation.under_traffic():
        installation.renew(AUTHORITY, AUTHORITY_NAMESPACE)
        installation.renew(f"{ZONE}-writer")
        installation.renew("rezone-operator", OPERATOR_NAMESPACE)
        tls = TlsDirectory(installation.mount(WRITER_SECRET, "newcomer"))
        with TableClient(installation.addresses(), tls=tls, settings=SHORT) as newcomer:
            newcomer.read(TABLE.key_batch([1]))
        for name in NODE_NAMES:
            installation.renew(name)
        say(f"authority renewed; served after {installation.wait_served():.0f} s")
    after = installation.files(f"{NODE_NAMES[0]}-tls")
    assert after.authority != before.authority
    installation.wait_ready()
