/** The first disagreement with tests/vectors, in words; none where all agree. */
import { privatize } from "../src/client.js";
import { SecretCoins, systemSeeds } from "../src/coins.js";
import { hashEntries } from "../src/hashing.js";
import { type DeviceRecord, emptySummary, encodeRecord } from "../src/record.js";
import { add, bigOf, remainder, shiftRight, times, type Word, xor } from "../src/siphash.js";
import { Enumeration, fixedSeeds, hex, stream, TapeCoins, tapeSeeds, taskOf, vectors } from "./tape.js";

export interface Agreement {
  checked: number;
  wrong: string | undefined;
}

/** Reports of every task and record, from the tapes. */
export async function reports(): Promise<Agreement> {
  const { tapes, tasks } = vectors("reports.json");
  let checked = 0;
  for (const [group, { document, records, reports, dropped }] of tasks.entries()) {
    const task = await taskOf(document);
    for (const [place, pairs] of records.entries()) {
      const record = new Map<string, number>(pairs);
      for (let tape = 0; tape < tapes; tape++, checked++) {
        const vector = tapes * place + tape;
        const summary = emptySummary();
        const coins = TapeCoins.vector(group, vector);
        const made = hex(privatize(task, record, coins, tapeSeeds(group, vector), summary));
        const wanted = reports[place].slice(made.length * tape, made.length * (tape + 1));
        const lost = [summary.sampledRecords, summary.droppedEntries];
        if (made !== wanted || lost[1] !== dropped[place] || lost[0] !== Math.min(lost[1], 1)) {
          return { checked, wrong: `${task.name}, record ${place}, tape ${tape}: ${made}, not ${wanted}` };
        }
      }
    }
  }
  return { checked, wrong: undefined };
}

const padded = (word: Word): string => bigOf(word).toString(16).padStart(16, "0");
const unpadded = (word: Word): string => bigOf(word).toString(16);
const wordFrom = (digits: string): Word => [
  Number.parseInt(digits.slice(0, 8), 16),
  Number.parseInt(digits.slice(8), 16),
];
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
      ["rare codes", row.rare.map((id: string) => unpadded(keys.code(wordFrom(id), 0))), row.rare_codes],
      ["signs", sides.map((id) => sign(keys.sign(id))).join(""), row.signs],
    ];
    for (const [cohort, codes] of Object.entries(row.codes)) {
      found.push([`codes ${cohort}`, sides.map((id) => unpadded(keys.code(id, Number(cohort)))), codes]);
    }
    const seeds = row.seeds.map(wordFrom);
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
        const { records, entries, clipped, absent, unknown, unreadable } = summary;
        const kept = ids.map((id, at) => [unpadded(id), values[at]]);
        made = [kept, records, entries, clipped, absent, unknown, unreadable];
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

/** The group of streams that the samplers read. */
const GROUP = 1000;

/** What the samplers make of tapes. */
export async function samplers(): Promise<Agreement> {
  const { rows } = vectors("samplers.json");
  for (const [checked, [what, asked, tape, wanted]] of rows.entries()) {
    const given = asked.map(BigInt);
    const ask: { [what: string]: (coins: TapeCoins) => unknown[] } = {
      below: (coins) => [coins.below(given[0])],
      draw: (coins) => coins.draw(given[0], given[1]),
      coin: (coins) => coins.coin(given[0], given[1], given[2]),
      clamped_laplace: (coins) => [coins.clampedLaplace(given[0], given[1], given[2], given[3])],
    };
    const tries: ((coins: TapeCoins) => unknown[])[] = [ask[what]];
    if (what === "below" && given[0] <= 2n ** 32n) tries.push((coins) => [coins.below(Number(given[0]))]);
    for (const attempt of tries) {
      const words = (tape ?? []).map(wordFrom).values();
      const after = stream(GROUP, checked);
      const coins = new TapeCoins(() => words.next().value ?? after());
      const made = Array.from({ length: tape ? 1 : 4 }, () => attempt(coins)).flat();
      const answers = made.map((one) => String(typeof one === "boolean" ? Number(one) : one));
      if (answers.join() !== wanted.join())
        return { checked, wrong: `${what} ${asked}: ${answers}, not ${wanted}` };
    }
  }
  return { checked: rows.length, wrong: undefined };
}

/** Sums, products, shifts and remainders of words, against BigInt. */
export async function words(): Promise<Agreement> {
  const halves = [0, 1, 2, 0x7fffffff, 0x80000000, 0xffff, 0x10000, 0xfffffffe, 0xffffffff, 0x9e3779b9];
  const all: Word[] = halves.flatMap((high) => halves.map((low): Word => [high, low]));
  const low64 = (value: bigint): string => BigInt.asUintN(64, value).toString(16);
  let checked = 0;
  for (const [place, one] of all.entries()) {
    const two = all[(37 * place + 11) % all.length];
    const [x, y] = [bigOf(one), bigOf(two)];
    const found: [string, string][] = [
      [unpadded(add(one, two)), low64(x + y)],
      [unpadded(times(one, two)), low64(x * y)],
      [unpadded(xor(one, two)), low64(x ^ y)],
      [String(remainder(one, 1_000_003)), String(x % 1_000_003n)],
      ...Array.from({ length: 65 }, (_, bits): [string, string] => [
        unpadded(shiftRight(one, bits)),
        low64(x >> BigInt(bits)),
      ]),
    ];
    checked += found.length;
    if (found.some(([made, wanted]) => made !== wanted)) return { checked, wrong: `words ${one} and ${two}` };
  }
  return { checked, wrong: undefined };
}

/** Secret coins and public seeds are what the operating system gives, each bit of it used once. */
export async function randomness(): Promise<Agreement> {
  const genuine = crypto.getRandomValues;
  let given = 0;
  const count = (into: Uint32Array): Uint32Array => {
    for (let at = 0; at < into.length; at++) into[at] = given++;
    return into;
  };
  crypto.getRandomValues = count as typeof genuine;
  try {
    const coins = new SecretCoins();
    const words = Array.from({ length: 100 }, () => coins.word());
    if (words.some(([high, low], at) => high !== 2 * at || low !== 2 * at + 1))
      return { checked: 0, wrong: "coins" };
    const start = given;
    const seeds = systemSeeds.draw(64, 3).concat(systemSeeds.draw(32, 2), systemSeeds.draw(0, 1));
    const wanted = [0, 2, 4].map((at): Word => [start + at, start + at + 1]);
    wanted.push([0, start + 6], [0, start + 8], [0, 0]);
    if (seeds.join() !== wanted.join()) return { checked: 0, wrong: "seeds" };
  } finally {
    crypto.getRandomValues = genuine;
  }
  return { checked: 106, wrong: undefined };
}

/** The probability of every report of small tasks. */
export async function laws(): Promise<Agreement> {
  const rows = vectors("laws.json").laws;
  for (const [checked, { document, record, seed, law }] of rows.entries()) {
    const task = await taskOf(document);
    const held = new Map<string, number>(record);
    const found = new Enumeration().law((coins) =>
      hex(privatize(task, held, coins, fixedSeeds(seed), emptySummary())),
    );
    const made = found.map(
      ([report, over, under]) => `${report},${under === "1" ? over : `${over}/${under}`}`,
    );
    if (made.sort().join() !== law.join()) return { checked, wrong: `${document}: ${made}, not ${law}` };
  }
  return { checked: rows.length, wrong: undefined };
}

/** Everything that must agree. */
export const ALL = { words, randomness, samplers, laws, keys, rules, reports };
