"""A pytest plugin for `make fuzz`: property tests look at many more examples than in `make test`.

A test that fixes its own number of examples keeps it; the rest take FUZZ_EXAMPLES (20000).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "20000")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("fuzz")
