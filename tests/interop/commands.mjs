// The loop of the tests' programs: each line of standard input is a JSON object with `id`, `do` and arguments, and is
// answered by a line with `id` and `value` or `error`. Commands run side by side. Nothing else may write to standard
// output.

async function answer(commands, line) {
  const { id, do: name, ...given } = JSON.parse(line);
  let reply;
  try {
    reply = { id, value: (await commands[name](given)) ?? null };
  } catch (error) {
    reply = { id, error: `${error?.name}: ${error?.message}`, stack: error?.stack };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}

/** Obeys until standard input ends, and ends the process. */
export async function obey(commands, atEnd = async () => {}) {
  let rest = "";
  const decoder = new TextDecoder("utf-8");
  for await (const bytes of process.stdin) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) answer(commands, line);
  }
  await atEnd();
  process.exit(0);
}
