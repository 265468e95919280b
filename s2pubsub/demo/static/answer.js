// An answer while it is written. What comes from elsewhere is only ever set as text, never as HTML.

import { follow } from "./follow.js";

const FAILURES = {
  idle: "Interrupted: the process that wrote this answer has ended.",
  gap: "The beginning of this answer is no longer stored.",
  unreadable: "This answer cannot be read.",
};

export function make(name, className, text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

// Shows one answer in `place`; resolves when it has ended, to {text, live, retry}.
export function showAnswer(place, url, agent, { onLink, onChange }) {
  const box = place.appendChild(make("div", "answer"));
  box.setAttribute("aria-busy", "true");
  box.append(make("p", "who", agent));
  const state = make("p", "state", "Waiting…");
  box.append(state);
  const tools = new Map();
  let node = null; // the text that is being written
  let pending = "";
  let whole = "";
  let frame = 0;
  let index = -1;
  let returns = 0;
  let wasLost = false;
  let reason = null;
  let failed = "";

  function flush() {
    cancelAnimationFrame(frame);
    frame = 0;
    if (pending) {
      if (!node) {
        node = document.createTextNode("");
        const paragraph = make("p", "text");
        paragraph.append(node);
        box.insertBefore(paragraph, state);
      }
      node.data += pending; // halves of a character that came in two pieces join here
      whole += pending;
      pending = "";
    }
    if (index >= 0) state.textContent = `Writing… event ${index}`;
    onChange();
  }

  function onChunk(chunk, id) {
    index = id;
    const payload = chunk?.payload ?? {};
    if (chunk?.type === "text-delta") {
      pending += String(payload.text ?? "");
    } else if (chunk?.type === "text-start" || chunk?.type === "text-end") {
      flush();
      node = null;
    } else if (chunk?.type === "tool-call") {
      flush();
      node = null;
      const tool = makeTool(payload);
      tools.set(payload.toolCallId, tool);
      box.insertBefore(tool, state);
    } else if (chunk?.type === "tool-result") {
      fillTool(tools.get(payload.toolCallId), payload);
    } else if (chunk?.type === "error") {
      failed = String(payload.error?.message ?? "Something went wrong.");
    }
    frame ||= requestAnimationFrame(flush);
  }

  return new Promise((resolve) => {
    const began = performance.now();
    const feed = follow(
      url,
      {
        chunk: onChunk,
        finish: (data, id) => { index = id; reason = data?.stepResult?.reason ?? null; },
      },
      (link, detail) => {
        if (link === "lost" && !wasLost) { wasLost = true; returns += 1; }
        if (link === "live") wasLost = false;
        if (link === "live" || link === "lost") { onLink(link); return; }
        flush();
        box.setAttribute("aria-busy", "false");
        const [said, bad] = describe(link, detail, reason, failed);
        state.textContent = "";
        state.append(make("span", bad ? "bad" : "", said));
        if (index >= 0) state.append(make("span", "", `${index + 1} events stored`));
        if (returns) state.append(make("span", "", returns === 1 ? "came back once" : `came back ${returns} times`));
        onLink("live");
        resolve({ text: whole, said, state, retry: bad && link !== "gone", live: performance.now() - began > 600 });
      },
    );
    showAnswer.current = feed;
  });
}

function describe(link, detail, reason, failed) {
  if (link === "gone") return ["This answer was cleaned up.", true];
  if (link === "failure") return [FAILURES[detail.code] ?? detail.message, true];
  if (reason === "abort") return ["Stopped.", false];
  if (reason === "error") return [failed || FAILURES.idle, true];
  return ["Complete.", false];
}

function makeTool(call) {
  const tool = make("details", "tool");
  const asked = call.args?.query ?? call.args?.document ?? JSON.stringify(call.args ?? {});
  const verb = { search: "Searched for", read: "Read" }[call.toolName] ?? call.toolName;
  tool.append(make("summary", "", `${verb} “${asked}”`));
  return tool;
}

function fillTool(tool, call) {
  if (!tool) return;
  const summary = tool.querySelector("summary");
  const list = tool.appendChild(make("ul", "found"));
  if (Array.isArray(call.result)) {
    const count = call.result.length;
    summary.textContent += ` – ${count === 1 ? "1 passage" : `${count || "no"} passages`}`;
    for (const one of call.result) {
      const item = list.appendChild(make("li", ""));
      item.append(make("b", "", `${one?.title ?? ""}, paragraph ${one?.paragraph ?? "?"}`));
      item.append(document.createTextNode(String(one?.text ?? "")));
    }
  } else {
    if (call.result?.title) summary.textContent = `Read “${call.result.title}”`;
    if (call.result?.words) summary.textContent += ` – ${call.result.words} words`;
    list.append(make("li", "", String(call.result?.text ?? JSON.stringify(call.result) ?? "")));
  }
}
