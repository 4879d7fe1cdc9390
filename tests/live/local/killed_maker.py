"""A broker that is killed while it makes the first partition, before that has a region."""

from __future__ import annotations

import os
import signal

from berth.live.local.__main__ import main
from berth.partition import lifecycle

if __name__ == "__main__":
    lifecycle.make_region = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    main()
