"""The history in pages: what was used, how jobs waited, what failed and what stood idle, and the jobs behind it."""
