"""`danube mcp --conformance`: what the public conformance suite looks for by name, mounted on the same server.

The suite finds its tools, resources and prompts by their names, so no server passes without them. They are served by
the same transports, guards, lists and task methods as ours; nothing of them is there without the flag.
"""

from __future__ import annotations

from pydanube_mcp.conformance.fixtures import mount
from pydanube_mcp.conformance.jobs import Jobs

__all__ = ["Jobs", "mount"]
