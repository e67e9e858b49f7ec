"""`rezone login`: a client's certificate for whoever the API server knows.

The key is made here and stays here. What is posted is a CertificateSigningRequest, and the operator
signs it when the caller's Role allows the wanted use of the zone.
"""

import asyncio
import base64
import secrets
from dataclasses import dataclass
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rezone.cli.certificate import client_options, write
from rezone.domain.access.client_requests import LIFETIME, LIFETIME_MAX, SIGNER, USAGES
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import KubeError, MissingError, UnavailableError
from rezone.kube.api.kinds import CertificateRequest, Manifest
from rezone.kube.tls.authority import key_pem, renew_at
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import TlsFiles, TlsFilesError, utc_now

LIFETIME_SECONDS_MIN = 600
"""The least that the API server takes."""
ANSWER_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.25
TRY_AGAIN_SECONDS = 15.0
_END = b"-----END CERTIFICATE-----\n"


class LoginError(Exception):
    """Raised when a request was refused, or nobody answered it."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """What to ask for, and where to put it."""

    identity: Identity
    out: Path
    seconds: int


@click.command("login")
@client_options("What you want to do; a Role in the zone's namespace must allow it.")
@click.option(
    "--seconds",
    type=click.IntRange(LIFETIME_SECONDS_MIN, int(LIFETIME_MAX.total_seconds())),
    default=int(LIFETIME.total_seconds()),
    show_default=True,
    help="How long the certificate is good for.",
)
@click.option("--keep", is_flag=True, help="Stay, and renew it until stopped; for a sidecar.")
def login(
    *, zone: str, namespace: str | None, role: str, out: Path, seconds: int, keep: bool
) -> None:
    """Get a certificate for ZONE by who you are in Kubernetes."""

    async def run() -> None:
        async with await connect() as kube:
            identity = Identity(Role(role), namespace or kube.namespace, zone)
            wanted = Login(identity=identity, out=out, seconds=seconds)
            files = await log_in(kube, wanted)
            _tell(files, out)
            while keep:
                files = await renewed(kube, wanted, files)
                _tell(files, out)

    try:
        asyncio.run(run())
    except (KubeError, LoginError) as error:
        raise click.ClickException(str(error)) from error


def _tell(files: TlsFiles, out: Path) -> None:
    click.echo(f"{files.name}, good until {files.not_after:%F %T} UTC: REZONE_TLS_DIRECTORY={out}")


async def renewed(kube: Kube, wanted: Login, files: TlsFiles) -> TlsFiles:
    """Wait until two thirds of a certificate's life are over and return the next one.

    The API server or the operator being away is no reason to stop: the present one still holds.
    A refusal is, and ends the command: the right was taken away.
    """
    await asyncio.sleep(max(0.0, (renew_at(files) - utc_now()).total_seconds()))
    while True:
        try:
            return await log_in(kube, wanted)
        except UnavailableError as error:
            click.echo(f"{error}; trying again in {TRY_AGAIN_SECONDS:.0f} s", err=True)
        await asyncio.sleep(TRY_AGAIN_SECONDS)


async def log_in(kube: Kube, wanted: Login) -> TlsFiles:
    """Return a new certificate, written to its directory.

    Raises LoginError when it is refused, UnavailableError when nobody answers in time.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    posted = await kube.create(CertificateRequest, request_of(wanted, key))
    name = posted["metadata"]["name"]
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            chain = await _answer(kube, name)
    except TimeoutError as error:
        raise UnavailableError(
            f"nobody has answered CertificateSigningRequest {name} within {ANSWER_SECONDS_MAX:.0f} "
            "s; is the operator running, and does it issue certificates (tls.issuer: operator)?"
        ) from error
    try:
        files = files_of(chain, key)
    except TlsFilesError as error:
        raise LoginError(f"CertificateSigningRequest {name}: {error}") from error
    write(wanted.out, files)
    return files


def request_of(wanted: Login, key: ec.EllipticCurvePrivateKey) -> Manifest:
    """Return the CertificateSigningRequest."""
    name = x509.UniformResourceIdentifier(wanted.identity.uri)
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName([name]), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"rezone-{wanted.identity.role}-{secrets.token_hex(8)}"},
        "spec": {
            "signerName": SIGNER,
            "request": base64.b64encode(asked).decode(),
            "usages": list(USAGES),
            "expirationSeconds": wanted.seconds,
        },
    }


def files_of(chain: bytes, key: ec.EllipticCurvePrivateKey) -> TlsFiles:
    """Return what the operator has signed: the first certificate, and the authorities behind it."""
    first, end, authorities = chain.partition(_END)
    return TlsFiles.parse(authorities, first + end, key_pem(key))


def certificate_in(status: Manifest) -> bytes:
    """Return what was signed, nothing as long as there is none; LoginError when it was refused."""
    if certificate := status.get("certificate"):
        try:
            return base64.b64decode(certificate, validate=True)
        except ValueError as error:
            raise LoginError(f"the answer is no certificate: {error}") from error
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Denied", "Failed"):
            raise LoginError(f"refused: {condition.get('message', '')}")
    return b""


async def _answer(kube: Kube, name: str) -> bytes:
    while True:
        try:
            found = await kube.get(CertificateRequest, "", name)
        except MissingError as error:
            raise LoginError(f"CertificateSigningRequest {name} was deleted") from error
        if certificate := certificate_in(found.get("status") or {}):
            return certificate
        await asyncio.sleep(LOOK_SECONDS)
