// A headless browser that opens the page of chat.jsx and tells what it shows, as it is told.

import { chromium } from "playwright-core";
import { buildSync } from "esbuild";
import { readFileSync } from "node:fs";
import { obey } from "./commands.mjs";

const { text: SCRIPT } = buildSync({
  entryPoints: ["chat.jsx"],
  bundle: true,
  write: false,
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
}).outputFiles[0];

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const pages = new Map();

const versionOf = (name) => JSON.parse(readFileSync(`../node_modules/${name}/package.json`)).version;

const commands = {
  async versions() {
    const names = ["ai", "@ai-sdk/react", "react"];
    return { chromium: browser.version(), ...Object.fromEntries(names.map((name) => [name, versionOf(name)])) };
  },
  async script() {
    return SCRIPT;
  },
  async open({ handle, url }) {
    const page = await browser.newPage();
    const answers = [];
    page.on("response", (response) => answers.push([new URL(response.url()).pathname, response.status()]));
    page.on("pageerror", (error) => answers.push(["error of the page", String(error)]));
    pages.set(handle, { page, answers });
    await page.goto(url);
  },
  async reload({ handle }) {
    await pages.get(handle).page.reload();
  },
  /** Waits until the expression about `chat` is true, and gives the chat. */
  async until({ handle, expression }) {
    const { page, answers } = pages.get(handle);
    try {
      await page.waitForFunction(`window.chat && ((chat) => ${expression})(window.chat)`, null, { timeout: 8000 });
    } catch (error) {
      const chat = JSON.stringify(await page.evaluate("window.chat"));
      throw new Error(`${error.message}; the chat is ${chat}, answers were ${JSON.stringify(answers)}`);
    }
    return page.evaluate("window.chat");
  },
  async answers({ handle }) {
    return pages.get(handle).answers;
  },
  async run({ handle, expression }) {
    return pages.get(handle).page.evaluate(expression);
  },
  async close({ handle }) {
    await pages.get(handle).page.close();
  },
};

await obey(commands, () => browser.close());
