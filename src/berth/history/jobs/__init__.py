"""One job out of all: what became of it, wherever it is known."""
