// A durable Mastra agent whose model is a script: what the user says chooses what it answers.

import { Agent } from "@mastra/core/agent";
import { DurableAgent } from "@mastra/core/agent/durable";
import { Mastra } from "@mastra/core/mastra";
import { InMemoryStore } from "@mastra/core/storage";
import { createTool } from "@mastra/core/tools";
import { z } from "zod";

const gates = new Map(); // name -> Promise.withResolvers()

/** What scripts wait for and tests open. */
export function gate(name) {
  if (!gates.has(name)) gates.set(name, Promise.withResolvers());
  return gates.get(name);
}

const usage = { inputTokens: 9, outputTokens: 4, totalTokens: 13 };
const finish = (finishReason) => ({ type: "finish", finishReason, usage });
const call = (toolName, input) => ({
  type: "tool-call",
  toolCallId: `call-${toolName}`,
  toolName,
  input: JSON.stringify(input),
});

function* text(...pieces) {
  yield { type: "text-start", id: "t1" };
  for (const delta of pieces) yield { type: "text-delta", id: "t1", delta };
  yield { type: "text-end", id: "t1" };
}

// Each script gives the parts of one answer of the model; `answered` says whether tool results have come already.
const scripts = {
  async *text(answered, [, name]) {
    yield { type: "reasoning-start", id: "r1" };
    yield { type: "reasoning-delta", id: "r1", delta: "hm" };
    yield { type: "reasoning-end", id: "r1" };
    yield* text("Grüße, ");
    if (name) await gate(name).promise;
    const wave = "\u{1f44b}";
    yield { type: "text-start", id: "t2" };
    yield { type: "text-delta", id: "t2", delta: wave[0] };
    yield { type: "text-delta", id: "t2", delta: wave[1] };
    yield { type: "text-end", id: "t2" };
    yield { type: "source", sourceType: "url", id: "s1", url: "https://example.com/", title: "Example" };
    yield { type: "file", mediaType: "text/plain", data: "aGk=" };
    yield finish("stop");
  },
  async *tools(answered, [, name]) {
    if (!answered) {
      yield { type: "tool-input-start", id: "call-add", toolName: "add" };
      yield { type: "tool-input-delta", id: "call-add", delta: '{"a":1,' };
      yield { type: "tool-input-delta", id: "call-add", delta: '"b":2}' };
      yield { type: "tool-input-end", id: "call-add" };
      yield call("add", { a: 1, b: 2 });
      yield call("fail", {});
      yield finish("tool-calls");
    } else {
      yield* text("It is 3.");
      if (name) await gate(name).promise;
      yield finish("stop");
    }
  },
  async *error() {
    yield* text("So far");
    throw new Error("the model broke");
  },
  async *abort(answered, [, name], signal) {
    yield* text("Before. ");
    await Promise.race([gate(name).promise, new Promise((resolve) => signal?.addEventListener("abort", resolve))]);
    if (signal?.aborted) throw signal.reason ?? new DOMException("aborted", "AbortError");
    yield* text("After.");
    yield finish("stop");
  },
  async *approval(answered) {
    yield* answered ? text("Paid.") : [call("pay", { eur: 5 })];
    yield finish(answered ? "stop" : "tool-calls");
  },
  async *suspension(answered) {
    yield* answered ? text("Asked.") : [call("ask", { question: "Which?" })];
    yield finish(answered ? "stop" : "tool-calls");
  },
};

const model = {
  specificationVersion: "v2",
  provider: "script",
  modelId: "script-1",
  supportedUrls: {},
  async doGenerate() {
    throw new Error("these agents stream");
  },
  async doStream({ prompt, abortSignal }) {
    const user = prompt.findLast(({ role }) => role === "user");
    const said = user.content.find(({ type }) => type === "text").text.split(" ");
    const answered = prompt.at(-1).role === "tool";
    const parts = scripts[said[0]](answered, said, abortSignal);
    // By pull: an error must not overtake the parts before it.
    const stream = new ReadableStream({
      start(controller) {
        controller.enqueue({ type: "stream-start", warnings: [] });
        const timestamp = new Date(1767225600000);
        controller.enqueue({ type: "response-metadata", id: "m1", modelId: "script-1", timestamp });
      },
      async pull(controller) {
        const { done, value } = await parts.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
    });
    return { stream };
  },
};

const tools = {
  add: createTool({
    id: "add",
    description: "Adds",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async (input) => {
      const { a, b } = input.context ?? input;
      return { sum: a + b, half: 0.5, none: null, "ключ": ["ü", "\u2028"] };
    },
  }),
  fail: createTool({
    id: "fail",
    description: "Fails",
    inputSchema: z.object({}),
    execute: async () => {
      throw new Error("the tool broke");
    },
  }),
  pay: createTool({
    id: "pay",
    description: "Pays",
    inputSchema: z.object({ eur: z.number() }),
    requireApproval: true,
    execute: async () => ({ paid: true }),
  }),
  ask: createTool({
    id: "ask",
    description: "Asks",
    inputSchema: z.object({ question: z.string() }),
    suspendSchema: z.object({ choices: z.array(z.string()) }),
    resumeSchema: z.object({ choice: z.string() }),
    execute: async (input, { agent }) => {
      if (agent.resumeData) return { chosen: agent.resumeData.choice };
      return await agent.suspend({ choices: ["a", "b"] });
    },
  }),
};

/** An agent whose runs go over `pubsub`; it deletes them `cleanupTimeoutMs` after their end, never for 0. */
export function makeAgent(pubsub, cleanupTimeoutMs) {
  const inner = new Agent({ id: "scripted", name: "Scripted", instructions: "Follow the script.", model, tools });
  const agent = new DurableAgent({ agent: inner, pubsub, cache: false, cleanupTimeoutMs });
  new Mastra({ agents: { scripted: agent }, pubsub, storage: new InMemoryStore(), logger: false });
  return agent;
}
