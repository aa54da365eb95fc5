/**
 * Which answers count when a batch is sent to a collector or a shuffler.
 *
 * The rules of `hubbub.protocol.delivery`: an answer is the collector's own if it is whole JSON of the right type and
 * repeats the batch's id. Everything else (a login page, a redirect, a proxy's limit) says nothing about the batch,
 * which is kept and sent again. So is one that is "early", since its period has not begun by the collector's clock; other
 * batches need not wait for it.
 */

import type { Batch } from "./book.js";
import { Refused } from "./errors.js";

export type Verdict = "taken" | "too large" | "refused" | "early" | "later";

/** Statuses that are final if they are the collector's own. */
const FINAL: Record<number, Verdict> = { 409: "refused", 413: "too large", 422: "refused" };
/** Bytes of an answer that are read, and seconds that a collector may ask us to wait at most. */
const LONGEST_ANSWER = 100_000;
const LONGEST_WISH = 3600;

export interface Answer {
  verdict: Verdict;
  /** A few words for whoever wonders. */
  words: string;
  /** Seconds to wait, if asked. */
  wait: number;
}

/** Send a batch and judge the answer; throws if there is none. */
export async function post(
  url: string,
  body: Uint8Array<ArrayBuffer>,
  { id, labels, period }: Batch,
  token: string | undefined,
  signal: AbortSignal,
): Promise<Answer> {
  const told: Record<string, string> = {};
  if (labels) told["Hubbub-Labels"] = labels;
  if (period) told["Hubbub-Period"] = period;
  const response = await send(url, body, id, token, signal, told);
  const said = await beginning(response);
  const wish = response.headers.get("Retry-After") ?? "";
  return {
    verdict: judge(response.status, response.headers.get("Content-Type") ?? "", said, id),
    words: `${response.status}: ${said.slice(0, 300)}`,
    wait: /^\d+$/.test(wish) ? Math.min(Number(wish), LONGEST_WISH) : 0, // a date counts as no wish
  };
}

/** A nonce for one report; refused if whoever answers is not the collector, which repeats what it was asked with. */
export async function askNonce(
  url: string,
  asked: string,
  token: string | undefined,
  signal: AbortSignal,
): Promise<string> {
  let reason = "";
  try {
    const response = await send(url, new Uint8Array(), asked, token, signal);
    reason = String(response.status);
    const { batch, nonce } = JSON.parse(await beginning(response));
    if (response.status === 200 && batch === asked && isId(nonce)) return nonce;
  } catch (problem) {
    reason ||= (problem as Error).message;
  }
  throw new Refused(`Seeds come from the collector, which handed out none (${reason}): report again later.`);
}

function send(
  url: string,
  body: Uint8Array<ArrayBuffer>,
  id: string,
  token: string | undefined,
  signal: AbortSignal,
  told: Record<string, string> = {},
): Promise<Response> {
  const headers: Record<string, string> = {
    "Content-Type": "application/octet-stream",
    "Hubbub-Batch": id,
    ...told,
  };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(url, {
    method: "POST",
    body,
    headers,
    signal,
    keepalive: body.length <= 32_768, // the request outlives its page; browsers allow 64 kB of these at a time
    redirect: "manual", // what is sent is for the address that was given
    credentials: "omit",
    cache: "no-store",
    referrerPolicy: "no-referrer",
  });
}

/** Whether this can be the id of a batch. */
export function isId(text: unknown): text is string {
  return typeof text === "string" && /^[\w-]{1,64}$/.test(text);
}

/** What an answer says about a batch; "later" unless it is the collector's own. */
export function judge(status: number, media: string, body: string, batch: string): Verdict {
  let said: { batch?: unknown; accepted?: unknown; status?: unknown; begins?: unknown } | null;
  try {
    said = JSON.parse(body);
  } catch {
    return "later";
  }
  if (said?.batch !== batch) return "later";
  const kind = media.split(";")[0]!.trim().toLowerCase();
  if (status === 200 && kind === "application/json" && Number.isInteger(said.accepted)) return "taken";
  if (kind === "application/problem+json" && said.status === status) {
    if (status === 429 && typeof said.begins === "string") return "early";
    return FINAL[status] ?? "later";
  }
  return "later";
}

/** As much of an answer as is looked at. */
async function beginning(response: Response): Promise<string> {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (reader && text.length < LONGEST_ANSWER) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
  }
  await reader?.cancel();
  return text;
}
