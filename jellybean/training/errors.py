"""What goes wrong in training, with what to do next."""

from __future__ import annotations

from jellybean.errors import JellyBeanError


class TrainingError(JellyBeanError):
    """A model, document or checkpoint that cannot be trained; starting again would not help."""


class LostError(TrainingError):
    """Another rank went away or fell silent: all start again from the newest checkpoint."""


class StillError(LostError):
    """One stands still, or nobody does anything: told before who was ended for it."""


class CrashError(TrainingError):
    """Something was raised that nobody expected: all start again, but not twice for the same."""


class ToldError(TrainingError):
    """A process ends, and whoever started it has the reason."""


class StoppedError(KeyboardInterrupt):
    """A signal ends the run; KeyboardInterrupt, so that nothing takes it for a failure of people's own code."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)
