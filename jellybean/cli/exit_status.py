"""The exit statuses of commands, as docs/cli.md lists them."""

from __future__ import annotations

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_OVERLOAD = 4
EXIT_MISSED = 5
EXIT_WOULD_BREAK = 6
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in a shell
EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE
EXIT_TERMINATED = 143  # 128 + SIGTERM
