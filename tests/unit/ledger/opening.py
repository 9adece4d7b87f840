"""Opens a new ledger at the moment at which other processes do, too."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier

from jellybean.ledger import Ledger, all_events


def main(barrier: Barrier, url: str) -> None:
    """Open it and ask it."""
    barrier.wait(60.0)
    ledger = Ledger(url)
    assert all_events(ledger) == ()
    ledger.close()
