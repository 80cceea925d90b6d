"""What an AI assistant does, as a script: look, plan, apply, undo, over MCP.

pip install "pydanube[mcp]";  danube up;  python mcp_script.py orders
"""

import asyncio
import os
import sys

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

SERVER = StdioServerParameters(command="danube", args=["mcp"], env=dict(os.environ))


async def main(topic: str) -> None:
    async with Client(stdio_client(SERVER)) as assistant:

        async def call(tool: str, **arguments: object) -> dict:
            answer = await assistant.call_tool(tool, arguments)
            if answer.is_error:
                sys.exit(str(answer.structured_content))
            return answer.structured_content

        print("verdict:", (await call("health_check"))["verdict"])
        plan = await call("plan_operation", operation="topics.delete", arguments={"topic": topic})
        print("deleting it would touch", plan["blast_radius"])
        done = await call("apply_plan", plan_id=plan["plan_id"], plan_token=plan["plan_token"])
        print("deleted:", done["operation"])
        await call("undo_change", call_id=done["call_id"])
        print("back:", (await call("describe_topic", topic=topic))["topic"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
