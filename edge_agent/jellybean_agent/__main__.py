"""The command `jellybean-agent`, also as `python -m jellybean_agent`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jellybean_protos.extras import missing_module_text
from jellybean_protos.standard_streams import open_standard_streams


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent and return its exit status; a part that is not installed is named, with the extra that brings it."""
    open_standard_streams()
    try:
        from jellybean_agent.command import main as run_agent

        return run_agent(argv)
    except ModuleNotFoundError as error:
        text = missing_module_text(error)
        if not text:
            raise
        print(f"jellybean-agent: {text}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
