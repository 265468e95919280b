// The page under test: a chat whose id is a run's id, resumed from our endpoint. Tests read `window.chat`.

import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { createRoot } from "react-dom/client";

const id = location.pathname.split("/").at(-1);

function Chat() {
  const transport = new DefaultChatTransport({ api: "/runs" });
  const { messages, status, error } = useChat({ id, transport, resume: true });
  window.chat = { status, messages, error: error?.message ?? null };
  return <pre>{JSON.stringify(window.chat, null, 2)}</pre>;
}

createRoot(document.getElementById("root")).render(<Chat />);
