"""A broker that can sample its own event loop: `python -m pydanube_cli.bench.profiled FILE broker …`.

The first SIGUSR1 starts the sampling. The second one ends it and writes FILE.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from pydanube_cli.bench.sampling import Sampler
from pydanube_cli.main import main


def sample_on_signals(path: Path) -> None:
    sampler = Sampler()

    def turn(_signal: int, _frame: FrameType | None) -> None:
        if not sampler.running:
            sampler.start()
            return
        part = path.with_suffix(".part")
        part.write_text(json.dumps(sampler.stop()))
        part.rename(path)  # its reader finds it whole

    signal.signal(signal.SIGUSR1, turn)


if __name__ == "__main__":
    sample_on_signals(Path(sys.argv.pop(1)))
    main()
