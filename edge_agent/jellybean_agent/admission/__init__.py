"""What a process accepts from others: connections, calls and bytes, each limited in all and shared by peers."""
