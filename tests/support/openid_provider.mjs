// An OpenID Connect provider by the package oidc-provider: any password is right, and the name decides the claims.
// node openid_provider.mjs <its folder> <issuer> <port> <client as JSON> <conform: yes|no> <seconds by which its tokens are ahead>
import { createServer } from "node:http";

const [folder, issuer, port, client, conform, shift] = process.argv.slice(2);
const now = Date.now;
Date.now = () => now() + 1000 * Number(shift); // what tokens are made with; the header Date keeps the right time
const { default: Provider } = await import(`${folder}/node_modules/oidc-provider/lib/index.js`);
const { exportJWK, generateKeyPair } = await import(`${folder}/node_modules/jose/dist/node/esm/index.js`);
const { privateKey } = await generateKeyPair("RS256", { extractable: true });
const key = { ...(await exportJWK(privateKey)), alg: "RS256", use: "sig", kid: `key-${process.pid}-${Date.now()}` };
const people = {
  alice: { groups: ["staff", "platform"] },
  bob: { groups: ["auditors"] },
  carol: { groups: ["sales", "platform "] },
  dave: {},
  "another alice": { groups: ["platform"], preferred_username: "alice" },
  "eve<script>": { groups: "platform auditors" },
};
const provider = new Provider(issuer, {
  clients: [JSON.parse(client)],
  jwks: { keys: [key] },
  cookies: { keys: ["of-a-test"] },
  claims: { openid: ["sub"], profile: ["preferred_username", "groups"], email: ["email", "email_verified"] },
  conformIdTokenClaims: conform === "yes",
  pkce: { required: () => true, methods: ["S256"] },
  features: { devInteractions: { enabled: true } },
  findAccount: (_ctx, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, email: `${id}@example.com`, email_verified: false, ...people[id] }),
  }),
});
createServer(provider.callback()).listen(Number(port), "127.0.0.1");
