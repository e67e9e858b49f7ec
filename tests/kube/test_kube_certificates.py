"""What the operator issues, when it issues it again, and whose Secrets it leaves alone."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kube_helpers import data_nodes, stored_zone, zone_of

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ForeignObjectError, InvalidWriteError
from rezone.kube.api.kinds import Manifest, Pod, Secret
from rezone.kube.jobs.spark import SparkSettings, build_application
from rezone.kube.nodes.data_node import PodSettings, build_pod, template_hash
from rezone.kube.nodes.pods import PodStore
from rezone.kube.tls.authority import LIFETIME, Authority
from rezone.kube.tls.certificates import (
    AUTHORITY_SECRET,
    LOOK_AGAIN,
    IssuedCertificates,
    NodeNames,
    secret_name,
)
from rezone.resources.model import ObjectMeta
from rezone.resources.task import RebalanceTask, RebalanceTaskSpec
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import FILES, TlsFiles
from standing_clock import StandingClock

pytestmark = pytest.mark.apiserver
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
SETTINGS = PodSettings(image="registry.example/rezone:1", tls=True)


def files_in(secret: Manifest) -> TlsFiles:
    """Return the files in a Secret."""
    return TlsFiles.parse(*(base64.b64decode(secret["data"][name]) for name in FILES))


async def read(api: Kube, namespace: str, role: Role = Role.DATA_NODE) -> TlsFiles:
    """Return the files in one of the zone's Secrets."""
    return files_in(await api.get(Secret, namespace, name_of(role)))


def name_of(role: Role = Role.DATA_NODE) -> str:
    """Return the name of the Secret of a role, or of data node 0."""
    return secret_name("orders", role, 0 if role is Role.DATA_NODE else None)


async def started(api: Kube, namespace: str, clock: StandingClock[datetime]) -> IssuedCertificates:
    """Return an operator's certificates, as after its start."""
    made = IssuedCertificates(api, namespace, clock=clock)
    await made.start()
    return made


@pytest.mark.proves("B-12")
async def test_a_zone_gets_its_certificates_before_its_pods(api: Kube, namespace: str) -> None:
    """Pods would wait for Secrets that nobody makes, or find the wrong names in them."""
    clock = StandingClock(BEGIN)
    certificates = await started(api, namespace, clock)
    zone = await stored_zone(api, namespace)
    await PodStore(api, SETTINGS, certificates=certificates).ensure(zone, data_nodes(0))
    for role in (Role.DATA_NODE, Role.TRANSFER):
        files = await read(api, namespace, role)
        node = 0 if role is Role.DATA_NODE else None
        assert files.identity == Identity(role, namespace, "orders", node)
        assert files.not_after == clock.now + LIFETIME
        secret = await api.get(Secret, namespace, name_of(role))
        assert secret["type"] == "kubernetes.io/tls"
        assert secret["metadata"]["ownerReferences"][0]["uid"] == zone.metadata.uid
    own = certificates.current()
    assert own.identity == Identity(Role.OPERATOR)
    assert own.authority == (await read(api, namespace)).authority
    pod = await api.get(Pod, namespace, "orders-0")
    mounts = {m["name"]: m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["tls"] == "/etc/rezone/tls"


@pytest.mark.parametrize("names", list(NodeNames))
async def test_who_has_a_secret_is_what_is_mounted(
    api: Kube, namespace: str, names: NodeNames
) -> None:
    """Pods would wait for Secrets that nobody makes; all nodes would have the key of all.

    While names change, pods of before mount the Secret of all until they are replaced.
    """
    certificates = IssuedCertificates(api, namespace, names=names)
    await certificates.start()
    zone = await stored_zone(api, namespace)
    settings = replace(SETTINGS, names=names)
    await PodStore(api, settings, certificates=certificates).ensure(zone, data_nodes(0, 1))
    found = {
        name
        for name in ("orders-tls", "orders-data-node-0-tls", "orders-data-node-1-tls")
        if await api.find(Secret, namespace, name) is not None
    }
    own = {"orders-data-node-0-tls", "orders-data-node-1-tls"}
    shared = {"orders-tls"}
    assert (
        found
        == {
            NodeNames.OWN: own,
            NodeNames.MIXED: own | shared,
            NodeNames.SHARED: shared,
        }[names]
    )
    for node in (0, 1):
        spec = (await api.get(Pod, namespace, f"orders-{node}"))["spec"]
        (mounted,) = [v["secret"]["secretName"] for v in spec["volumes"] if v["name"] == "tls"]
        files = files_in(await api.get(Secret, namespace, mounted))
        assert files.identity is not None
        assert files.identity.node == (None if names is NodeNames.SHARED else node)
        accepted = [
            e["value"]
            for e in spec["containers"][0]["env"]
            if e["name"] == "REZONE_NODE_SHARED_NAMES_ACCEPTED"
        ]
        assert accepted == ([] if names is NodeNames.OWN else ["true"])


@pytest.mark.proves("TR-03")
def test_no_two_zones_have_a_secret_of_one_name() -> None:
    """Data nodes of zone `a-data-node-0` would have the key of data node 0 of zone `a`.

    Where the operator issues, the zone that comes second would wait for ever; a zone that is named
    like the operator, or a client, would have its Secret.
    """
    zones = ["a", "a-tls", "data-node-1", "rezone-operator", "a-writer"]
    zones += [f"{zone}-{end}" for zone in zones for end in ("transfer", "data-node-0", "tls")]
    found: dict[str, str] = {"rezone-operator-tls": "operator", "a-writer-tls": "client"}
    for zone in zones:
        names = [secret_name(zone, Role.DATA_NODE), secret_name(zone, Role.TRANSFER)]
        names += [secret_name(zone, Role.DATA_NODE, node) for node in (0, 1, 10)]
        for name in names:
            assert found.setdefault(name, zone) == zone, f"{name} is of {zone}, too"
    assert secret_name("orders", Role.DATA_NODE) == "orders-tls", "as it always was"


@pytest.mark.proves("B-12")
async def test_two_thirds_of_a_life_bring_a_new_certificate(api: Kube, namespace: str) -> None:
    """A certificate would be renewed all the time, or be left to expire."""
    clock = StandingClock(BEGIN)
    certificates = await started(api, namespace, clock)
    zone = await stored_zone(api, namespace)
    await certificates.ensure(zone, (0,))
    first, own = await read(api, namespace), certificates.current()
    clock.now += LIFETIME * 2 / 3 - timedelta(hours=1)
    await certificates.ensure(zone, (0,))
    assert await read(api, namespace) == first
    assert certificates.current() is own
    clock.now += timedelta(hours=2)
    await certificates.ensure(zone, (0,))
    second = await read(api, namespace)
    assert second != first
    assert second.not_after == clock.now + LIFETIME
    assert certificates.current() is not own


async def test_another_operator_goes_on_with_the_same_authority(api: Kube, namespace: str) -> None:
    """Each change of the leading operator would cut all data nodes off from each other."""
    clock = StandingClock(BEGIN)
    zone = await stored_zone(api, namespace)
    await (await started(api, namespace, clock)).ensure(zone, (0,))
    before = await read(api, namespace)
    successor = await started(api, namespace, clock)
    await successor.ensure(zone, (0,))
    assert await read(api, namespace) == before
    assert successor.current().authority == before.authority


async def test_a_changed_authority_is_taken_up(api: Kube, namespace: str) -> None:
    """An authority that has leaked could not be replaced while zones are in use."""
    clock = StandingClock(BEGIN)
    certificates = await started(api, namespace, clock)
    zone = await stored_zone(api, namespace)
    await certificates.ensure(zone, (0,))
    old = await read(api, namespace)
    new = Authority.create(clock.now)

    async def write(authority: bytes, **others: bytes) -> None:
        contents = {"ca.crt": authority, **others}
        data = {name: base64.b64encode(content).decode() for name, content in contents.items()}
        await api.merge(Secret, namespace, AUTHORITY_SECRET, {"data": data})
        clock.now += LOOK_AGAIN
        await certificates.ensure(zone, (0,))

    both = old.authority + new.certificate
    await write(both)
    assert (await read(api, namespace)).authority == both
    assert certificates.current().authority == both
    await write(both, **{"tls.crt": new.certificate, "tls.key": new.key})
    await write(new.certificate)
    last = await read(api, namespace)
    assert last.authority == new.certificate
    assert last.identity == Identity(Role.DATA_NODE, namespace, "orders", 0)


async def test_a_secret_that_is_gone_or_broken_is_made_again(api: Kube, namespace: str) -> None:
    """A data node that restarts would wait for ever."""
    clock = StandingClock(BEGIN)
    certificates = await started(api, namespace, clock)
    zone = await stored_zone(api, namespace)
    await certificates.ensure(zone, (0,))
    name = name_of()
    await api.delete(Secret, namespace, name)
    clock.now += LOOK_AGAIN
    await certificates.ensure(zone, (0,))
    await api.merge(Secret, namespace, name, {"data": {"tls.key": "bm90aGluZw=="}})
    clock.now += LOOK_AGAIN
    await certificates.ensure(zone, (0,))
    assert (await read(api, namespace)).identity is not None


async def test_somebody_elses_secret_is_not_touched(api: Kube, namespace: str) -> None:
    """A certificate of another program would be overwritten because of its name."""
    certificates = await started(api, namespace, StandingClock(BEGIN))
    zone = await stored_zone(api, namespace)
    metadata = {"name": name_of(), "namespace": namespace}
    foreign = await api.create(Secret, {"metadata": metadata, "stringData": {"mine": "yes"}})
    with pytest.raises(ForeignObjectError, match="does not belong to DistributionZone orders"):
        await certificates.ensure(zone, (0,))
    found = await api.get(Secret, namespace, metadata["name"])
    assert found["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]


async def test_an_authority_that_cannot_sign_is_told(api: Kube, namespace: str) -> None:
    """The operator would overwrite an authority that somebody has half written."""
    metadata = {"name": AUTHORITY_SECRET, "namespace": namespace}
    await api.create(Secret, {"metadata": metadata, "stringData": {"tls.crt": "none"}})
    with pytest.raises(InvalidWriteError, match="holds no authority"):
        await started(api, namespace, StandingClock(BEGIN))


def test_plaintext_mounts_nothing() -> None:
    """Pods of an installation without TLS would wait for a Secret."""
    plain = build_pod(zone_of(), 0, PodSettings(image="i"))["spec"]
    assert [v["name"] for v in plain["volumes"]] == ["data", "tmp"]
    assert [e["name"] for e in plain["containers"][0]["env"]] == [
        "POD_IP",
        "REZONE_NODE_PLAINTEXT_ANYWHERE",
    ]
    assert template_hash(zone_of(), SETTINGS) != template_hash(zone_of(), PodSettings(image="i"))


@pytest.mark.parametrize("tls", [True, False])
def test_copy_jobs_get_their_own_certificate(tls: bool) -> None:
    """A copy would be refused by data nodes, or hold a data node's certificate."""
    meta = ObjectMeta(name="orders-1", namespace="ns", uid="u")
    task = RebalanceTask(metadata=meta, spec=RebalanceTaskSpec(zone_name="orders"))
    settings = SparkSettings(image="spark", tls=tls)
    conf: dict[str, Any] = build_application("x", zone_of(), task, "[]", settings)["spec"][
        "sparkConf"
    ]
    mounts = {key: value for key, value in conf.items() if "secrets" in key or "Env" in key}
    expected = {
        "spark.kubernetes.driver.secrets.orders-transfer-tls": "/etc/rezone/tls",
        "spark.kubernetes.executor.secrets.orders-transfer-tls": "/etc/rezone/tls",
        "spark.kubernetes.driverEnv.REZONE_TLS_DIRECTORY": "/etc/rezone/tls",
        "spark.executorEnv.REZONE_TLS_DIRECTORY": "/etc/rezone/tls",
    }
    assert mounts == (expected if tls else {})
