"""What all tests rely on."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background makes them ignore Ctrl-C, and what they start inherits that. Tests
# that interrupt programs want the usual start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
