// A Mastra PubSub on S2, written for these tests alone on the public interfaces of @mastra/core and
// @s2-dev/streamstore. It stands in where the package @s2-dev/mastra-pubsub cannot be installed. It has no retries: the
// server runs beside it.

import { Buffer } from "node:buffer";
import { randomBytes, randomUUID } from "node:crypto";
import { EventEmitterPubSub, PubSub } from "@mastra/core/events";
import { AppendInput, AppendRecord, FencingTokenMismatchError, RangeNotSatisfiableError, S2Error } from "@s2-dev/streamstore";

const isCommand = ({ headers }) => headers?.length === 1 && headers[0][0] === "";
const isMissing = (error) => error instanceof S2Error && [404, 409].includes(error.status);
const isPastTail = (error) => error instanceof RangeNotSatisfiableError;

/** The event that a record holds; throws when it holds none. */
function eventOf({ seqNum, body }) {
  const { id, type, runId, data, createdAt, deliveryAttempt = 1 } = JSON.parse(body);
  const moment = ["string", "number"].includes(typeof createdAt) ? new Date(createdAt) : new Date(NaN);
  const texts = [id, type, runId].every((text) => typeof text === "string");
  if (!texts || data === undefined || Number.isNaN(moment.getTime()) || typeof deliveryAttempt !== "number") {
    throw new TypeError(`record ${seqNum} holds no event`);
  }
  return { id, type, runId, data, createdAt: moment, deliveryAttempt, index: seqNum };
}

export class PeerPubSub extends PubSub {
  #basin;
  #local = new EventEmitterPubSub();
  #readers = new Map(); // topic -> Map of callback -> reader

  constructor(basin) {
    super();
    this.#basin = basin;
  }

  get supportsOffsets() {
    return true;
  }

  getLeaseProvider() {
    return new PeerLeases((key) => this.#stream(`agent.thread-stream.${encodeURIComponent(key)}`));
  }

  async publish(topic, event, options) {
    if (!this.#isStored(topic) || options?.localOnly) return this.#local.publish(topic, event, options);
    const { type, runId, data, ...rest } = event;
    const body = { type, runId, data, ...rest, id: randomUUID(), createdAt: new Date(), deliveryAttempt: 1 };
    if (data === undefined) throw new TypeError("an event needs data");
    await this.#stream(topic).append(AppendInput.create([AppendRecord.string({ body: JSON.stringify(body) })]));
  }

  async subscribe(topic, callback, options) {
    if (!this.#isStored(topic)) return this.#local.subscribe(topic, callback, options);
    const { tail } = await this.#stream(topic).checkTail();
    await this.#follow(topic, tail.seqNum, callback);
  }

  async subscribeWithReplay(topic, callback) {
    await this.subscribeFromOffset(topic, 0, callback);
  }

  async subscribeFromOffset(topic, offset, callback) {
    if (!this.#isStored(topic)) return this.#local.subscribe(topic, callback);
    await this.#follow(topic, Math.max(0, offset), callback);
  }

  async #follow(topic, seqNum, callback) {
    const readers = this.#readers.get(topic) ?? new Map();
    this.#readers.set(topic, readers);
    if (readers.has(callback)) return;
    readers.set(callback, undefined);
    const session = await this.#stream(topic).readSession({ start: { from: { seqNum } } });
    const reader = session.getReader();
    readers.set(callback, reader);
    this.#deliver(reader, callback).catch((error) => {
      if (!isMissing(error)) console.error(`reading ${topic} has ended:`, error);
    });
  }

  async #deliver(reader, callback) {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      if (!isCommand(value)) callback(eventOf(value));
    }
  }

  async unsubscribe(topic, callback) {
    const reader = this.#readers.get(topic)?.get(callback);
    this.#readers.get(topic)?.delete(callback);
    await reader?.cancel().catch(() => {});
    if (!this.#isStored(topic)) await this.#local.unsubscribe(topic, callback);
  }

  async getHistory(topic, offset = 0) {
    if (!this.#isStored(topic)) return [];
    const events = [];
    try {
      for (let seqNum = Math.max(0, offset); ; ) {
        const { records } = await this.#stream(topic).read({ start: { from: { seqNum } } });
        if (records.length === 0) break;
        seqNum = records.at(-1).seqNum + 1;
        events.push(...records.filter((record) => !isCommand(record)).map(eventOf));
      }
    } catch (error) {
      if (!isMissing(error) && !isPastTail(error)) throw error;
    }
    return events;
  }

  async clearTopic(topic) {
    for (const callback of [...(this.#readers.get(topic)?.keys() ?? [])]) await this.unsubscribe(topic, callback);
    if (!this.#isStored(topic)) return this.#local.clearTopic(topic);
    await this.#basin.streams.delete({ stream: `mastra/durable/${topic}` }).catch((error) => {
      if (!isMissing(error)) throw error;
    });
  }

  async flush() {
    await this.#local.flush();
  }

  async close() {
    for (const [topic, readers] of this.#readers) {
      for (const callback of [...readers.keys()]) await this.unsubscribe(topic, callback);
    }
  }

  #isStored(topic) {
    return topic.startsWith("agent.");
  }

  #stream(topic) {
    return this.#basin.stream(`mastra/durable/${topic}`);
  }
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const HEAD = 11; // bytes before the owner: A5, the kind, six of expiry, three random ones

function tokenOf(owner, expiresAt) {
  const kind = UUID.test(owner) ? 1 : 2;
  const name = kind === 1 ? Buffer.from(owner.replaceAll("-", ""), "hex") : Buffer.from(owner);
  if (name.length === 0 || name.length > 16 || (kind === 2 && name.toString() !== owner)) {
    throw new RangeError(`no lease can be owned by ${owner}`);
  }
  const expiry = Buffer.alloc(6);
  expiry.writeUIntBE(expiresAt, 0, 6);
  return Buffer.concat([Buffer.from([0xa5, kind]), expiry, randomBytes(3), name]).toString("base64url");
}

/** Who holds the lease whose token is `text` at this moment. */
function holderOf(text) {
  const raw = Buffer.from(text, "base64url");
  if (raw.toString("base64url") !== text || raw.length <= HEAD || raw.length > HEAD + 16 || raw[0] !== 0xa5) return;
  if (raw.readUIntBE(2, 6) <= Date.now()) return;
  const name = raw.subarray(HEAD);
  if (raw[1] === 1 && name.length === 16) {
    return name.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  }
  return raw[1] === 2 && Buffer.from(name.toString()).equals(name) ? name.toString() : undefined;
}

class PeerLeases {
  #streamOf;

  constructor(streamOf) {
    this.#streamOf = streamOf;
  }

  /** Replaces the token `known` by `next`; returns the token that was there instead, undefined when it was replaced. */
  async #swap(key, known, next) {
    try {
      await this.#streamOf(key).append(AppendInput.create([AppendRecord.fence(next)], { fencingToken: known }));
    } catch (error) {
      if (!(error instanceof FencingTokenMismatchError)) throw error;
      return error.expectedFencingToken;
    }
  }

  async acquireLease(key, owner, ttlMs) {
    let known = "";
    for (let attempt = 0; attempt < 4; attempt++) {
      const found = await this.#swap(key, known, tokenOf(owner, Date.now() + ttlMs));
      if (found === undefined) return { acquired: true, owner };
      if (![owner, undefined].includes(holderOf(found))) return { acquired: false, owner: holderOf(found) };
      known = found;
    }
    return { acquired: false, owner: holderOf(known) };
  }

  async getLeaseOwner(key) {
    return holderOf(await this.#swap(key, "!", "!"));
  }

  async #change(key, owner, makeToken) {
    let known = await this.#swap(key, "!", "!");
    for (let attempt = 0; attempt < 3; attempt++) {
      if (holderOf(known) !== owner) return false;
      const found = await this.#swap(key, known, makeToken());
      if (found === undefined) return true;
      known = found;
    }
    return false;
  }

  async renewLease(key, owner, ttlMs) {
    return this.#change(key, owner, () => tokenOf(owner, Date.now() + ttlMs));
  }

  async transferLease(key, from, to, ttlMs) {
    return this.#change(key, from, () => tokenOf(to, Date.now() + ttlMs));
  }

  async releaseLease(key, owner) {
    await this.#change(key, owner, () => "");
  }
}
