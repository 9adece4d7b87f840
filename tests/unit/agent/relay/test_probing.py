"""Which slots of a tunnel may dial, and after which pauses."""

from __future__ import annotations

import asyncio

from jellybean_agent.tunnel.probing import ProbeGate


async def _settle() -> None:
    """Let all tasks go on until they wait: none needs as many steps."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_one_slot_probes_and_the_others_wait_until_the_gate_opens() -> None:
    async def run() -> None:
        gate, dials = ProbeGate(3600.0, 3600.0, 3600.0, 3600.0), list[int]()

        async def dial(slot: int) -> None:
            """Dial, and be refused by a relay of another deployment a while later."""
            while True:
                await gate.may_dial(slot)
                dials.append(slot)
                await asyncio.sleep(0)
                gate.close(slot)
                await gate.pause(slot)

        slots = [asyncio.create_task(dial(slot)) for slot in range(3)]
        await _settle()
        assert dials == [0, 1, 2]  # nothing was known yet
        slots.append(asyncio.create_task(dial(3)))  # its offer was accepted before, and is used now
        await _settle()
        assert dials == [0, 1, 2]
        gate.open()
        await _settle()
        assert sorted(dials[3:]) == [0, 1, 2, 3]
        for slot in slots:
            slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)

    asyncio.run(run())


def test_pauses_double_to_one_bound_and_with_patience_over_to_a_larger_one() -> None:
    now_s = 0.0
    gate = ProbeGate(first_s=0.125, most_s=1.0, patience_s=30.0, most_later_s=10.0, clock_s=lambda: now_s)
    for began_s in (0.0, 1000.0):  # the gate was open in between
        now_s = began_s
        gate.close(0)
        for most_s in (0.125, 0.25, 0.5, 1.0, 1.0):
            assert not gate.is_patience_over
            # Jitter makes a pause shorter, by half at most, but not the next one.
            assert most_s / 2 <= gate.next_pause_s() <= most_s
        now_s = began_s + 30.0
        assert gate.is_patience_over
        for most_s in (2.0, 4.0, 8.0, 10.0, 10.0):
            assert most_s / 2 <= gate.next_pause_s() <= most_s
        gate.open()
        assert not gate.is_patience_over
