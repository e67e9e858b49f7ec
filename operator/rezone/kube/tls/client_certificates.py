"""Certificates for clients that log in with what Kubernetes knows them by.

A client posts a CertificateSigningRequest of the signer `rezone.dev/zone-client`; the API server
has authenticated it, by a service account's token for one. The operator asks a SubjectAccessReview
whether that user has the role it wants, approves or denies, and signs. A person with the right to
approve for this signer may approve by hand, which takes the place of the review.

Two writes answer a request, and each may be the last before a crash: a request that is approved and
has no certificate is signed by the next pass. Every coordinator would answer the same.

Concurrency: used by the tasks of one event loop.
"""

import base64
from datetime import datetime
from typing import Any

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from rezone.domain.access.client_requests import SIGNER, ClientRequest
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ConflictWriteError
from rezone.kube.api.kinds import AccessReview, CertificateRequest, Manifest, ZoneKind
from rezone.kube.tls.authority import PublicKey
from rezone.kube.tls.certificates import IssuedCertificates
from rezone.wire.transport.tls import UNREADABLE_CERTIFICATE, name_text, utc_now

_log = structlog.get_logger(__name__)

AGAIN_SECONDS = 0.5
_RSA_BITS_MIN = 2048
_CURVES = (ec.SECP256R1, ec.SECP384R1)
_USER_FIELDS = {"username": "user", "groups": "groups", "uid": "uid", "extra": "extra"}


class UnusableRequestError(ValueError):
    """Raised when the bytes of a request are none, or its key cannot be used."""


class ClientCertificates:
    """Answers the requests for zones of `namespaces`; of all, when it is empty."""

    def __init__(
        self, kube: Kube, certificates: IssuedCertificates, namespaces: tuple[str, ...] = ()
    ) -> None:
        self._kube = kube
        self._certificates = certificates
        self._namespaces = namespaces

    async def answer(self, name: str) -> float | None:
        """Bring one request as far as it goes; returns when to look again, None for never.

        Raises KubeError when the API server does not answer: then the request stays as it is.
        """
        found = await self._kube.find(CertificateRequest, "", name)
        if found is None or found["spec"]["signerName"] != SIGNER or _is_answered(found):
            return None
        try:
            await self._answer(found)
        except ConflictWriteError:
            return AGAIN_SECONDS
        return None

    async def _answer(self, found: Manifest) -> None:
        try:
            request, key = parse(found["spec"])
        except UnusableRequestError as error:
            return await self._refuse(found, "Unusable", str(error))
        if fault := request.fault():
            return await self._refuse(found, "NotForAClient", fault)
        identity = request.identity
        assert identity is not None  # noqa: S101 - `fault` is about it
        if self._namespaces and identity.namespace not in self._namespaces:
            return None  # another operator's
        if not _has(found, "Approved"):
            if await self._kube.find(ZoneKind, identity.namespace, identity.zone) is None:
                missing = f"there is no zone {identity.zone} in namespace {identity.namespace}"
                return await self._refuse(found, "NoSuchZone", missing)
            if not await self._may(request):
                return await self._refuse(found, "MayNot", request.denial())
            found = await self._decide(found, "Approved", "MayUseZone", "by access review")
        chain = self._certificates.certify(identity, key, request.lifetime)
        status = {**found["status"], "certificate": base64.b64encode(chain).decode()}
        await self._kube.replace_status(CertificateRequest, {**found, "status": status})
        _log.info("signed for a client", user=request.user.get("user"), name=identity.uri)
        return None

    async def _may(self, request: ClientRequest) -> bool:
        review = await self._kube.create(
            AccessReview,
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": request.access_review(),
            },
        )
        return bool(review["status"]["allowed"])

    async def _refuse(self, found: Manifest, reason: str, message: str) -> None:
        _log.warning("refused a client", request=found["metadata"]["name"], reason=message)
        if not _has(found, "Approved"):
            await self._decide(found, "Denied", reason, message)
            return
        # Denied and Approved exclude each other: what cannot be signed has failed.
        failed = _with_condition(found, "Failed", reason, message, utc_now())
        await self._kube.replace_status(CertificateRequest, failed)

    async def _decide(self, found: Manifest, kind: str, reason: str, message: str) -> Manifest:
        decided = _with_condition(found, kind, reason, message, utc_now())
        return await self._kube.replace_approval(decided)


def parse(spec: Manifest) -> tuple[ClientRequest, PublicKey]:
    """Return what the spec of a CertificateSigningRequest asks for, and the key to certify.

    Raises UnusableRequestError.
    """
    try:
        asked = x509.load_pem_x509_csr(base64.b64decode(spec["request"], validate=True))
        names = tuple(map(name_text, _alternative_names(asked)))
        key = _usable_key(asked)
    except UNREADABLE_CERTIFICATE as error:
        raise UnusableRequestError(f"it cannot be signed: {error}") from error
    request = ClientRequest(
        names=names,
        usages=tuple(spec.get("usages", ())),
        lifetime_seconds=spec.get("expirationSeconds"),
        user={ours: spec[theirs] for theirs, ours in _USER_FIELDS.items() if theirs in spec},
    )
    return request, key


def _alternative_names(asked: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    try:
        kind = x509.SubjectAlternativeName
        return list(asked.extensions.get_extension_for_class(kind).value)
    except x509.ExtensionNotFound:
        return []


def _usable_key(asked: x509.CertificateSigningRequest) -> PublicKey:
    try:
        signed = asked.is_signature_valid
    except InvalidSignature:
        signed = False
    if not signed:
        raise ValueError("its signature is not by its own key")
    key = asked.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        return key
    raise ValueError(f"its key must be of P-256 or P-384, or RSA of {_RSA_BITS_MIN} bits or more")


def _is_answered(found: Manifest) -> bool:
    if found.get("status", {}).get("certificate"):
        return True
    return _has(found, "Denied") or _has(found, "Failed")


def _has(found: Manifest, kind: str) -> bool:
    conditions: list[Any] = found.get("status", {}).get("conditions", [])
    return any(condition["type"] == kind for condition in conditions)


def _with_condition(
    found: Manifest, kind: str, reason: str, message: str, now: datetime
) -> Manifest:
    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    status = found.get("status", {})
    conditions = [*status.get("conditions", []), condition]
    return {**found, "status": {**status, "conditions": conditions}}
