/** The task: what is collected, and how. In Python: hubbub/protocol/task.py and device_document.py. */

import { toHex, utf8 } from "./bytes.js";
import type { Coins, Seeds } from "./coins.js";
import { Refused } from "./errors.js";
import { hashEntries } from "./hashing.js";
import { Keys, type Kind, type Universe } from "./keys.js";
import { coco } from "./mechanisms/coco.js";
import { collision } from "./mechanisms/collision.js";
import { hadamard, pckvGrr, privkv } from "./mechanisms/listed.js";
import { sampled } from "./mechanisms/sampled.js";
import { type HashedKernel, type ListedKernel, Shape } from "./mechanisms/shape.js";
import { sketchResponse } from "./mechanisms/sketch_response.js";
import { sparseSum } from "./mechanisms/sparse_sum.js";
import { PERIOD_BYTES } from "./periods.js";
import { keepsPromise, type Promised, type Randomizer } from "./promise.js";
import type { Entries, Scale } from "./record.js";
import { areLists, type Lists } from "./strata.js";
import { Layout } from "./wire.js";

/** The second for tasks with rules that older clients, which would not keep them, do not know: so they refuse it. */
const FORMATS = ["hubbub device task 1", "hubbub device task 2"];
const HASHED: { [name: string]: (shape: Shape, buckets: number) => HashedKernel } = {
  coco,
  collision,
  local_hashing: collision,
  sampled,
  sketch_response: sketchResponse,
  sparse_sum: sparseSum,
};
const LISTED: { [name: string]: (shape: Shape, inTwoSteps: boolean) => ListedKernel } = {
  hadamard,
  pckv_grr: pckvGrr,
  privkv,
};

export type Period = "once" | "day" | "week" | "month";

/** Makes the bytes of a report: of entries that are tidied and sampled down, by these coins and public seeds. */
export type Randomize = (entries: Entries, coins: Coins, seeds: Seeds) => Uint8Array<ArrayBuffer>;

/** One immutable description shared by device, server and analyst. */
export class Task {
  readonly name: string;
  /** Sixteen bytes that stand for this task, as 32 hexadecimal digits. */
  readonly digest: string;
  readonly period: Period;
  readonly reportsPerPeriod: number;
  /** What is public about whoever reports, by name, each with all its values. */
  readonly labels: Lists;
  /** A device takes part in one of so many periods. */
  readonly rotation: number;
  /** Distinct records that get a report of their own, over all time; 0 where each period gets a fresh report. */
  readonly memoizeCap: number;
  /** Whether seeds follow from a nonce of the collector. */
  readonly needsNonce: boolean;
  /** Bytes of one report. */
  readonly reportBytes: number;
  readonly mechanism: string;
  /** The mechanism's number in the envelope of a batch. */
  readonly code: number;
  readonly epsilon: number;
  readonly delta: number;
  /** What is protected: a whole record, one entry, or an l1 distance. */
  readonly unit: string;
  /** The guarantee in sentences. */
  readonly guarantee: string;
  readonly keys: Keys;
  readonly scale: Scale;
  /** Entries of a record that count; none where records are taken whole. */
  readonly maxEntries: number | undefined;
  /** @internal */
  readonly randomize: Randomize;

  private constructor(given: Document, told: Told) {
    this.name = given.name;
    this.digest = given.digest;
    this.period = given.period;
    this.reportsPerPeriod = given.reports_per_period;
    this.labels = told.labels;
    this.rotation = told.rotation;
    this.memoizeCap = told.memoize_cap;
    this.needsNonce = told.seed_from !== "device";
    this.mechanism = given.mechanism.name;
    this.code = given.mechanism.code;
    this.epsilon = given.guarantee.epsilon;
    this.delta = given.guarantee.delta;
    this.unit = given.guarantee.unit;
    this.guarantee = given.guarantee.words;
    this.keys = new Keys(given.keys, told.keys.vocabulary);
    this.scale = given.values;
    this.maxEntries = given.max_entries ?? undefined;
    const layout = new Layout(given.report.map(([, limit]) => BigInt(limit)));
    this.reportBytes = layout.width;
    this.randomize = randomizer(given, this.keys, layout);
  }

  /**
   * Fetch the document of a task, from a collector (`/v1/tasks/DIGEST/device`) or wherever it is kept.
   *
   * `pin`, the SHA-256 of the document in hexadecimal digits, refuses every other document: then the page decides
   * what is asked, and nobody else. Everything else of `init` goes to `fetch`.
   */
  static async fetch(url: string | URL, init: RequestInit & { pin?: string } = {}): Promise<Task> {
    const { pin, ...rest } = init;
    let bytes: Uint8Array<ArrayBuffer>;
    try {
      const answer = await fetch(url, { credentials: "omit", ...rest });
      if (!answer.ok) throw new Refused(`answer ${answer.status}`);
      bytes = new Uint8Array(await answer.arrayBuffer());
    } catch (problem) {
      throw new Refused(
        `The task cannot be fetched from ${url} (${(problem as Error).message}): try again later.`,
      );
    }
    return Task.parse(bytes, pin);
  }

  /** A task from the bytes of its document (`hubbub task export`). */
  static async parse(bytes: Uint8Array<ArrayBuffer>, pin?: string): Promise<Task> {
    if (pin !== undefined && (await sha256(bytes)) !== pin.toLowerCase()) {
      throw new Refused(
        "This is not the pinned task document: it was changed, or the pin is of another one.",
      );
    }
    const given = readDocument(bytes);
    try {
      const told = readTask(given.task);
      if ((await sha256(utf8(given.task))).slice(0, 32) !== given.digest) {
        throw new Refused("The task document is damaged: its digest is of another task.");
      }
      check(given, told);
      return new Task(given, told);
    } catch (problem) {
      if (problem instanceof Refused) throw problem;
      throw new Refused("The task document is damaged: parts of it are missing, or not what they should be.");
    }
  }
}

/** The document as docs/protocol.md describes it. */
interface Document {
  format: string;
  digest: string;
  name: string;
  period: Period;
  reports_per_period: number;
  messages: number;
  labels?: Lists;
  guarantee: { epsilon: number; delta: number; unit: string; words: string };
  keys: Universe;
  values: Scale;
  max_entries: number | null;
  mechanism: Randomizer;
  report: [string, number | string][];
  task: string;
}

/** What is read of the task's canonical form, to which the digest belongs. */
interface Told {
  name: string;
  period: Period;
  reports_per_period: number;
  messages: number;
  rotation: number;
  labels: Lists;
  memoize: string;
  memoize_cap: number;
  seed_from: string;
  low: number;
  high: number;
  keys: { kind: Kind; salt: string; vocabulary?: string[] };
  mechanism: Promised;
}

/** What the canonical form leaves out. */
const DEFAULTS = {
  period: "once",
  reports_per_period: 1,
  messages: 0,
  rotation: 1,
  labels: {},
  memoize: "off",
  memoize_cap: 0,
  seed_from: "device",
  low: -1,
  high: 1,
};

function readTask(text: string): Told {
  const told = JSON.parse(text);
  const mechanism = { unit: "record", delta: 0, max_entries: 1, ...told.mechanism };
  return { ...DEFAULTS, ...told, mechanism };
}

function readDocument(bytes: Uint8Array): Document {
  let given: Document;
  try {
    given = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw new Refused("This is no task document: it is not JSON.");
  }
  if (!FORMATS.includes(given?.format)) {
    throw new Refused(
      "This is no task document that this client knows; export the task with hubbub task export.",
    );
  }
  return given;
}

/** Whether two have the same in these fields. */
function agree<T, Field extends keyof T>(one: T, other: Pick<T, Field>, ...fields: Field[]): boolean {
  return fields.every((field) => one[field] === other[field]);
}

/** What the document says must be what the task says, and must not say more than its epsilon allows. */
function check(given: Document, told: Told): void {
  const name = String(given.mechanism.name);
  if (!Object.hasOwn(HASHED, name) && !Object.hasOwn(LISTED, name)) {
    throw new Refused(`Mechanism ${name} is not known to this client: update it, or choose another.`);
  }
  if (given.messages) {
    throw new Refused("This client does not send several messages per report.");
  }
  const shape = new Shape(given.mechanism.shape);
  // Records are sampled down to what the randomizer is for; these two take them whole.
  const whole = name === "privkv" || told.mechanism.unit !== "record";
  const limit = whole ? null : told.mechanism.max_entries;
  const { low, high, center, half, kind } = given.values;
  const agrees =
    keepsRules(given, told) &&
    given.max_entries === limit &&
    (whole || !shape.has("limit") || shape.count("limit") === limit) &&
    agree(given, told, "name", "period", "reports_per_period", "messages") &&
    Object.hasOwn(PERIOD_BYTES, given.period) &&
    JSON.stringify(given.labels ?? {}) === JSON.stringify(told.labels) &&
    areLists(told.labels) &&
    name === told.mechanism.name &&
    agree(given.guarantee, told.mechanism, "epsilon", "delta", "unit") &&
    agree(given.keys, told.keys, "kind", "salt") &&
    /^[0-9a-f]{32}$/.test(given.keys.salt) &&
    (told.keys.vocabulary === undefined || told.keys.vocabulary.length === given.keys.count) &&
    [low, high, center, half].every(Number.isFinite) &&
    // A narrower range would stretch values, and distances between records with them.
    (kind === "set" ? half === 1 : kind === "signed" && half >= (told.high - told.low) / 2);
  if (!agrees) throw new Refused("The task document contradicts the task that it is for: export it again.");
  const seed = given.report[0]?.[1];
  if (!keepsPromise(given.mechanism, shape, told.mechanism, given.keys, kind === "signed", seed)) {
    throw new Refused("The task document says more than its epsilon allows: do not use it.");
  }
}

/** Whether turns, memos and seeds are by rules that this client knows, and that go together. */
function keepsRules(
  given: Document,
  { rotation, memoize, memoize_cap, seed_from, mechanism }: Told,
): boolean {
  const isCount = (number: number): boolean => Number.isInteger(number) && number >= 1 && number <= 1000;
  const memoizes = memoize === "record" && isCount(memoize_cap) && given.reports_per_period === 1;
  const handedOut = seed_from === "server" && !memoizes && !mechanism.delta; // a delta needs seeds nobody chose
  return (
    isCount(rotation) &&
    (handedOut || seed_from === "device") &&
    (memoizes || (memoize === "off" && memoize_cap === 0)) &&
    (given.period !== "once" || (rotation === 1 && !memoizes)) &&
    given.format === FORMATS[rotation > 1 || memoizes || handedOut ? 1 : 0]
  );
}

function randomizer(given: Document, keys: Keys, layout: Layout): Randomize {
  const { name, family, buckets, seeds, sided, in_two_steps } = given.mechanism;
  const shape = new Shape(given.mechanism.shape);
  if (Object.hasOwn(HASHED, name) && family) {
    const respond = HASHED[name](shape, buckets);
    return ({ ids, values }, coins, source) => {
      const drawn = source.draw(layout.bits[0], seeds);
      const hashed = hashEntries(family, keys, drawn, ids, sided, buckets);
      const { row = 0, numbers } = respond(coins, { values, ...hashed });
      return layout.pack(drawn[row], numbers);
    };
  }
  const respond = LISTED[name](shape, in_two_steps);
  return ({ ids, values }, coins, source) => {
    const [seed] = source.draw(layout.bits[0], 1);
    const places = ids.map((id) => id[1]);
    return layout.pack(seed, respond(coins, places, values));
  };
}

async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  if (!globalThis.crypto?.subtle) {
    throw new Refused("There is no crypto.subtle to check the task with: serve the page over https.");
  }
  return toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
}
