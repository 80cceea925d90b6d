// The same types for CommonJS.

import danube = require("danube-client");

export async function usage(): Promise<bigint> {
  const client: danube.DanubeClient = await danube.DanubeClient.connect("http://a");
  return await (await client.createProducer({ topic: "t" })).send("x");
}
