"""Which volume claims are asked for more room, and how far that has come."""

import pytest

from rezone.domain.observed.volumes import Growth, Volume, bytes_of, growth, to_grow

GI = 1 << 30


def volume(node: int, requested: int = 10, capacity: int = 10, **more: object) -> Volume:
    """Return a data node's bound volume, in GiB."""
    given = {"bound": True, "trouble": "", "infeasible": False} | more
    return Volume(
        node=node,
        requested_bytes=requested * GI,
        capacity_bytes=capacity * GI,
        bound=bool(given["bound"]),
        trouble=str(given["trouble"]),
        infeasible=bool(given["infeasible"]),
    )


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("0", 0),
        ("10Gi", 10 * GI),
        ("1.5Gi", GI * 3 // 2),
        ("2G", 2 * 10**9),
        ("0.1Ki", 103),
        ("1500m", 2),
        ("10737418240", 10 * GI),
    ],
)
def test_quantities_are_those_of_kubernetes(quantity: str, expected: int) -> None:
    """A claim would be asked for again and again, or never."""
    assert bytes_of(quantity) == expected


@pytest.mark.parametrize("quantity", ["", "10 Gi", "-1", "1e", "Gi", "10GiB"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    """It would count as some number of bytes."""
    with pytest.raises(ValueError, match="not a quantity"):
        bytes_of(quantity)


def test_only_bound_claims_that_ask_for_less_are_grown() -> None:
    """The API server refuses others; what was grown by hand would be asked to shrink."""
    volumes = (
        volume(0),
        volume(1, requested=20),
        volume(2, requested=40, capacity=40),
        volume(3, bound=False),
    )
    assert to_grow("20Gi", volumes) == (0,)


def test_growth_is_told_until_every_volume_has_the_size() -> None:
    """A volume that its driver cannot grow would look as if it had grown."""
    volumes = [
        volume(0, 20, 20),
        volume(1, 20),
        volume(2, 20, trouble="cannot"),
        volume(3, bound=False),
    ]
    found = growth("20Gi", volumes)
    assert found == Growth(size="20Gi", grown=1, total=3, waits="data node 2: cannot")
    assert found.text == "1 of 3 volumes have 20Gi; data node 2: cannot"
    refused = growth("20Gi", volumes, "forbidden")
    assert refused is not None
    assert (refused.waits, refused.refused) == ("forbidden", True)
    hopeless = growth("20Gi", [volume(0, 20, trouble="cannot", infeasible=True)])
    assert hopeless is not None
    assert hopeless.refused, "nothing would happen, and nobody be told to act"
    assert growth("20Gi", [volume(0, 20, 20), volume(1, 20, 21), volume(3, bound=False)]) is None
