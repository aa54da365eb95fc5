/** Records: one user's sparse vector, and the rules for untidy ones. Beside it in Python: hubbub/model/record.py. */
import type { Coins } from "./coins.js";
import { Refused } from "./errors.js";
import type { Keys } from "./keys.js";
import { clip, GRID } from "./samplers.js";
import type { Word } from "./siphash.js";

/** What may be handed in as a record: a map key -> value, or just keys (a set). */
export type DeviceRecord =
  | ReadonlyMap<string | number | bigint, unknown>
  | Iterable<string | number | bigint>
  | { readonly [key: string]: unknown };

/** What happened to records on the way in. It stays on the device: no noise protects it. */
export interface Summary {
  records: number;
  entries: number;
  clipped: number;
  absent: number;
  unknown: number;
  unreadable: number;
  sampledRecords: number;
  droppedEntries: number;
}

export function emptySummary(): Summary {
  return {
    records: 0,
    entries: 0,
    clipped: 0,
    absent: 0,
    unknown: 0,
    unreadable: 0,
    sampledRecords: 0,
    droppedEntries: 0,
  };
}

/** A record that is encoded: ids of its keys, and values in units of 2^-30. */
export interface Entries {
  ids: Word[];
  values: number[];
}

/** Decimal text as Python reads it, in ASCII digits; what counts as space is Python's, too. */
const SPACE = "(?:[^\\S\\ufeff]|\\x85)*";
const DIGITS = "\\d+(_\\d+)*";
const DECIMAL = new RegExp(
  `^${SPACE}([+-]?(${DIGITS}(\\.(${DIGITS})?)?|\\.${DIGITS})([eE][+-]?${DIGITS})?)${SPACE}$`,
);

function numberOf(value: unknown): number {
  switch (typeof value) {
    case "number":
    case "boolean":
    case "bigint":
      return Number(value);
    case "string":
      return Number(DECIMAL.exec(value)?.[1].replaceAll("_", ""));
    default:
      return Number.NaN;
  }
}

function nameOf(key: unknown): string | undefined {
  return typeof key === "string" || typeof key === "bigint" || Number.isSafeInteger(key)
    ? String(key)
    : undefined;
}

/** The entries of a record, whatever it is made of; what cannot be asked for its value has none. */
function* items(record: DeviceRecord): Generator<[unknown, unknown]> {
  const given: unknown = record;
  if (typeof given === "object" && given !== null && !ArrayBuffer.isView(given)) {
    if (given[Symbol.toStringTag as never] === "Map") return yield* given as Map<unknown, unknown>; // of any frame
    if (Symbol.iterator in given) {
      for (const key of given as Iterable<unknown>) yield [key, 1];
      return;
    }
    const parent = Object.getPrototypeOf(given);
    if (parent === null || Object.getPrototypeOf(parent) === null) {
      for (const key of Object.keys(given)) {
        let value: unknown;
        try {
          value = (given as { [key: string]: unknown })[key];
        } catch {
          // it has none
        }
        yield [key, value];
      }
      return;
    }
  }
  throw new Refused("A record is a map from key to value, or a collection of keys; this is neither.");
}

/** A record as a map from key to finite number, and how many entries are none. A key twice: the last one counts. */
export function plainRecord(record: DeviceRecord): [Map<string, number>, number] {
  const plain = new Map<string, number>();
  let unreadable = 0;
  for (const [key, value] of items(record)) {
    const [name, number] = [nameOf(key), numberOf(value)];
    if (name === undefined || !Number.isFinite(number)) unreadable++;
    else plain.set(name, number);
  }
  return [plain, unreadable];
}

/** The linear map between a value and the number in [-1, 1] that is randomized. */
export interface Scale {
  readonly kind: "set" | "signed";
  readonly low: number;
  readonly high: number;
  readonly center: number;
  readonly half: number;
}

/** A value in the range of a scale as a whole number of grid steps. */
function encoded(value: number, { center, half }: Scale): number {
  return clip(toEven(((value - center) / half) * GRID), GRID);
}

/** The nearest whole number, of two the even one; 0 is never negative. */
function toEven(value: number): number {
  const down = Math.floor(value);
  const over = value - down;
  return (over > 0.5 || (over === 0.5 && down % 2 !== 0) ? down + 1 : down) + 0;
}

/** One record with the rules for devices, counted in the summary. */
export function encodeRecord(keys: Keys, scale: Scale, record: DeviceRecord, summary: Summary): Entries {
  const [plain, unreadable] = plainRecord(record);
  const entries: Entries = { ids: [], values: [] };
  summary.records++;
  summary.unreadable += unreadable;
  for (const [key, value] of plain) {
    const id = keys.idOf(key);
    if (id === undefined) summary.unknown++;
    else if (scale.kind === "set" && value !== 0 && value !== 1) summary.unreadable++;
    else if (scale.kind === "set" && value === 0) summary.absent++;
    else {
      const within = Math.min(Math.max(value, scale.low), scale.high);
      if (within !== value) summary.clipped++;
      entries.ids.push(id);
      entries.values.push(encoded(within, scale));
    }
  }
  summary.entries += entries.ids.length;
  return entries;
}

/**
 * Keep a uniform sample of `limit` entries of a longer record (Fisher-Yates). With `marks`, the ids of two keys, kept
 * and lost, it keeps one entry fewer and gets one of the two instead.
 */
export function sampleDown(
  entries: Entries,
  limit: number,
  coins: Coins,
  marks: [Word, Word] | undefined,
  summary: Summary,
): Entries {
  const length = entries.ids.length;
  if (length <= limit) return entries;
  const order = Array.from({ length }, (_, place) => place);
  for (let j = 0; j < limit; j++) {
    const other = j + coins.below(length - j);
    [order[j], order[other]] = [order[other], order[j]];
  }
  const room = marks ? limit - 1 : limit;
  const kept = order.slice(0, room);
  const ids = kept.map((place) => entries.ids[place]);
  const values = kept.map((place) => entries.values[place]);
  if (marks) {
    ids.push(marks[coins.below(length) >= room ? 1 : 0]);
    values.push(GRID);
  }
  summary.sampledRecords++;
  summary.droppedEntries += length - room;
  return { ids, values };
}
