// Reads records as a JavaScript program does. Each line of standard input is a record's body; each line of standard
// output is the canonical form of what it holds, a tab, and the body as JavaScript writes it again.

const units = (text) => Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
const hex = (text) => units(text).map((unit) => unit.toString(16).padStart(4, "0")).join("");

function form(value) {
  if (value === null) return "null";
  if (typeof value === "boolean") return String(value);
  if (typeof value === "string") return `"${hex(value)}"`;
  if (typeof value === "number") {
    const bytes = Buffer.alloc(8);
    bytes.writeDoubleBE(value);
    return bytes.toString("hex");
  }
  if (Array.isArray(value)) return `[${value.map(form).join(",")}]`;
  const members = Object.keys(value).map((key) => `${hex(key)}:${form(value[key])}`);
  return `{${members.sort().join(",")}}`;
}

// Split by hand: readline would also split at U+2028, which JSON text may hold.
const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
for (const line of decoder.decode(Buffer.concat(chunks)).split("\n")) {
  if (line) {
    const value = JSON.parse(line);
    console.log(`${form(value)}\t${JSON.stringify(value)}`);
  }
}
