// The TypeScript package measured from within: a program that does as it is told and answers with figures. Publishing
// and reading are the package's own; the loops around them do what those of bench_typescript.py do.

import { Console } from "node:console";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

globalThis.console = new Console(process.stderr); // libraries log; standard output carries answers alone

const { obey } = await import("./commands.mjs");
const { S2PubSub } = await import("@s2-dev/mastra-pubsub");

setFlagsFromString("--expose_gc");
const collect = runInNewContext("gc");

const accessToken = process.env.S2_ACCESS_TOKEN;
const endpoints = { account: process.env.S2_ACCOUNT_ENDPOINT, basin: process.env.S2_BASIN_ENDPOINT };
const { basin, event } = JSON.parse(process.env.BENCH);

const seconds = () => performance.now() / 1000;
const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** A PubSub for one figure, closed afterwards. */
async function withPubSub(use) {
  const pubsub = new S2PubSub({ accessToken, basin, endpoints });
  try {
    return await use(pubsub);
  } finally {
    await pubsub.close();
  }
}

/** Calls `work` from so many loops at once, as long as `goesOn`. */
async function loops(count, goesOn, work) {
  await Promise.all(
    Array.from({ length: count }, async () => {
      while (goesOn()) await work();
    }),
  );
}

/**
 * Publishes until `arrived` is kept: a subscription is ready before its place at the tail is known, so the first events
 * may pass it by.
 */
async function wake(pubsub, topic, arrived) {
  let awake = false;
  const woken = arrived.then(() => {
    awake = true;
  });
  while (!awake) {
    await pubsub.publish(topic, event);
    await Promise.race([woken, new Promise((resolve) => setTimeout(resolve, 100))]);
  }
}

/** A promise that is kept at the `count`th call of `come`. */
function counted(count) {
  const all = Promise.withResolvers();
  let seen = 0;
  return {
    all: all.promise,
    come: () => {
      seen += 1;
      if (seen === count) all.resolve();
    },
  };
}

// What `subscribe` holds for `silent` and `memory`.
let held;
let before;
let silent;

const commands = {
  /** Events a second from index 0 on, by a callback. */
  async replay({ topic, count }) {
    return withPubSub(async (pubsub) => {
      await pubsub.getHistory(topic, count - 1); // connects
      const { all, come } = counted(count);
      const began = seconds();
      await pubsub.subscribeFromOffset(topic, 0, come);
      await all;
      return count / (seconds() - began);
    });
  },

  /** Events a second of a whole history. */
  async history({ topic, count }) {
    return withPubSub(async (pubsub) => {
      await pubsub.getHistory(topic, count - 1);
      const began = seconds();
      const events = await pubsub.getHistory(topic, 0);
      if (events.length !== count) throw new Error(`${events.length} events`);
      return count / (seconds() - began);
    });
  },

  /**
   * Median milliseconds of a publish, and until its event is there, with a live subscriber; one by one, each at once
   * after the last event or, with `pause`, at a random moment up to so many seconds later.
   */
  async latency({ topic, count, pause }) {
    return withPubSub(async (pubsub) => {
      let arrived = Promise.withResolvers();
      let wanted = 0;
      await pubsub.subscribe(topic, ({ index }) => {
        if (index >= wanted) arrived.resolve(seconds());
      });
      await wake(pubsub, topic, arrived.promise);
      wanted = (await pubsub.getHistory(topic)).length;
      const published = [];
      const delivered = [];
      for (let n = 0; n < count; n++) {
        arrived = Promise.withResolvers();
        if (pause) await new Promise((resolve) => setTimeout(resolve, 1000 * pause * Math.random()));
        const began = seconds();
        await pubsub.publish(topic, event);
        published.push(seconds() - began);
        delivered.push((await arrived.promise) - began);
        wanted += 1;
      }
      const warm = count / 10;
      return { publish: 1000 * median(published.slice(warm)), live: 1000 * median(delivered.slice(warm)) };
    });
  },

  /** Events a second with so many publishes in flight. */
  async rate({ topic, duration, inFlight }) {
    return withPubSub(async (pubsub) => {
      await Promise.all(Array.from({ length: inFlight }, () => pubsub.publish(topic, event))); // connects
      let count = 0;
      const began = seconds();
      await loops(
        inFlight,
        () => seconds() - began < duration,
        async () => {
          await pubsub.publish(topic, event);
          count += 1;
        },
      );
      return count / (seconds() - began);
    });
  },

  /** Deliveries a second of one topic to so many subscribers. */
  async fanout({ topic, subscribers, events, inFlight }) {
    return withPubSub(async (pubsub) => {
      const ready = counted(subscribers);
      const done = counted(subscribers);
      let last = Number.POSITIVE_INFINITY;
      for (let n = 0; n < subscribers; n++) {
        let seen = false;
        await pubsub.subscribe(topic, ({ index }) => {
          if (!seen) ready.come();
          seen = true;
          if (index === last) done.come();
        });
      }
      await wake(pubsub, topic, ready.all);
      last = (await pubsub.getHistory(topic)).length + events - 1;
      let left = events;
      const began = seconds();
      await loops(
        inFlight,
        () => left-- > 0,
        () => pubsub.publish(topic, event),
      );
      await done.all;
      return (events * subscribers) / (seconds() - began);
    });
  },

  /** Subscribes, ten at a time; seconds until all were open. Somebody else then publishes to each topic. */
  async subscribe({ topics }) {
    held = new S2PubSub({ accessToken, basin, endpoints });
    await held.getHistory(topics[0]); // connects
    await held.subscribe(topics[0], () => {});
    collect();
    before = process.memoryUsage().rss;
    const left = [...topics];
    silent = new Set(topics);
    const began = seconds();
    await loops(
      10,
      () => left.length > 0,
      async () => {
        const topic = left.pop();
        await held.subscribe(topic, () => silent.delete(topic));
      },
    );
    return seconds() - began;
  },

  /** The topics that nothing has come from yet. */
  silent: () => [...silent],

  /** Bytes of memory that the subscriptions take. */
  memory() {
    collect();
    return process.memoryUsage().rss - before;
  },

  /** Milliseconds of each request for leases; the same sequence as that of bench_leases.py. */
  async leases({ keys, ttl }) {
    return withPubSub(async (pubsub) => {
      const leases = pubsub.getLeaseProvider();
      const samples = {};
      const take = async (name, request) => {
        const began = performance.now();
        await request();
        (samples[name] ??= []).push(performance.now() - began);
      };
      for (const key of keys) {
        await take("acquire, new", () => leases.acquireLease(key, "owner-a", ttl));
        await take("renew", () => leases.renewLease(key, "owner-a", ttl));
        await take("transfer", () => leases.transferLease(key, "owner-a", "owner-b", ttl));
        await take("look-up", () => leases.getLeaseOwner(key));
        await take("acquire, held by another", () => leases.acquireLease(key, "owner-a", ttl));
        await take("release", () => leases.releaseLease(key, "owner-b"));
        await take("acquire, free", () => leases.acquireLease(key, "owner-a", ttl));
        await take("acquire, own", () => leases.acquireLease(key, "owner-a", ttl));
      }
      return samples;
    });
  },
};

await obey(commands);
