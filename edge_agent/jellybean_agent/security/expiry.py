"""Tells the operator before a process's own certificate expires: in its log, by metrics and in `top`."""

from __future__ import annotations

import asyncio
import logging
import time

from jellybean_agent.errors import AgentError
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.security.renewal import renewal_advice, utc_minute

LOG = logging.getLogger("jellybean.tls")
# Share of its lifetime left from which a certificate is about to expire: 17 h of a week. Boxes that joined renew theirs
# at two thirds, so one that is below has failed to do so for days.
EXPIRING_SHARE = 0.1
_CHECKS = 100  # of a certificate in its lifetime, at least one each `_CHECK_EVERY_S`
_CHECK_EVERY_S = 60.0
_LEAST_PAUSE_S = 1.0


class ExpiryLog:
    """Logs once for each certificate of a folder that it is about to expire, and once that it has expired."""

    def __init__(self, folder: CertificateFolder) -> None:
        self._folder = folder
        self._logged: tuple[bytes, int] = (b"", 0)  # certificate, and the level of what was logged about it

    def check(self, now_unix_s: float) -> float:
        """Log what is new; returns the seconds until the next check."""
        found = self._folder.current()
        left_s, level = found.expires_unix_s - now_unix_s, 0
        if left_s <= 0.0:
            level = logging.ERROR
        elif left_s < EXPIRING_SHARE * found.lifetime_s:
            level = logging.WARNING
        if level and self._logged != (found.chain, level):
            self._logged = (found.chain, level)
            verb = "expired on" if left_s <= 0.0 else "expires on"
            effect = ": other processes refuse new connections" if left_s <= 0.0 else ""
            advice = renewal_advice(self._folder.path, found.identity)
            text = "the certificate of this process, in %s, %s %s%s; %s"
            LOG.log(level, text, self._folder.path, verb, utc_minute(found.expires_unix_s), effect, advice)
        return max(_LEAST_PAUSE_S, min(_CHECK_EVERY_S, found.lifetime_s / _CHECKS))


async def watch_expiry(folder: CertificateFolder | None) -> None:
    """Log before the certificate in a folder expires, until cancelled; returns at once without a folder."""
    if folder is None:
        return
    log = ExpiryLog(folder)
    while True:
        pause_s = _CHECK_EVERY_S
        try:
            pause_s = log.check(time.time())
        except (AgentError, OSError) as error:
            LOG.warning("%s: its expiry cannot be told: %s", folder.path, error)
        await asyncio.sleep(pause_s)
