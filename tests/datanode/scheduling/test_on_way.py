"""What may be sent to a client by a thread that must not block."""

from rezone.datanode.scheduling.on_way import UNREAD_ANSWERS_MAX, UNREAD_BYTES_MAX, OnWay


def test_answers_have_room_until_so_many_bytes_are_unread() -> None:
    """Half of a connection's window; a thread that others need would block in the rest of it."""
    on_way = OnWay()
    assert on_way.has_room(UNREAD_BYTES_MAX)
    assert not on_way.has_room(UNREAD_BYTES_MAX + 1)
    on_way.sent(UNREAD_BYTES_MAX - 10)
    on_way.sent(10)
    assert on_way.has_room(0)
    assert not on_way.has_room(1)
    on_way.read(1)
    assert on_way.has_room(UNREAD_BYTES_MAX - 10)
    assert not on_way.has_room(UNREAD_BYTES_MAX - 9)


def test_answers_have_room_until_so_many_are_unread() -> None:
    """Headers and frames take room as well. Without it small answers would fill the window."""
    on_way = OnWay()
    for _ in range(UNREAD_ANSWERS_MAX):
        assert on_way.has_room(100)
        on_way.sent(100)
    assert not on_way.has_room(0)
    on_way.sent(UNREAD_BYTES_MAX)  # by a thread that may block
    on_way.read(1)
    assert not on_way.has_room(0)
    on_way.read(UNREAD_ANSWERS_MAX + 1)
    assert on_way.has_room(UNREAD_BYTES_MAX)


def test_what_was_never_sent_cannot_be_read() -> None:
    """A client that claims more would have threads inline to it for answers that it never reads."""
    on_way = OnWay()
    on_way.read(1 << 40)
    on_way.sent(UNREAD_BYTES_MAX)
    assert not on_way.has_room(1)
    on_way.read(1)
    on_way.read(0)
    assert on_way.has_room(UNREAD_BYTES_MAX)
