/** The first disagreement with tests/vectors, in words; none where all agree. */
import { privatize } from "../src/client.js";
import { hashEntries } from "../src/hashing.js";
import { type DeviceRecord, emptySummary, encodeRecord } from "../src/record.js";
import { bigOf, type Word } from "../src/siphash.js";
import { hex, TapeCoins, tapeSeeds, taskOf, vectors } from "./tape.js";

export interface Agreement {
  checked: number;
  wrong: string | undefined;
}

/** Reports of every task and record, from the tapes. */
export async function reports(): Promise<Agreement> {
  const { tapes, tasks } = vectors("reports.json");
  let checked = 0;
  for (const [group, { document, records, reports }] of tasks.entries()) {
    const task = await taskOf(document);
    for (const [place, pairs] of records.entries()) {
      const record = new Map<string, number>(pairs);
      for (let tape = 0; tape < tapes; tape++, checked++) {
        const vector = tapes * place + tape;
        const summary = emptySummary();
        const coins = new TapeCoins(group, vector);
        const made = hex(privatize(task, record, coins, tapeSeeds(group, vector), summary));
        const wanted = reports[place].slice(made.length * tape, made.length * (tape + 1));
        if (made !== wanted) {
          return { checked, wrong: `${task.name}, record ${place}, tape ${tape}: ${made}, not ${wanted}` };
        }
      }
    }
  }
  return { checked, wrong: undefined };
}

const padded = (word: Word): string => bigOf(word).toString(16).padStart(16, "0");
const unpadded = (word: Word): string => bigOf(word).toString(16);
const sign = (one: number): string => (one > 0 ? "+" : "-");

/** Ids, signs, codes and buckets of keys. */
export async function keys(): Promise<Agreement> {
  let checked = 0;
  for (const row of vectors("keys.json").universes) {
    const { keys } = await taskOf(row.document);
    const ids: Word[] = row.keys.map((key: string) => keys.idOf(key));
    const sides = [...ids, ...ids.map((id) => keys.otherSide(id))];
    const found: [string, unknown, unknown][] = [
      ["ids", ids.map(padded), row.ids],
      ["other sides", ids.map((id) => padded(keys.otherSide(id))), row.other_sides],
      ["length ids", keys.lengthIds().map(padded), row.length_ids],
      ["signs", sides.map((id) => sign(keys.sign(id))).join(""), row.signs],
    ];
    for (const [cohort, codes] of Object.entries(row.codes)) {
      found.push([`codes ${cohort}`, sides.map((id) => unpadded(keys.code(id, Number(cohort)))), codes]);
    }
    const seeds = row.seeds.map((seed: string) => [
      Number.parseInt(seed.slice(0, 8), 16),
      Number.parseInt(seed.slice(8), 16),
    ]);
    for (const [family, buckets, wanted, signs] of row.hashed) {
      const hashed = hashEntries(family, keys, seeds, sides, false, buckets);
      found.push([`${family} buckets ${buckets}`, hashed.bucket, wanted]);
      found.push([`${family} signs ${buckets}`, hashed.sign.map(sign).join(""), signs]);
    }
    checked += ids.length;
    const wrong = found.find(([, made, wanted]) => JSON.stringify(made) !== JSON.stringify(wanted));
    if (wrong) return { checked, wrong: `${JSON.parse(row.document).name}: ${wrong[0]}` };
  }
  return { checked, wrong: undefined };
}

const SPECIAL: { [name: string]: number } = { nan: Number.NaN, inf: Infinity, "-inf": -Infinity, "-0": -0 };

/** A value of rules.json as the thing it stands for. */
// biome-ignore lint/suspicious/noExplicitAny: it may be anything
function plain(value: any): any {
  if (typeof value !== "object" || value === null) return value;
  if ("float" in value) return SPECIAL[value.float];
  if ("whole" in value) return BigInt(value.whole);
  if ("bytes" in value) return new TextEncoder().encode(value.bytes);
  return "object" in value ? Symbol("some object") : value.list.map(plain);
}

// biome-ignore lint/suspicious/noExplicitAny: it may be anything
function recordOf(given: any): DeviceRecord {
  if ("raw" in given) return plain(given.raw);
  if ("list" in given) return given.list.map(plain);
  const pairs = given.map.map(([key, value]: [unknown, unknown]) => [plain(key), plain(value)]);
  // A map of JavaScript cannot have a key twice; a map-like thing can.
  const record = new Map();
  record[Symbol.iterator] = () => pairs.values();
  return record;
}

/** What becomes of untidy records: what is kept, what is counted, what is refused. */
export async function rules(): Promise<Agreement> {
  let checked = 0;
  for (const { document, records, outcomes } of vectors("rules.json").settings) {
    const task = await taskOf(document);
    for (const [place, given] of records.entries()) {
      const summary = emptySummary();
      let made: unknown;
      try {
        const { ids, values } = encodeRecord(task.keys, task.scale, recordOf(given), summary);
        const { entries, clipped, absent, unknown, unreadable } = summary;
        const kept = ids.map((id, at) => [unpadded(id), values[at]]);
        made = [kept, entries, clipped, absent, unknown, unreadable];
      } catch (refusal) {
        made = (refusal as Error).message;
      }
      if (JSON.stringify(made) !== JSON.stringify(outcomes[place])) {
        const [given, wanted] = [JSON.stringify(records[place]), JSON.stringify(outcomes[place])];
        return { checked, wrong: `${document}\n${given}: ${JSON.stringify(made)}, not ${wanted}` };
      }
      checked++;
    }
  }
  return { checked, wrong: undefined };
}
