"""What the operator is told by its environment, and the Lease's times that follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from rezone.cli.certificate import write
from rezone.controller.process.main import election_settings
from rezone.controller.process.prepared import certificates_of
from rezone.controller.work.settings import CoordinatorSettings
from rezone.kube.tls.authority import Authority
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import DIRECTORY_VARIABLE, TlsFilesError, utc_now

if TYPE_CHECKING:
    from rezone.kube.api.client import Kube


def test_nothing_said_gives_the_defaults() -> None:
    """An operator would not start without settings that it has defaults for."""
    made = CoordinatorSettings.from_environment({})
    assert made == CoordinatorSettings()
    assert made.namespaces == ()


def test_values_are_parsed_by_their_kind() -> None:
    """A setting would be taken as text, or not at all."""
    made = CoordinatorSettings.from_environment(
        {
            "REZONE_NAMESPACES": "a, b,",
            "REZONE_LEADER_LEASE_SECONDS": "2.5",
            "REZONE_LEASE_DURATION_SECONDS": "3",
            "REZONE_HEALTH_PORT": "9999",
            "REZONE_DATA_NODE_IMAGE": "registry/x:1",
            "POD_NAME": "rezone-operator-0",
            "REZONE_NAMESPACE": "rezone-system",
        },
    )
    assert made.namespaces == ("a", "b")
    assert made.leader_lease_seconds == 2.5
    assert made.lease_duration_seconds == 3
    assert made.health_port == 9999
    assert made.data_node_image == "registry/x:1"
    assert made.identity == "rezone-operator-0"
    assert made.lease_namespace == made.namespace == "rezone-system"


def test_what_is_said_outright_goes_before_the_pod() -> None:
    """A chart's own value would be overwritten by the downward API."""
    made = CoordinatorSettings.from_environment(
        {
            "REZONE_IDENTITY": "me",
            "REZONE_LEASE_NAMESPACE": "leases",
            "POD_NAME": "pod",
            "REZONE_NAMESPACE": "ns",
        },
    )
    assert (made.identity, made.lease_namespace) == ("me", "leases")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("REZONE_HEALTH_PORT", "http"),
        ("REZONE_POD_TEMPLATE_FIELDS", "spec.image,["),
        ("REZONE_SPARK_TEMPLATE_FIELDS", "driver."),
        ("REZONE_HEALTH_PORT", ""),
        ("REZONE_RECONCILES_MAX", "0"),
        ("REZONE_LEASE_DURATION_SECONDS", "2.5"),
        ("REZONE_LEASE_DURATION_SECONDS", "0"),
        ("REZONE_LEADER_LEASE_SECONDS", "soon"),
        ("REZONE_LEADER_LEASE_SECONDS", "-1"),
        ("REZONE_RESYNC_SECONDS", "nan"),
        ("REZONE_LOG_LEVEL", "loud"),
        ("REZONE_LOST_AFTER_SECONDS", "inf"),
    ],
)
def test_a_bad_value_is_named(name: str, text: str) -> None:
    """The operator would start with a time that is none, or not say which variable is wrong."""
    with pytest.raises(ValueError, match=name):
        CoordinatorSettings.from_environment({name: text})


@pytest.mark.parametrize("seconds", [1, 3, 15, 60, 3600])
def test_election_fits_every_lease(seconds: int) -> None:
    """A short Lease would be refused at the start, or a holder give up after the next one began."""
    made = election_settings(seconds)
    assert made.lease_duration_seconds == seconds
    assert made.renew_interval_seconds * 4 < made.renew_deadline_seconds < seconds


def test_plaintext_and_certificates_are_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator told to use somebody's certificates would go on without any."""
    kube = cast("Kube", None)  # neither mode asks the API server
    assert certificates_of(kube, CoordinatorSettings()) is None
    provided = CoordinatorSettings.from_environment({"REZONE_TLS": "provided"})
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    with pytest.raises(TlsFilesError, match="REZONE_TLS=provided needs REZONE_TLS_DIRECTORY"):
        certificates_of(kube, provided)
    now = utc_now()
    write(tmp_path, Authority.create(now).issue(Identity(Role.OPERATOR), now))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    made = certificates_of(kube, provided)
    assert made is not None
    assert made.source.current().identity == Identity(Role.OPERATOR)


def test_unknown_ways_to_certificates_are_refused() -> None:
    """A misspelt value would mean plaintext."""
    with pytest.raises(ValueError, match="REZONE_TLS=on: must be one of issued, provided, off"):
        CoordinatorSettings.from_environment({"REZONE_TLS": "on"})
