"""`python -m jellybean` is the CLI."""

from jellybean.cli import main

if __name__ == "__main__":
    main()
