"""The `danube` command.

Until `main` can answer an interrupt with its summary, Ctrl-C just ends the program: loading takes a second on a busy
machine, and Python would print where in the loading it was.
"""

import signal
import sys

_OF_THE_PROGRAM = sys.argv[:1] != [] and sys.argv[0].replace("\\", "/").rpartition("/")[2] in (
    "danube",
    "danube.exe",
)

if _OF_THE_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
