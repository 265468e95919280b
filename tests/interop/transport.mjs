// The PubSub of TypeScript under test: the package @s2-dev/mastra-pubsub where it is installed, else our own peer.

import { S2 } from "@s2-dev/streamstore";
import { PeerPubSub } from "./peer.mjs";

const PACKAGE = "@s2-dev/mastra-pubsub";
const accessToken = process.env.S2_ACCESS_TOKEN;
const endpoints = { account: process.env.S2_ACCOUNT_ENDPOINT, basin: process.env.S2_BASIN_ENDPOINT };

export const transportName = process.env.INTEROP_TRANSPORT === PACKAGE ? PACKAGE : "peer.mjs";

export async function makePubSub(basin) {
  if (transportName === PACKAGE) {
    const { S2PubSub } = await import("@s2-dev/mastra-pubsub");
    return new S2PubSub({ accessToken, basin, endpoints });
  }
  return new PeerPubSub(new S2({ accessToken, endpoints }).basin(basin));
}
