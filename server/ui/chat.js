// Asks the model: one running answer for each conversation, which goes on while another is shown.

import { ApiError, events, post } from "./api.js";
import { NUMBERS, request } from "./tree.js";

const SAVE_MS = 2000;
const running = new Map(); // by the conversation's id

export const runningIn = (id) => running.get(id);

function parsed(settings, name, what) {
  const text = settings[name]?.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(0, `${what} in the settings is not JSON: ${error.message}`);
  }
}

export function fields(settings) {
  const found = {};
  for (const name of NUMBERS) if (Number.isFinite(settings[name])) found[name] = settings[name];
  if (settings.thinking) found.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  const schema = parsed(settings, "schema", "The JSON schema");
  if (schema !== undefined) found.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const tools = parsed(settings, "tools", "The list of tools");
  if (tools !== undefined) found.tools = tools;
  return { ...found, ...parsed(settings, "extra", "The list of other fields") };
}

export class Answer {
  // `isMore`: go on where the message ends
  constructor(conversation, message, { model, isMore = false, changed, save }) {
    Object.assign(this, { conversation, message, isMore, changed, save });
    this.model = model;
    this.abort = new AbortController();
    this.id = ""; // of the reply
    this.progress = null; // of the prompt: { done, total }
    this.isThinking = false;
    this.begin = performance.now();
    this.first = 0; // when the first token came
    running.set(conversation.id, this);
  }

  async run() {
    const { message } = this;
    delete message.error;
    delete message.finish;
    const saving = setInterval(() => this.save(), SAVE_MS);
    try {
      const leaf = this.isMore ? message.id : message.parent;
      const body = {
        ...(this.model ? { model: this.model } : {}), ...fields(this.conversation.settings),
        messages: request(this.conversation, leaf),
        stream: true, stream_options: { include_usage: true }, return_progress: true, reasoning_control: true,
      };
      const response = await post("v1/chat/completions", body, { signal: this.abort.signal });
      for await (const event of events(response)) this.take(event);
      message.finish ??= "lost"; // the connection ended early
    } catch (error) {
      if (this.abort.signal.aborted) message.finish = "stopped";
      else message.error = error instanceof ApiError ? error.message : "The connection to the server was lost.";
    } finally {
      clearInterval(saving);
      running.delete(this.conversation.id);
      this.isOver = true;
      await this.save();
      this.changed();
    }
  }

  take(event) {
    const { message } = this;
    this.id ||= event.id;
    if (event.prompt_progress) {
      const { processed, total } = event.prompt_progress;
      this.progress = { done: processed, total };
    }
    const choice = event.choices?.[0];
    if (choice) this.add(choice.delta ?? {});
    if (choice?.finish_reason) message.finish = choice.finish_reason;
    if (event.timings) this.measure(event.timings);
    if (event.usage) message.stats = { ...message.stats, reasoning: event.usage.completion_tokens_details?.reasoning_tokens ?? 0 };
    this.changed();
  }

  add(delta) {
    const { message } = this;
    const call = delta.tool_calls?.[0];
    if (!delta.content && !delta.reasoning_content && !call) return;
    this.first ||= performance.now();
    this.progress = null;
    this.isThinking = Boolean(delta.reasoning_content);
    if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
    if (delta.content) message.content += delta.content;
    for (const part of delta.tool_calls ?? []) {
      message.calls ??= [];
      message.calls[part.index] ??= { id: "", name: "", arguments: "" };
      const known = message.calls[part.index];
      known.id ||= part.id ?? "";
      known.name ||= part.function?.name ?? "";
      known.arguments += part.function?.arguments ?? "";
    }
  }

  measure(timings) {
    this.message.stats = {
      ...this.message.stats,
      prompt: timings.prompt_n, cached: timings.cache_n, predicted: timings.predicted_n,
      speed: timings.predicted_per_second, promptSpeed: timings.prompt_per_second,
      first: (this.first || performance.now()) - this.begin, total: performance.now() - this.begin,
    };
  }

  stop() {
    this.abort.abort();
  }

  // Stop, and store nothing more: the conversation is deleted.
  drop() {
    this.save = async () => {};
    this.stop();
  }

  // The model ends its reasoning at the next token.
  async skipReasoning() {
    await post("v1/chat/completions/control", { id: this.id, action: "reasoning_end" });
  }
}
