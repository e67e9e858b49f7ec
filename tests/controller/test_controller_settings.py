"""What the operator is told by its environment, and the Lease's times that follow from it."""

from __future__ import annotations

import pytest

from rezone.controller.process import election_settings
from rezone.controller.settings import CoordinatorSettings


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
    assert made.lease_namespace == "rezone-system"


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
