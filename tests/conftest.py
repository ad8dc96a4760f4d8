from __future__ import annotations

import signal

# A shell that starts the tests in the background has SIGINT ignored, and the commands that tests interrupt would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
