// An OAuth authorization server (npm's oidc-provider) on https://localhost, with its own pages to sign in and to consent.
// Arguments: folder with server.crt and server.key, where a client may be sent back to. Prints its address when it listens.
import { generateKeyPairSync } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import Provider from "oidc-provider";

const [, , folder, back] = process.argv;
const server = createServer({ cert: readFileSync(`${folder}/server.crt`), key: readFileSync(`${folder}/server.key`) });
server.listen(0, "127.0.0.1", () => {
  const issuer = `https://localhost:${server.address().port}`;
  const key = generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ format: "jwk" });
  const scopes = ["danube:read", "danube:write"];
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "assistant",
        token_endpoint_auth_method: "none",
        redirect_uris: [back],
        grant_types: ["authorization_code"],
        response_types: ["code"],
        id_token_signed_response_alg: "ES256",
      },
    ],
    cookies: { keys: ["of a test"] },
    jwks: { keys: [{ ...key, kid: "first", use: "sig", alg: "ES256" }] },
    scopes: ["openid", ...scopes],
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    features: {
      devInteractions: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => ({
          scope: scopes.join(" "),
          audience: resource,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "ES256" } },
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
