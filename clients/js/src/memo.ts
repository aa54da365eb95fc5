/**
 * One report per distinct record: an unchanged record is answered with the report that was made for it before. Beside it
 * in Python: hubbub/device/memo.py, with what that promises, and what it shows.
 */
import { blake2b } from "./blake2b.js";
import { joined, littleEndian, toHex } from "./bytes.js";
import type { Entries } from "./record.js";
import { bigOf } from "./siphash.js";

/** What is kept: a secret salt, and reports by the salted hash of their record, in the order in which they were made. */
export interface Memo {
  salt: string;
  reports: Record<string, string>;
}

/** The name of a record under a salt: of all that the randomizer gets to see, in any order. */
export function nameOf(salt: Uint8Array, entries: Entries): string {
  const rows = entries.ids.map((id, place) => [bigOf(id), BigInt(entries.values[place])]);
  const less = (one: bigint, two: bigint): number => (one < two ? -1 : one > two ? 1 : 0);
  rows.sort(([id, value], [other, its]) => less(id, other) || less(value, its));
  const bytes = [0, 1].map((column) => rows.flatMap((row) => littleEndian(row[column], 8)));
  return toHex(blake2b(joined(salt, ...bytes), 16, "hubbub memo"));
}

/**
 * What is said about a record of this name, and whether it was said before; `fresh` is a report of it that nobody has
 * seen, and `last` what was said last.
 */
export function answer(
  memo: Memo,
  cap: number,
  name: string,
  fresh: string,
  last: string | undefined,
): { report: string; again: boolean } {
  if (Object.hasOwn(memo.reports, name)) return { report: memo.reports[name], again: true };
  if (last !== undefined && Object.keys(memo.reports).length >= cap) return { report: last, again: true };
  memo.reports[name] = fresh;
  return { report: fresh, again: false };
}
