"""The command `jellybean`, also as `python -m jellybean`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the CLI. It is imported here, as Ctrl-C may come while that takes a second."""
    try:
        from jellybean.cli import main as run_cli
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            print('{"error": {"kind": "interrupted", "message": "interrupted", "problems": []}}')
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run_cli()


if __name__ == "__main__":
    main()
