// Follows a stream of server-sent events to its end, whatever happens to the connection.
//
// EventSource itself comes back after a broken connection and says what it saw last. It gives up on any status but 200,
// and does not tell which one it was; so then we ask.

const PAUSES = [500, 1000, 2000, 4000];

// handlers: {<event name>: (data, id) => {}}
// onState: "live", "lost" (coming back), and one last: "end" {end}, "gone", "failure" {code, message}, "closed".
export function follow(url, handlers, onState) {
  let source = null;
  let lastId = null;
  let over = false;
  let timer = 0;
  let attempts = 0;

  function open() {
    clearTimeout(timer);
    source?.close();
    const from = lastId === null ? "" : `?lastEventId=${encodeURIComponent(lastId)}`;
    source = new EventSource(url + from);
    source.addEventListener("open", () => { attempts = 0; onState("live"); });
    source.addEventListener("error", onError);
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        lastId = event.lastEventId || lastId;
        handle(JSON.parse(event.data), Number(event.lastEventId));
      });
    }
    source.addEventListener("end", (event) => finish("end", JSON.parse(event.data)));
    source.addEventListener("failure", (event) => {
      const failure = JSON.parse(event.data);
      if (failure.code === "unavailable" || failure.code === "internal") comeBack();
      else finish(failure.code === "gone" ? "gone" : "failure", failure);
    });
  }

  async function onError() {
    if (over) return;
    onState("lost");
    if (source.readyState !== EventSource.CLOSED) return; // it comes back by itself
    const status = await ask();
    if (over) return;
    if (status === 204) finish("end", { end: null });
    else if (status >= 400 && status < 500 && status !== 429) finish("gone", { status });
    else comeBack();
  }

  async function ask() {
    const control = new AbortController();
    try {
      const from = lastId === null ? "" : `?lastEventId=${encodeURIComponent(lastId)}`;
      const response = await fetch(url + from, { signal: control.signal, cache: "no-store" });
      return response.status;
    } catch {
      return 0;
    } finally {
      control.abort(); // the body is a stream; the status was all we wanted
    }
  }

  function comeBack() {
    source.close();
    onState("lost");
    timer = setTimeout(open, PAUSES[Math.min(attempts++, PAUSES.length - 1)]);
  }

  function hurry() {
    if (!over && source.readyState !== EventSource.OPEN) open();
  }

  function finish(state, detail) {
    if (over) return;
    over = true;
    clearTimeout(timer);
    source.close();
    window.removeEventListener("online", hurry);
    onState(state, detail);
  }

  window.addEventListener("online", hurry);
  open();
  return { close: () => finish("closed") };
}
