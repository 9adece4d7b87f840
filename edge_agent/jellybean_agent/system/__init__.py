"""What the operating system gives: sockets, timers, malloc, private files; and protocol versions."""
