"""A broker whose driver is believed to stop processes at once, so that jobs that hold little idle for a moment only."""

from berth.live.driver import suspending
from berth.live.local.__main__ import main

if __name__ == "__main__":
    suspending.START_S, suspending.LEAST_MIB = 1e-3, 1 << 40
    suspending.MIB_PER_S.update(dict.fromkeys(suspending.MIB_PER_S, 800_000.0))
    main()
