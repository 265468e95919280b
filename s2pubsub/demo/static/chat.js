// A conversation: shows its turns one after the other, each from the log of its run, and asks the next question.

import { make, showAnswer } from "./answer.js";
import { sendOnEnter } from "./field.js";
import { follow } from "./follow.js";

const turns = document.getElementById("turns");
const form = document.getElementById("ask");
const field = document.getElementById("question");
const send = document.getElementById("send");
const stop = document.getElementById("stop");
const link = document.getElementById("link");
const problem = document.getElementById("problem");
const announcer = document.getElementById("announcer");
const base = `/chat/${encodeURIComponent(turns.dataset.chat)}`;
const known = Number(turns.dataset.turns); // how many there were when the page was made

const waiting = [];
let showing = null; // id of the run that is shown
let lastTurn = -1;
let feed = null;

// Questions, also those asked in another tab or by somebody else. A hidden page lets go of the connection: browsers
// allow six for each server, over all tabs.
function listen() {
  if (document.hidden || feed) return;
  const from = lastTurn < 0 ? "" : `?offset=${lastTurn + 1}`;
  feed = follow(`${base}/turns${from}`, { turn: onTurn }, (state) => {
    if (state === "closed") return;
    if (state === "gone") tell("This conversation was cleaned up.");
    setLink(state);
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { feed?.close(); feed = null; } else listen();
});

function onTurn(turn, id) {
  if (id <= lastTurn) return;
  lastTurn = id;
  waiting.push({ ...turn, number: id });
  if (!showing) showNext();
}

async function showNext() {
  const turn = waiting.shift();
  if (!turn) return;
  showing = turn.runId;
  setBusy(true);
  const section = make("section", "turn");
  section.setAttribute("aria-label", `Question ${turn.number + 1}`);
  section.append(make("h2", "question", turn.question));
  turns.append(section);
  if (turn.number >= known) section.scrollIntoView({ block: "end" });
  const done = await showAnswer(section, `${base}/runs/${encodeURIComponent(turn.runId)}/events`, turns.dataset.agent, {
    onLink: setLink,
    onChange: keepAtEnd,
  });
  if (done.live) announcer.textContent = `${done.text} ${done.said}`;
  if (done.retry && waiting.length === 0) offerRetry(done.state, turn.question);
  showing = null;
  setBusy(waiting.length > 0);
  showNext();
}

function offerRetry(place, question) {
  const button = place.appendChild(make("button", "quiet", "Ask again"));
  button.type = "button";
  button.addEventListener("click", async () => { if (await ask(question)) button.remove(); });
}

// The page follows the text, unless the reader has scrolled up.
let atEnd = true;
let lastTop = 0;
window.addEventListener("scroll", () => {
  const bottom = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;
  if (bottom) atEnd = true;
  else if (window.scrollY < lastTop) atEnd = false;
  lastTop = window.scrollY;
}, { passive: true });
function keepAtEnd() {
  if (atEnd) window.scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
}

function setBusy(busy) {
  const hadFocus = document.activeElement === stop;
  send.hidden = busy;
  stop.hidden = !busy;
  stop.removeAttribute("aria-disabled");
  stop.textContent = "Stop";
  if (hadFocus && !busy) field.focus();
}

function setLink(state) {
  const texts = { live: "Connected", lost: "Reconnecting…" };
  if (!(state in texts)) return;
  if (link.dataset.state !== state && state === "lost") announcer.textContent = "The connection is lost. Reconnecting.";
  link.dataset.state = state;
  link.textContent = texts[state];
}

function tell(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json", Accept: "application/json", "X-Requested-With": "fetch" };
  try {
    const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (response.ok) return true;
    tell((await response.json().catch(() => ({}))).error ?? "That did not work.");
  } catch {
    tell("The server cannot be reached. Your question is still here; try again.");
  }
  return false;
}

async function ask(question) {
  tell("");
  send.disabled = true;
  atEnd = true;
  const done = await post(base, { question });
  send.disabled = false;
  return done;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = field.value.trim();
  if (!question || showing) return;
  if (await ask(question)) {
    field.value = "";
    announcer.textContent = "Asked.";
  }
  field.focus();
});
sendOnEnter(form, field);

async function stopAnswer() {
  if (!showing || stop.ariaDisabled) return;
  stop.setAttribute("aria-disabled", "true"); // a button that is really disabled would lose the focus
  stop.textContent = "Stopping…";
  if (!(await post(`${base}/runs/${encodeURIComponent(showing)}/stop`, {}))) setBusy(Boolean(showing));
}
stop.addEventListener("click", stopAnswer);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stopAnswer(); });

document.getElementById("share").addEventListener("click", async (event) => {
  try {
    await navigator.clipboard.writeText(location.href);
    event.target.textContent = "Copied";
  } catch {
    event.target.textContent = "Copy the address"; // only pages over https or on localhost may write there
  }
  announcer.textContent = event.target.textContent;
});

listen();
