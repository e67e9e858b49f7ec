"""`make chaos` where faults cannot be made: it says so, and only a short run may pass over it."""

import pytest
from click.testing import CliRunner
from e2e.chaos import apart
from e2e.chaos.__main__ import main
from e2e.chaos.cases import CASES


@pytest.fixture
def unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine one on which no fault can be made, and nothing may be installed."""

    def refuse() -> None:
        raise apart.UnfitMachineError("no namespaces here")

    monkeypatch.delenv(apart.INSIDE, raising=False)
    monkeypatch.setattr(apart, "install_packages", lambda: None)
    monkeypatch.setattr(apart, "check_machine", refuse)


@pytest.mark.usefixtures("unfit")
def test_a_short_run_says_that_it_was_skipped(capfd: pytest.CaptureFixture[str]) -> None:
    """A run in CI that has made no fault would look as one after which all was whole."""
    done = CliRunner().invoke(main, ["--faults", "short", "--or-skip"])

    assert done.exit_code == 0
    assert "SKIPPED, no fault was made: no namespaces here" in done.output + capfd.readouterr().err


@pytest.mark.usefixtures("unfit")
def test_a_whole_run_fails_where_it_cannot_be() -> None:
    """A person who asked for faults is told what to do."""
    done = CliRunner().invoke(main, [])

    assert done.exit_code == 1
    assert "no namespaces here" in done.output


def test_an_unknown_fault_is_named() -> None:
    """A name with a slip of the pen would be passed over, and its fault not be made."""
    done = CliRunner().invoke(main, ["--faults", "halves no-such"])

    assert done.exit_code == 2
    assert "['no-such']" in done.output
    assert all(name in done.output.replace("\n", "") for name in CASES)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot install them must know which they are."""
    monkeypatch.setattr("shutil.which", lambda name: None if name == "nft" else name)

    with pytest.raises(apart.UnfitMachineError, match="apt-get install nftables"):
        apart.check_machine()
