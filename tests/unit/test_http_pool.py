"""Kept connections are young, open, and newest first."""

from unit.fake_http import FakeTransport, upstream

from warmroute.proxy.http.outbound import UpstreamConnection
from warmroute.proxy.http.pool import ConnectionPool


def pool_of(
    *released_at: float,
) -> tuple[ConnectionPool, list[tuple[UpstreamConnection, FakeTransport]]]:
    """Make a pool with a connection given back at each time."""
    pool, kept = ConnectionPool(2.0), [upstream() for _ in released_at]
    for (connection, _), now in zip(kept, released_at, strict=True):
        pool.release(connection, now)
    return pool, kept


def test_empty_pool_has_nothing() -> None:
    """None says that a new connection is needed."""
    assert ConnectionPool(2.0).acquire(0.0) is None


def test_newest_connection_is_taken_first() -> None:
    """The others can then grow old and go; what is taken is marked as used."""
    pool, kept = pool_of(1.0, 2.0)
    assert pool.acquire(2.5) is kept[1][0]
    assert kept[1][0].is_reused
    assert not kept[0][0].is_reused
    assert repr(pool) == "<ConnectionPool 1 idle>"


def test_old_connection_is_closed_instead_of_taken() -> None:
    """An engine may be closing it just now."""
    pool, kept = pool_of(1.0)
    assert pool.acquire(3.5) is None
    assert kept[0][1].aborted
    assert len(pool) == 0


def test_connection_is_taken_up_to_its_last_moment() -> None:
    """The bound itself still counts as young."""
    pool, kept = pool_of(1.0)
    assert pool.acquire(3.0) is kept[0][0]


def test_closed_connection_is_passed_over() -> None:
    """One that the engine closed while idle is of no use."""
    pool, kept = pool_of(1.0, 1.0)
    kept[1][1].close()
    assert pool.acquire(1.0) is kept[0][0]


def test_closed_connection_is_not_taken_back() -> None:
    """Nor is it counted."""
    pool = ConnectionPool(2.0)
    connection, transport = upstream()
    transport.close()
    pool.release(connection, 0.0)
    assert len(pool) == 0


def test_sweep_closes_the_old_and_keeps_the_young() -> None:
    """Also when nobody asks for connections."""
    pool, kept = pool_of(1.0, 1.5, 4.0)
    pool.sweep(4.0)
    assert [transport.aborted for _, transport in kept] == [True, True, False]
    assert len(pool) == 1


def test_closed_pool_keeps_nothing() -> None:
    """What is idle is closed at once, what is out when it comes back."""
    pool, kept = pool_of(1.0)
    pool.close()
    connection, transport = upstream()
    pool.release(connection, 1.0)
    assert kept[0][1].aborted
    assert transport.aborted
    assert pool.acquire(1.0) is None
