"""Requests for client certificates on the real API server: its tokens, its access rules."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from kube_helpers import stored_zone

from rezone.cli.login import Login, LoginError, log_in, renewed, request_of
from rezone.domain.access.client_requests import SIGNER
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import UnknownOutcomeError
from rezone.kube.api.kinds import CertificateRequest, Manifest
from rezone.kube.tls.authority import Authority
from rezone.kube.tls.certificates import IssuedCertificates
from rezone.kube.tls.client_certificates import ClientCertificates
from rezone.local.api import KubeApi
from rezone.local.errors import ApiError
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import TlsDirectory, TlsFiles, utc_now

pytestmark = pytest.mark.apiserver
ZONE = "orders"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def _caught(asking: Awaitable[TlsFiles]) -> TlsFiles | LoginError:
    # An error inside a task group would come out as a group.
    try:
        return await asking
    except LoginError as error:
        return error


class Desk:
    """An operator that answers, and accounts that ask."""

    def __init__(
        self, api: Kube, kube: KubeApi, kubeconfig: Path, namespace: str, place: Path
    ) -> None:
        self.api = api
        self.kube = kube
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.place = place
        self.certificates = IssuedCertificates(api, namespace)

    def answers(self, *namespaces: str) -> ClientCertificates:
        """Return what the operator answers with."""
        return ClientCertificates(self.api, self.certificates, namespaces)

    def wanted(self, role: Role, zone: str = ZONE) -> Login:
        """Return what an account asks for."""
        identity = Identity(role, self.namespace, zone)
        return Login(identity=identity, out=self.place / role, seconds=600)

    async def allow(self, *verbs: str, zone: str = ZONE) -> None:
        """Let the namespace's account use a zone."""
        name = "-".join(("rows", zone, *verbs))
        rule = {
            "apiGroups": ["rezone.dev"],
            "resources": ["distributionzones/rows"],
            "resourceNames": [zone],
            "verbs": list(verbs),
        }
        login = {
            "apiGroups": ["certificates.k8s.io"],
            "resources": ["certificatesigningrequests"],
            "verbs": ["create", "get"],
        }
        await self._grant("Role", name, rule)
        await self._grant("ClusterRole", f"login-{self.namespace}", login)

    async def forbid(self, *verbs: str, zone: str = ZONE) -> None:
        """Take a right away again."""
        name = "-".join(("rows", zone, *verbs))
        await self.kube.delete(f"{RBAC}/namespaces/{self.namespace}/rolebindings/{name}")

    async def _grant(self, kind: str, name: str, rule: Manifest) -> None:
        place = f"{RBAC}/namespaces/{self.namespace}" if kind == "Role" else RBAC
        account = {"kind": "ServiceAccount", "name": "default", "namespace": self.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        for plural, made in (
            (f"{kind.lower()}s", {"rules": [rule]}),
            (f"{kind.lower()}bindings", {"roleRef": role, "subjects": [account]}),
        ):
            with contextlib.suppress(ApiError):  # it is there
                await self.kube.create(f"{place}/{plural}", {"metadata": {"name": name}, **made})

    async def account(self) -> Path:
        """Return a kubeconfig with a token of the namespace's account."""
        tokens = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default/token"
        got = await self.kube.create(tokens, {"spec": {"audiences": []}})
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": got["status"]["token"]}
        path = self.place / "account"
        path.write_text(yaml.safe_dump(config))
        return path

    async def log_in(self, role: Role, answers: ClientCertificates, zone: str = ZONE) -> TlsFiles:
        """Return what the account gets, the operator answering beside it."""
        return await self.beside(answers, lambda own: log_in(own, self.wanted(role, zone)))

    async def beside(
        self, answers: ClientCertificates, asking: Callable[[Kube], Awaitable[TlsFiles]]
    ) -> TlsFiles:
        """Return what the account gets by asking, the operator answering one request."""
        known = await self._requests()
        async with await connect(await self.account()) as own, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer_next(answers, known))
            asked = tasks.create_task(_caught(asking(own)))
        outcome = asked.result()
        if isinstance(outcome, LoginError):
            raise outcome
        return outcome

    async def _answer_next(self, answers: ClientCertificates, known: set[str]) -> None:
        # Each look is a call to the API server, so it lets the other task go on.
        while not (new := await self._requests() - known):
            pass
        assert await answers.answer(new.pop()) is None

    async def _requests(self) -> set[str]:
        return {found["metadata"]["name"] for found in await self.api.list(CertificateRequest)}

    async def post(self, change: Callable[[Manifest], Any] = lambda _: None) -> str:
        """Post a writer's request as the administrator, changed; returns its name."""
        body = request_of(self.wanted(Role.WRITER), ec.generate_private_key(ec.SECP256R1()))
        change(body["spec"])
        return str((await self.api.create(CertificateRequest, body))["metadata"]["name"])

    async def conditions(self, name: str) -> dict[str, str]:
        """Return a request's conditions: message by type."""
        status = (await self.api.get(CertificateRequest, "", name)).get("status", {})
        return {c["type"]: c["message"] for c in status.get("conditions", ())}


@pytest.fixture
async def desk(api: Kube, kube: KubeApi, kubeconfig: Path, namespace: str, tmp_path: Path) -> Desk:
    """Give an operator with its authority, and a zone."""
    made = Desk(api, kube, kubeconfig, namespace, tmp_path)
    await made.certificates.start()
    await stored_zone(api, namespace, ZONE)
    return made


@pytest.mark.proves("B-12")
async def test_an_account_with_the_right_gets_a_clients_certificate(desk: Desk) -> None:
    """A service account could not use a zone, or its certificate would be good for more."""
    await desk.allow("write")
    files = await desk.log_in(Role.WRITER, desk.answers())
    assert files.identity == Identity(Role.WRITER, desk.namespace, ZONE)
    assert files.authority == desk.certificates.current().authority
    assert TlsDirectory(desk.place / "writer").current() == files
    assert (files.not_after - files.not_before).total_seconds() == 600 + 300  # and the clock's skew
    leaf = x509.load_pem_x509_certificate(files.certificate)
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]


@pytest.mark.proves("B-12")
@pytest.mark.parametrize(
    ("verbs", "zone", "role"),
    [
        ((), ZONE, Role.READER),
        (("read",), ZONE, Role.WRITER),
        (("write", "read"), ZONE, Role.ADMIN),
        (("read",), "another", Role.READER),
    ],
)
async def test_an_account_without_the_right_is_told_which(
    desk: Desk, verbs: tuple[str, ...], zone: str, role: Role
) -> None:
    """A token of any account would open any zone."""
    await desk.allow(*(verbs or ("list",)), zone=zone)
    with pytest.raises(LoginError, match=rf"may not .* distributionzones/rows .*/{ZONE}: a Role"):
        await desk.log_in(role, desk.answers())
    assert not (desk.place / role).exists()


async def test_a_zone_that_is_not_there_is_said(desk: Desk) -> None:
    """A misspelt zone would look like a missing right, or like a certificate that is no use."""
    await desk.allow("read", zone="order")
    with pytest.raises(LoginError, match="there is no zone order in namespace"):
        await desk.log_in(Role.READER, desk.answers(), "order")


def _weaken(spec: Manifest) -> None:
    weak = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    key = ec.generate_private_key(ec.SECP521R1())
    signed = weak.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    spec["request"] = base64.b64encode(signed).decode()


def _by_dns_name(spec: Manifest) -> None:
    uri = x509.DNSName(Identity(Role.WRITER, "shop", ZONE).uri)
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    named = asked.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    signed = named.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    text = signed.public_bytes(serialization.Encoding.PEM)
    spec["request"] = base64.b64encode(text).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec.update(usages=["client auth", "server auth"]), "are not a client's"),
        (_by_dns_name, "it has ['DNSName:rezone://zone/shop/orders/writer']"),
        (_weaken, "its key must be of P-256 or P-384"),
    ],
)
async def test_what_can_never_be_signed_is_denied(
    desk: Desk, change: Callable[[Manifest], Any], message: str
) -> None:
    """A request would wait for ever, or be signed as it is."""
    name = await desk.post(change)
    assert await desk.answers().answer(name) is None
    assert message in (await desk.conditions(name))["Denied"]


async def test_other_signers_and_namespaces_are_left_alone(desk: Desk) -> None:
    """Two signers would answer one request, the wrong one first."""
    foreign = await desk.post(lambda spec: spec.update(signerName="somebody.example/else"))
    elsewhere = await desk.post()
    for name, namespaces in ((foreign, ()), (elsewhere, ("another",))):
        assert await desk.answers(*namespaces).answer(name) is None
        assert await desk.conditions(name) == {}


async def test_a_person_may_approve_by_hand(desk: Desk) -> None:
    """`kubectl certificate approve` would be overruled by the review."""
    name = await desk.post(lambda spec: spec.update(usages=["client auth"]))
    found = await desk.api.get(CertificateRequest, "", name)
    approved = {"type": "Approved", "status": "True", "reason": "ByHand", "message": "known"}
    await desk.api.replace_approval({**found, "status": {"conditions": [approved]}})
    await desk.answers().answer(name)
    assert (await desk.api.get(CertificateRequest, "", name))["status"]["certificate"]
    assert await desk.conditions(name) == {"Approved": "known"}


async def test_an_approved_request_that_cannot_be_signed_has_failed(desk: Desk) -> None:
    """Its client would wait until it gives up, and nobody would know why."""
    name = await desk.post(_weaken)
    found = await desk.api.get(CertificateRequest, "", name)
    approved = {"type": "Approved", "status": "True", "reason": "ByHand", "message": "known"}
    await desk.api.replace_approval({**found, "status": {"conditions": [approved]}})
    await desk.answers().answer(name)
    assert "its key must be" in (await desk.conditions(name))["Failed"]


async def test_an_operator_that_died_after_approving_leaves_the_rest_to_the_next(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client would wait for a certificate that nobody signs any more."""
    name = await desk.post()

    async def dies(*_: object) -> Manifest:
        raise UnknownOutcomeError("gone")

    with monkeypatch.context() as dying:
        dying.setattr(desk.api, "replace_status", dies)
        with pytest.raises(UnknownOutcomeError):
            await desk.answers().answer(name)
    assert set(await desk.conditions(name)) == {"Approved"}
    await desk.answers().answer(name)
    found = await desk.api.get(CertificateRequest, "", name)
    assert found["status"]["certificate"]
    assert found["spec"]["signerName"] == SIGNER


@pytest.mark.proves("B-12")
async def test_a_kept_certificate_is_renewed_until_the_right_is_taken_away(desk: Desk) -> None:
    """A sidecar would let its certificate expire, or go on after its role was taken away."""
    await desk.allow("write")
    wanted = desk.wanted(Role.WRITER)
    long_ago = utc_now() - timedelta(days=89)
    old = Authority.create(long_ago).issue(wanted.identity, long_ago)
    new = await desk.beside(desk.answers(), lambda own: renewed(own, wanted, old))
    assert new.not_before > old.not_before
    await desk.forbid("write")
    with pytest.raises(LoginError, match="may not write"):
        await desk.beside(desk.answers(), lambda own: renewed(own, wanted, old))
