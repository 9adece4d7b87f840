"""Writes what the README shows anew: `python -m tests.tools.golden [plan | demo]`, both by default.

Runs the commands in a new folder, writes their output to docs/golden and the excerpt of it into README.md. `plan` takes
seconds, `demo` minutes; close other programs before it, as it measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.support.golden import DEMO, MEETS, README, SHOWN, Shown, excerpt, printed, with_block


def main() -> None:
    """Run the commands, write golden files and README."""
    chosen = sys.argv[1:] or [shown.name for shown in SHOWN]
    for shown in SHOWN:
        if shown.name in chosen:
            lines = printed(_output(shown))
            if shown is DEMO and not any(line.startswith(MEETS) for line in lines):
                sys.exit("the demo misses its targets on this machine now, so nothing is written:\n" + "\n".join(lines))
            shown.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            page = with_block(shown, README.read_text(encoding="utf-8"), excerpt(shown, lines))
            README.write_text(page, encoding="utf-8")


def _output(shown: Shown) -> str:
    """Standard output of the last command."""
    output = ""
    with tempfile.TemporaryDirectory() as folder:
        for arguments in shown.commands:
            command = [sys.executable, "-m", "jellybean", *arguments]
            environment = os.environ | {"COLUMNS": str(shown.columns)}
            done = subprocess.run(
                command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
            output = done.stdout
    return output


if __name__ == "__main__":
    main()
