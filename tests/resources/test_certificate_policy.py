"""Who may have which name signed by cert-manager, by the chart's policy, without cert-manager.

`e2e/operators/test_cert_manager.py` runs cert-manager beside the policy.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from admission import RELEASE_NAMESPACE, enforce, namespace, refusal, rendered
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from resource_server import Kubectl

from kubernetes_fixture import establish
from rezone.wire.transport.identity import Identity

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.proves("TR-03")]

Json = dict[str, Any]
LABEL = "certificates-test"
SHOP, OTHER = "policies-shop", "policies-other"
ISSUER = {"name": "rezone", "kind": "ClusterIssuer", "group": "cert-manager.io"}
CERT_MANAGER = "--as=system:serviceaccount:cert-manager:cert-manager"
ADMIN = "--as-group=system:masters"
"""Of whoever acts: what is refused is refused by the policy alone."""
OF_OTHER_FIELDS = ("no other kind", "sign nothing")


def kind(name: str) -> Json:
    """Return a definition that takes any content, as cert-manager's for this purpose."""
    plural = f"{name.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": {"kind": name, "plural": plural},
            "versions": [version],
        },
    }


def certificate(where: str, name: str = "c", **spec: Any) -> Json:
    """Return a Certificate of the issuer for Rezone."""
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"name": name, "namespace": where},
        "spec": {"secretName": "c", "issuerRef": ISSUER, **spec},
    }


def request(where: str, name: str = "r", **spec: Any) -> Json:
    """Return a CertificateRequest; what it has inside only cert-manager can read."""
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "CertificateRequest",
        "metadata": {"name": name, "namespace": where},
        "spec": {"request": "QUJD", "issuerRef": ISSUER, **spec},
    }


@pytest.fixture(scope="module")
def guarded(kubectl: Kubectl, helm: str) -> Kubectl:
    """Give the API server with the policy in three namespaces, one of them the operator's."""
    establish(kubectl.kubeconfig, [kind("Certificate"), kind("CertificateRequest")])
    for each in (SHOP, OTHER, RELEASE_NAMESPACE):
        namespace(kubectl, each, LABEL)
    policies = rendered(helm, "certificatepolicy.yaml", "tls.certManager.policy=true")
    refused = [certificate(SHOP), request(SHOP), signing_request("rezone")]
    enforce(kubectl, policies, LABEL, refused)
    return kubectl


def signing_request(issuer: str) -> Json:
    """Return a CertificateSigningRequest that cert-manager would sign by a ClusterIssuer."""
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = asked.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    text = signed.public_bytes(serialization.Encoding.PEM)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "csr"},
        "spec": {
            "request": base64.b64encode(text).decode(),
            "signerName": f"clusterissuers.cert-manager.io/{issuer}",
            "usages": ["client auth"],
        },
    }


@pytest.mark.parametrize(
    ("where", "spec"),
    [
        (SHOP, {"dnsNames": [f"accounts.{SHOP}.svc"], "usages": ["server auth", "client auth"]}),
        (SHOP, {"dnsNames": [f"data-node-12.accounts.{SHOP}.svc", f"accounts.{SHOP}.svc"]}),
        (SHOP, {"uris": [f"rezone://zone/{SHOP}/accounts/writer"], "usages": ["client auth"]}),
        (
            SHOP,
            {
                "dnsNames": [f"accounts.{SHOP}.svc"],
                "uris": [f"rezone://zone/{SHOP}/accounts/data-node/3"],
            },
        ),
        (RELEASE_NAMESPACE, {"uris": ["rezone://operator"], "usages": ["client auth"]}),
        (SHOP, {"commonName": "x", "issuerRef": {"name": "another", "kind": "ClusterIssuer"}}),
        (SHOP, {"commonName": "x", "issuerRef": {"name": "rezone"}}),
    ],
)
def test_each_namespace_has_its_own_names(guarded: Kubectl, where: str, spec: Json) -> None:
    """Or nobody could use cert-manager, for Rezone or for anything else."""
    assert refusal(guarded, certificate(where, **spec)) == ""


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "needs a name"),
        ({"uris": ["rezone://operator"]}, "uris of"),
        ({"uris": [f"rezone://zone/{OTHER}/accounts/admin"]}, "uris of"),
        ({"uris": [f"rezone://zone/{SHOP}/a/writer", "rezone://operator"]}, "uris of"),
        ({"uris": [f"REZONE://zone/{SHOP}/a/writer"]}, "uris of"),
        ({"uris": ["spiffe://x/y"]}, "uris of"),
        ({"dnsNames": ["rezone://operator"]}, "dnsNames of"),
        ({"dnsNames": [f"accounts.{OTHER}.svc"]}, "dnsNames of"),
        ({"dnsNames": [f"*.{SHOP}.svc"]}, "dnsNames of"),
        ({"dnsNames": [f"a.{OTHER}.svc.{SHOP}.svc"]}, "dnsNames of"),
        ({"dnsNames": [f"a.{OTHER}.svc\n.{SHOP}.svc"]}, "dnsNames of"),
        ({"dnsNames": [f"{SHOP}.svc"]}, "dnsNames of"),
        ({"dnsNames": [f"data-node-1.accounts.{OTHER}.svc"]}, "dnsNames of"),
        ({"dnsNames": [f"data-node-x.accounts.{SHOP}.svc"]}, "dnsNames of"),
        ({"dnsNames": [f"data-node-1.a.b.{SHOP}.svc"]}, "dnsNames of"),
        ({"commonName": "rezone://operator"}, "no other kind"),
        ({"literalSubject": "CN=rezone://operator"}, "no other kind"),
        ({"emailAddresses": ["rezone://operator"]}, "no other kind"),
        ({"otherNames": [{"oid": "1.2.3", "utf8Value": "rezone://operator"}]}, "no other kind"),
        ({"ipAddresses": ["10.0.0.1"]}, "no other kind"),
        ({"isCA": True}, "sign nothing"),
        ({"usages": ["cert sign"]}, "sign nothing"),
        ({"usages": ["any"]}, "sign nothing"),
    ],
)
def test_no_namespace_has_another_s_names(guarded: Kubectl, spec: Json, said: str) -> None:
    """Whoever may make a Certificate anywhere could be the operator of all zones."""
    named: Json = {"uris": [f"rezone://zone/{SHOP}/a/writer"]} if said in OF_OTHER_FIELDS else {}
    for account in ((), (CERT_MANAGER, ADMIN)):
        told = refusal(guarded, certificate(SHOP, **named, **spec), *account)
        assert said in told, told


def test_names_are_looked_at_again_when_they_change(guarded: Kubectl) -> None:
    """A Certificate that was let in could be given any name before it is signed."""
    body = certificate(SHOP, "stored", uris=[f"rezone://zone/{SHOP}/a/reader"])
    guarded("create", "--filename=-", stdin=json.dumps(body))
    where = ("certificate.cert-manager.io", "stored", f"--namespace={SHOP}", "--type=merge")
    for spec in ({"uris": ["rezone://operator"]}, {"isCA": True}):
        done = guarded.run("patch", *where, f"--patch={json.dumps({'spec': spec})}")
        assert "denied request" in done.stderr
    guarded("patch", *where, '--patch={"spec":{"duration":"24h"}}')
    guarded("patch", *where, '--patch={"spec":{"issuerRef":{"name":"another"}}}')
    guarded("patch", *where, '--patch={"spec":{"commonName":"rezone://operator"}}')
    back = guarded.run("patch", *where, f"--patch={json.dumps({'spec': {'issuerRef': ISSUER}})}")
    assert "no other kind" in back.stderr


def test_requests_are_made_by_cert_manager_alone(guarded: Kubectl) -> None:
    """A request that somebody writes by hand has any name inside, and is approved by default."""
    for user in ("--as=ann", "--as=system:serviceaccount:shop:cert-manager"):
        assert "by cert-manager alone" in refusal(guarded, request(SHOP), user, ADMIN)
    assert refusal(guarded, request(SHOP), CERT_MANAGER, ADMIN) == ""
    assert refusal(guarded, request(SHOP, issuerRef={"name": "another"})) == ""


def test_a_request_keeps_what_was_asked(guarded: Kubectl) -> None:
    """It would be one's own after cert-manager has made it."""
    text = json.dumps(request(SHOP, "stored"))
    guarded("create", "--filename=-", CERT_MANAGER, ADMIN, stdin=text)
    where = ("certificaterequest.cert-manager.io", "stored", f"--namespace={SHOP}", "--type=merge")
    changed = guarded.run("patch", *where, '--patch={"spec":{"request":"REVG"}}')
    assert "by cert-manager alone" in changed.stderr
    guarded("patch", *where, '--patch={"metadata":{"labels":{"a":"b"}}}')
    approve = '--patch={"status":{"conditions":[{"type":"Approved","status":"True"}]}}'
    guarded("patch", *where, "--subresource=status", approve)


def test_the_signer_of_kubernetes_requests_is_closed(guarded: Kubectl) -> None:
    """cert-manager can sign those, too, and nobody would have looked at their names."""
    assert "make a Certificate" in refusal(guarded, signing_request("rezone"))
    assert refusal(guarded, signing_request("another")) == ""


def test_the_names_that_are_allowed_are_those_that_data_nodes_know(guarded: Kubectl) -> None:
    """A role that is added would be signed for nobody, or for everybody."""
    names = [f"rezone://zone/{SHOP}/accounts/{role}" for role in ("reader", "writer", "admin")]
    for name in (*names, f"rezone://zone/{SHOP}/accounts/transfer"):
        identity = Identity.parse(name)
        assert identity is not None
        assert refusal(guarded, certificate(SHOP, uris=[name])) == ""
        assert refusal(guarded, certificate(OTHER, uris=[name])) != ""
