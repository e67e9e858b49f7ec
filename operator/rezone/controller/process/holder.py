"""Asks whether the process that holds the Lease is there, at the address that the Lease names."""

import ipaddress

import aiohttp

ASK_SECONDS = 0.75
"""For how long an answer is waited for: on one network it takes milliseconds."""
_PORT_DIGITS = 5


def address_of(host: str, port: int) -> str:
    """Return what a Lease says of where its holder answers; empty for no address of its own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if address.is_unspecified:
        return ""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"  # noqa: PLR2004


async def answers(address: str) -> bool:
    """Return whether anything answers at an address; true for what is no address of a holder."""
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and len(port) <= _PORT_DIGITS
    if not is_port or address_of(host.strip("[]"), int(port)) != address:
        return True
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{address}/healthz", allow_redirects=False),
        ):
            return True
    except (aiohttp.ClientConnectorError, TimeoutError):
        return False
    except aiohttp.ClientError:
        return True  # who hangs up is there
