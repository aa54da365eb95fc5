/** What a device has said, for its owner: what was sent, when, and what it cost, in words. In Python: device/statement.py. */
import { type Kept, type Made, readBook } from "./book.js";
import { Refused } from "./errors.js";
import { browserStore, type Store } from "./store.js";

/** What was sent, when, and what it cost: all tasks of a store. Pages that never show it need not load it. */
export async function statement(store: Store = browserStore()): Promise<string> {
  const book = await readBook(store);
  const lines: string[] = [];
  let [reports, epsilon, delta, known, changes] = [0, 0, 0, true, false];
  for (const [digest, periods] of Object.entries(book.ledger)) {
    if (typeof periods !== "object" || periods === null || !Object.values(periods).every(Array.isArray)) {
      throw new Refused(`${store.where} is not a ledger; nothing is reported while it cannot be read.`);
    }
    const kept = book.kept[digest];
    const count = Object.values(periods).flat().length - (kept?.again?.length ?? 0);
    if (!count) continue;
    lines.push(heading(digest, kept));
    for (const [period, made] of Object.entries(periods)) lines.push(...linesOf(period, made, kept));
    const cost = kept ? `, epsilon = ${rounded(kept.epsilon * count)} per ${kept.unit}` : "";
    lines.push(`  in all: ${numbered(count)}${cost}`, "");
    reports += count;
    epsilon += kept ? kept.epsilon * count : 0;
    delta += kept ? kept.delta * count : 0;
    known &&= kept?.unit === "record";
    changes ||= Object.keys(kept?.memo?.reports ?? {}).length > 1;
  }
  if (!lines.length) return "Nothing was sent.";
  if (!known || delta >= 1) {
    lines.push("Together: what all of this says about its owner is not bounded by any epsilon known here.");
    return lines.join("\n");
  }
  const slip = delta ? ` and delta = ${rounded(delta)}` : "";
  lines.push(
    `Together: epsilon = ${rounded(epsilon)}${slip}, added up over ${numbered(reports)}. If all records behind them were ` +
      `replaced by any others, the probability of what was sent would change by at most a factor of ` +
      `exp(${rounded(epsilon)})${delta ? `, plus ${rounded(delta)}` : ""}.`,
  );
  if (changes) {
    lines.push(
      "That is about what records hold, not about when they change: that a record changed, and that it is again what it " +
        "was, shows by the bytes.",
    );
  }
  return lines.join("\n");
}

function heading(digest: string, kept: Kept | undefined): string {
  if (!kept) return `Task ${digest}, last used before costs were kept: they are unknown`;
  const slip = kept.delta ? ` and delta = ${rounded(kept.delta)}` : "";
  const each = `each report costs epsilon = ${rounded(kept.epsilon)}${slip} per ${kept.unit}`;
  const most = kept.memoizeCap;
  const memoized = most
    ? `; a record that was reported before gets the same report again, which costs nothing; at most ${numbered(most)}, ` +
      `ever: epsilon = ${rounded(kept.epsilon * most)}`
    : "";
  return `Task ${kept.name} (${digest}): ${each}${memoized}`;
}

function linesOf(period: string, made: Made[], kept: Kept | undefined): string[] {
  const again = kept?.again?.includes(period);
  return made.map((each, place) => {
    const day = kept?.days[period]?.[place] ?? "day unknown";
    const way = typeof each === "string" ? "to a collector" : "sealed for a shuffler";
    return `  ${period}, ${day}: ${again ? "an earlier report again," : "1 report"} ${way}`;
  });
}

const numbered = (count: number): string => (count === 1 ? "1 report" : `${count} reports`);
const rounded = (value: number): string => String(Number(value.toPrecision(6)));
