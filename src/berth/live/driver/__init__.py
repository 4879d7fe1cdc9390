"""What every place where jobs run needs, once: a `Site` says what it has and does, a `Driver` decides for it."""
