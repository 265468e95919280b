// Uses the TypeScript SDK from npm on a server, over one of its two transports, and prints what it found as JSON.
// Arguments: the SDK's entry file, URL, token, basin, stream, transport ("s2s": HTTP/2 sessions; "fetch": HTTP/1.1).

const [entry, url, token, basinName, streamName, transport] = process.argv.slice(2);
const { AppendInput, AppendRecord, S2, S2Endpoints } = await import(entry);

const s2 = new S2({ accessToken: token, endpoints: new S2Endpoints({ account: url, basin: url }) });
const basin = s2.basin(basinName);
await basin.streams.create({ stream: streamName });
const stream = basin.stream(streamName, { forceTransport: transport });
const batch = (...bodies) => AppendInput.create(bodies.map((body) => AppendRecord.string({ body, headers: [["k", body]] })));
const found = {};

found.emptyTail = (await stream.checkTail()).tail.seqNum;
found.unary = (await stream.append(batch("0", "1"))).end.seqNum;

// A live reader, from the beginning, beside an append session with several batches in flight.
const wanted = 42;
const reading = (async () => {
  const bodies = [];
  const session = await stream.readSession({ start: { from: { seqNum: 0 } } });
  for await (const record of session) {
    bodies.push(`${record.seqNum}:${record.body}:${record.headers[0][1]}`);
    if (bodies.length === wanted) break;
  }
  return bodies;
})();
const session = await stream.appendSession();
const tickets = [];
for (let n = 2; n < wanted; n += 2) tickets.push(await session.submit(batch(String(n), String(n + 1))));
found.acks = [];
for (const ticket of tickets) found.acks.push((await ticket.ack()).start.seqNum);
await session.close();
found.live = await reading;

found.tail = (await stream.checkTail()).tail.seqNum;
found.read = (await stream.read({ start: { from: { tailOffset: 3 } }, stop: { limits: { count: 2 } } })).records.map((r) => r.body);
found.bytes = Array.from((await stream.read({ start: { from: { seqNum: 40 } } }, { as: "bytes" })).records[0].body);
try {
  await stream.append(AppendInput.create([AppendRecord.string({ body: "x" })], { matchSeqNum: 7 }));
} catch (error) {
  found.mismatch = [error.name, error.status, error.expectedSeqNum];
}
try {
  await basin.stream("nope").append(batch("x"));
} catch (error) {
  found.missing = [error.status, error.code];
}
found.streams = (await basin.streams.list()).streams.map((info) => info.name);
await stream.close();
await s2.close?.();
console.log(JSON.stringify(found));
process.exit(0);
