// The TypeScript side of the tests: a program that publishes, reads, runs agents and takes leases as it is told.

import { Buffer } from "node:buffer";
import { Console } from "node:console";
import crypto from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire, syncBuiltinESMExports } from "node:module";
import { isDeepStrictEqual } from "node:util";

globalThis.console = new Console(process.stderr); // libraries log; standard output carries answers alone

const { obey } = await import("./commands.mjs");
const { gate, makeAgent } = await import("./agent.mjs");
const { transportName, makePubSub } = await import("./transport.mjs");
const { NATIVE } = await import("./native.mjs");

const made = new Map();

function once(key, make) {
  if (!made.has(key)) made.set(key, make());
  return made.get(key);
}

const pubsubOf = (basin) => once(`pubsub ${basin}`, () => makePubSub(basin));
const leasesOf = async (basin) => (await pubsubOf(basin)).getLeaseProvider();
const agentOf = (basin, cleanup = 0) =>
  once(`agent ${basin} ${cleanup}`, async () => makeAgent(await pubsubOf(basin), cleanup));

function versionOf(name) {
  const require = createRequire(import.meta.url);
  const paths = require.resolve.paths(name).map((folder) => `${folder}/${name}/package.json`);
  for (const path of paths) {
    try {
      return JSON.parse(readFileSync(path)).version;
    } catch {
      continue; // the next folder up
    }
  }
}

/** Events as an answer carries them; the date in milliseconds. */
const plain = ({ createdAt, ...event }) => ({ ...event, createdAt: createdAt.getTime() });

// What a topic's subscription, or a run's stream, has given so far; `wait` ends when it holds what is asked for.
class Heard {
  items = [];
  #bell = Promise.withResolvers();

  add(item) {
    this.items.push(item);
    this.#bell.resolve();
    this.#bell = Promise.withResolvers();
  }

  async wait(isEnough) {
    while (!isEnough(this.items)) await this.#bell.promise;
    return this.items;
  }
}

const subscriptions = new Map(); // handle -> Heard
const runs = new Map(); // handle -> {heard, done, suspensions, abort}

/** Reads a run's stream to its end in the background. */
function follow(handle, suspensions, result) {
  const heard = new Heard();
  const { output } = result;
  const done = (async () => {
    for await (const chunk of output.fullStream) heard.add(chunk);
    const [text, usage, finishReason] = await Promise.all([output.text, output.usage, output.finishReason]);
    return { text, usage, finishReason, chunks: heard.items };
  })();
  done.catch(() => {}); // told to whoever asks for the outcome
  runs.set(handle, { heard, done, suspensions, abort: () => result.abort() });
}

const commands = {
  async versions() {
    const names = ["@mastra/core", "@s2-dev/streamstore", "@s2-dev/mastra-pubsub"];
    const versions = Object.fromEntries(names.map((name) => [name, versionOf(name)]));
    return { node: process.versions.node, transport: transportName, ...versions };
  },

  // -- events

  async publish({ basin, topic, events }) {
    const pubsub = await pubsubOf(basin);
    for (const event of events) await pubsub.publish(topic, event);
  },
  async publishNative({ basin, topic }) {
    const pubsub = await pubsubOf(basin);
    for (const [type, data] of Object.entries(NATIVE)) await pubsub.publish(topic, { type, data, runId: "" });
  },
  async history({ basin, topic, offset }) {
    return (await (await pubsubOf(basin)).getHistory(topic, offset)).map(plain);
  },
  /** Compares what is stored with `expected`, here, where numbers and texts are JavaScript's; gives the differences. */
  async compare({ basin, topic, expected }) {
    const events = await (await pubsubOf(basin)).getHistory(topic);
    const differing = expected.filter(({ index, type, runId, data }, i) => {
      const found = events[i] ?? {};
      const same = found.index === index && found.type === type && found.runId === runId;
      return !same || !isDeepStrictEqual(found.data, data);
    });
    return { count: events.length, differing };
  },
  async clear({ basin, topic }) {
    await (await pubsubOf(basin)).clearTopic(topic);
  },
  async subscribe({ basin, topic, handle, start }) {
    const pubsub = await pubsubOf(basin);
    const heard = new Heard();
    const callback = (event) => heard.add(plain(event));
    subscriptions.set(handle, heard);
    if (start === "latest") await pubsub.subscribe(topic, callback);
    else await pubsub.subscribeFromOffset(topic, start, callback);
  },
  async heard({ handle, count }) {
    return subscriptions.get(handle).wait((items) => items.length >= count);
  },

  // -- runs

  async open({ gate: name }) {
    gate(name).resolve();
  },
  async stream({ basin, handle, runId, say, cleanup, options }) {
    const agent = await agentOf(basin, cleanup);
    const suspensions = new Heard();
    const onSuspended = (data) => suspensions.add(data);
    follow(handle, suspensions, await agent.stream(say, { runId, maxSteps: 5, onSuspended, ...options }));
  },
  async resume({ basin, handle, runId, data }) {
    const agent = await agentOf(basin);
    follow(handle, new Heard(), await agent.resume(runId, data));
  },
  async observe({ basin, handle, runId, offset, cleanup }) {
    const agent = await agentOf(basin, cleanup);
    const suspensions = new Heard();
    const onSuspended = (data) => suspensions.add(data);
    const from = offset === undefined ? {} : { offset };
    follow(handle, suspensions, await agent.observe(runId, { onSuspended, ...from }));
  },
  async saw({ handle, type }) {
    await runs.get(handle).heard.wait((chunks) => chunks.some((chunk) => chunk.type === type));
  },
  async suspensions({ handle, count }) {
    return runs.get(handle).suspensions.wait((items) => items.length >= count);
  },
  async outcome({ handle }) {
    return runs.get(handle).done;
  },
  async abort({ handle }) {
    await runs.get(handle).abort();
  },
  /** Asks by its id alone for the abort of a run that another process executes. */
  async requestAbort({ basin, runId }) {
    const agent = await agentOf(basin);
    agent.abortRunStream(runId);
  },

  // -- leases

  async acquire({ basin, key, owner, ttl }) {
    return (await leasesOf(basin)).acquireLease(key, owner, ttl);
  },
  async contend({ basin, keys, owner, ttl, delays }) {
    const leases = await leasesOf(basin);
    const contend = async (key, i) => {
      await new Promise((resolve) => setTimeout(resolve, delays[i]));
      return leases.acquireLease(key, owner, ttl);
    };
    return Promise.all(keys.map(contend));
  },
  async owners({ basin, keys }) {
    const leases = await leasesOf(basin);
    return Promise.all(keys.map(async (key) => (await leases.getLeaseOwner(key)) ?? null));
  },
  async renew({ basin, key, owner, ttl }) {
    return (await leasesOf(basin)).renewLease(key, owner, ttl);
  },
  async transfer({ basin, key, from, to, ttl }) {
    return (await leasesOf(basin)).transferLease(key, from, to, ttl);
  },
  async release({ basin, keys, owner }) {
    const leases = await leasesOf(basin);
    await Promise.all(keys.map((key) => leases.releaseLease(key, owner)));
  },
  /** Takes the lease at a moment of which the token will end at `expiresAt`, with the nonce 01 02 03. */
  async acquireFixed({ basin, key, owner, expiresAt }) {
    const leases = await leasesOf(basin);
    const { randomBytes } = crypto;
    const { now } = Date;
    crypto.randomBytes = (size, ...rest) => (size === 3 ? Buffer.from([1, 2, 3]) : randomBytes(size, ...rest));
    Date.now = () => expiresAt - 1000;
    syncBuiltinESMExports();
    try {
      return await leases.acquireLease(key, owner, 1000);
    } finally {
      crypto.randomBytes = randomBytes;
      Date.now = now;
      syncBuiltinESMExports();
    }
  },
};

await obey(commands);
