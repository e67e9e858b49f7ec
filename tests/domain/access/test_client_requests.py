"""What can be asked of the signer at all, and what the API server is asked about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rezone.domain.access.client_requests import LIFETIME, LIFETIME_MAX, ClientRequest
from rezone.wire.transport.identity import Identity, Role

URI = "rezone://zone/shop/accounts/writer"


def request(*names: str, **changes: Any) -> ClientRequest:
    """Return a request for a writer's certificate."""
    known: dict[str, Any] = {
        "names": names or (URI,),
        "usages": ("client auth", "digital signature"),
        "lifetime_seconds": None,
        "user": {"user": "system:serviceaccount:shop:till", "groups": ["system:authenticated"]},
    }
    return ClientRequest(**known | changes)


def test_a_request_is_for_one_role_in_one_zone() -> None:
    """A client would be signed a name that the review was not asked about."""
    assert request().identity == Identity(Role.WRITER, "shop", "accounts")
    assert request().fault() == ""


@pytest.mark.proves("B-12")
@pytest.mark.parametrize(
    "names",
    [
        (),
        (URI, "rezone://operator"),
        ("rezone://operator",),
        ("accounts.shop.svc",),
        ("rezone://zone/shop/accounts/transfer",),
        ("rezone://zone/shop/accounts/data-node",),
        ("rezone://zone/shop/accounts/owner",),
        ("rezone://zone/shop//writer",),
    ],
)
def test_no_part_of_rezone_is_ever_signed_for_a_client(names: tuple[str, ...]) -> None:
    """Whoever may post a request could become the operator or a data node."""
    asked = request(names=names)
    assert asked.identity is None
    assert "one alternative name" in asked.fault()


def test_only_the_usages_of_a_client_are_signed() -> None:
    """A client's certificate could serve as a data node."""
    asked = request(usages=("client auth", "server auth"))
    assert "['server auth'] are not a client's" in asked.fault()


@pytest.mark.parametrize(
    ("role", "verb"), [("reader", "read"), ("writer", "write"), ("admin", "administer")]
)
def test_the_review_asks_for_the_verb_of_the_role(role: str, verb: str) -> None:
    """A reader's right would make a writer."""
    review = request(f"rezone://zone/shop/accounts/{role}").access_review()
    assert review["user"] == "system:serviceaccount:shop:till"
    assert review["groups"] == ["system:authenticated"]
    assert review["resourceAttributes"] == {
        "group": "rezone.dev",
        "resource": "distributionzones",
        "subresource": "rows",
        "verb": verb,
        "namespace": "shop",
        "name": "accounts",
    }


@pytest.mark.parametrize(
    ("seconds", "lifetime"),
    [(None, LIFETIME), (600, timedelta(minutes=10)), (10**8, LIFETIME_MAX)],
)
def test_a_certificate_lives_a_day_at_most(seconds: int | None, lifetime: timedelta) -> None:
    """A right that was taken away would go on for as long as a client had asked."""
    assert request(lifetime_seconds=seconds).lifetime == lifetime
