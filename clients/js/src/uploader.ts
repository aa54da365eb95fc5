/**
 * Reports from a device to a collector, whatever the network does and whenever the page goes.
 *
 *     const uploader = new Uploader("https://collector.example", task);
 *     await uploader.report(["search", "export"]);
 *
 * What an uploader has taken is in the device's store before its promise resolves, and leaves it when the collector has
 * acknowledged it. A batch keeps its id and its bytes however often it is sent, from whichever tab, and the collector
 * counts it once. Only the collector's own word ends a batch (`delivery.ts`). Labels and period are kept with a batch:
 * they are those of the moment when its reports were made, whenever it is sent and by whichever page.
 */

import { blake2b } from "./blake2b.js";
import { type Batch, type Book, changeBook, listIn, placeOf, readBook, widthOf } from "./book.js";
import { fromHex, joined, littleEndian, toHex } from "./bytes.js";
import type { DeviceRecord } from "./client.js";
import { type Answer, askNonce, post } from "./delivery.js";
import { Refused } from "./errors.js";
import { Ledger } from "./ledger.js";
import { periodOf } from "./periods.js";
import { checkSealable } from "./sealing.js";
import { browserStore, type Store } from "./store.js";
import { type Labels, labelsFrom, labelsText, type Stratum } from "./strata.js";
import type { Task } from "./task.js";

/** Seconds until the next attempt: first, and at most. */
const FIRST_PAUSE = 0.5;
const LONGEST_PAUSE = 300;

export interface UploaderOptions {
  /** Shown to the collector; a page that everybody can read has none (see "public_reports" in the docs). */
  token?: string;
  /** Where ledger and outbox are kept; by default, in this browser. */
  store?: Store;
  /** The collector's public key: reports are sealed for it, and the address is a shuffler's. */
  sealedFor?: Uint8Array;
  /** Reports in one batch at most. */
  batch?: number;
  /** Seconds that an answer is waited for. */
  timeout?: number;
  /** What is public about whoever reports, if the task has labels: { country: "de" }. */
  labels?: Labels;
}

/** Sends reports of one task, in the background, for as long as it is open. */
export class Uploader {
  readonly ledger: Ledger;
  /** Why the last attempt failed, "" if it did not. */
  trouble = "";
  readonly #url: string;
  readonly #place: string;
  readonly #width: number;
  readonly #options: UploaderOptions;
  readonly #labels: string;
  #batch: number;
  readonly #closing = new AbortController();
  #running: Promise<void> | undefined;
  #more = false;
  #setAside = 0;
  /** Batches as this tab last saw them, for the moment when the page goes and the store cannot be asked any more. */
  #known: Batch[] = [];
  readonly #underWay = new Set<string>();
  readonly #failures = new Map<string, number>();
  #rouse: (() => void) | undefined;
  /** One round of sending at a time. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(
    url: string,
    readonly task: Task,
    options: UploaderOptions = {},
  ) {
    const sealed = options.sealedFor !== undefined;
    if (sealed) checkSealable(task);
    this.#options = options;
    this.#batch = options.batch ?? 500;
    if (!(this.#batch >= 1)) throw new Refused(`A batch has at least 1 report, not ${this.#batch}.`);
    this.#labels = labelsText(task, labelsFrom(task, options.labels));
    this.ledger = new Ledger(options.store ?? browserStore());
    this.#place = placeOf(task, sealed);
    this.#width = widthOf(task, sealed);
    this.#url = `${address(url)}/${sealed ? "v2" : "v1"}/tasks/${task.digest}/`;
    const { signal } = this.#closing;
    globalThis.addEventListener?.("pagehide", () => this.#leave(), { signal }); // in Node, no page goes
    globalThis.addEventListener?.("online", () => this.#rouse?.(), { signal });
    this.#wake();
  }

  /**
   * Report a record, once per task and period as the task allows; whether there was budget left for it, and it was the
   * device's turn.
   *
   * The report is spent and queued in one step, so asking again, in whatever tab, sends nothing twice. If its seeds come
   * from the collector, which hands out none now, this is refused, and nothing is spent.
   */
  async report(record: DeviceRecord, day?: Date): Promise<boolean> {
    const shown = day ?? new Date();
    const stratum = this.#stratum(shown, day !== undefined || isSet(shown));
    const { sealedFor, labels } = this.#options;
    let nonce: string | undefined;
    if (this.task.needsNonce) {
      if (!(await this.ledger.mayReport(this.task, shown))) return false;
      nonce = await askNonce(`${this.#url}nonces`, newId(), ...this.#access());
    }
    let batches: Batch[] | undefined;
    const queue = (book: Book, payload: Uint8Array): void => {
      batches = this.#queue(book, payload, stratum, nonce);
    };
    const made = await this.ledger.spend(this.task, record, sealedFor, shown, queue, labels, nonce);
    this.#wake(batches);
    return made !== undefined;
  }

  /** Take reports of today's period, made elsewhere, one after another; they are in the store when this resolves. */
  async add(reports: Uint8Array): Promise<void> {
    if (this.#options.sealedFor || this.task.needsNonce) {
      throw new Refused("Reports for a shuffler, or with a nonce, are made here: call report(record).");
    }
    if (!reports.length || reports.length % this.#width) {
      throw new Refused(`${reports.length} bytes are no reports of ${this.#width} bytes.`);
    }
    const now = new Date();
    const stratum = this.#stratum(now, isSet(now));
    this.#wake(await this.#change((book) => this.#queue(book, reports, stratum)));
  }

  /** Send everything now; whether all that waited was acknowledged in time, and none refused since the last call. */
  async flush(seconds = 60): Promise<boolean> {
    const deadline = Date.now() + 1000 * seconds;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      const wish = await this.#sendAll();
      if (wish === undefined) {
        const aside = this.#setAside;
        this.#setAside = 0;
        return !aside;
      }
      pause = Math.max(wish, pause);
      if (Date.now() + 1000 * pause > deadline) return false;
      await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
    }
  }

  /** Stop sending. What was not acknowledged stays in the store, for the next uploader of this task. */
  close(): void {
    this.#closing.abort();
    this.#rouse?.();
  }

  /** Reports that are not acknowledged yet. */
  async waiting(): Promise<number> {
    return (await this.#batches()).reduce((count, { reports }) => count + this.#count(reports), 0);
  }

  /** Batches that the collector will never take: it said so, and they are not sent again. */
  refused(): Promise<Batch[]> {
    return this.#kept("refused");
  }

  // What is kept

  async #kept(part: "outbox" | "refused"): Promise<Batch[]> {
    return (await readBook(this.ledger.store, this.task))[part][this.#place] ?? [];
  }

  async #batches(): Promise<Batch[]> {
    this.#known = await this.#kept("outbox");
    return this.#known;
  }

  #change<T>(change: (book: Book) => T | undefined): Promise<T | undefined> {
    return changeBook(this.ledger.store, this.task, change);
  }

  /** What is said beside reports of a day, of which a clock that was never set knows nothing; sealed ones say it. */
  #stratum(day: Date, known: boolean): Stratum {
    if (this.#options.sealedFor) return {};
    return {
      ...(this.#labels && { labels: this.#labels }),
      ...(known && this.task.period !== "once" && { period: periodOf(this.task.period, day) }),
    };
  }

  /** Add reports of a stratum to a book, in batches, a single one under its nonce; all that wait in it. */
  #queue(book: Book, reports: Uint8Array, stratum: Stratum, nonce?: string): Batch[] {
    const batches = listIn(book.outbox, this.#place);
    for (let start = 0; start < reports.length; start += this.#batch * this.#width) {
      batches.push({
        ...stratum,
        id: nonce ?? newId(),
        reports: toHex(reports.subarray(start, start + this.#batch * this.#width)),
      });
    }
    return batches;
  }

  /** Take a batch out of the outbox, if no other tab has done so, and do something in the same step. */
  #finish(id: string, also: (book: Book, batch: Batch) => void = () => {}): Promise<unknown> {
    return this.#change((book) => {
      const batches = book.outbox[this.#place] ?? [];
      const place = batches.findIndex((batch) => batch.id === id);
      if (place < 0) return undefined;
      const [batch] = batches.splice(place, 1);
      also(book, batch!);
      return true;
    });
  }

  // What is sent

  /** Send what waits, once it is in the store: never before, or a page that goes could say what no ledger knows of. */
  #wake(batches = this.#known): void {
    this.#known = batches;
    this.#more = true;
    this.#running ??= this.#run().finally(() => {
      this.#running = undefined;
    });
  }

  async #run(): Promise<void> {
    let pause = 0;
    while (this.#more && !this.#closing.signal.aborted) {
      this.#more = false;
      const wish = await this.#sendAll().catch((problem) => {
        this.trouble = String(problem); // the store's; whatever it is, it may pass
        return 0;
      });
      if (wish === undefined) {
        pause = 0;
        continue;
      }
      const longer = Math.min(Math.max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE);
      pause = Math.max(wish, longer * (0.5 + Math.random() / 2)); // not all devices at the same moment
      await this.#rest(pause, wish === 0);
      this.#more = true;
    }
  }

  /** New reports do not end a rest; the network's return does, unless the collector asked for it. */
  async #rest(seconds: number, mayEnd: boolean): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, 1000 * seconds);
      this.#rouse = () => {
        if (!mayEnd && !this.#closing.signal.aborted) return;
        clearTimeout(timer);
        resolve();
      };
    });
    this.#rouse = undefined;
  }

  /**
   * Send all batches; undefined if none is left, otherwise the seconds that the collector wants us to wait.
   *
   * A round ends with the first that is not taken, and those that failed before come last. One whose period has not
   * begun does not end it.
   */
  #sendAll(): Promise<number | undefined> {
    const turn = this.#turn.then(() => this.#round());
    this.#turn = turn.catch(() => {});
    return turn;
  }

  async #round(): Promise<number | undefined> {
    const early = new Map<string, number>();
    for (;;) {
      const failed = (batch: Batch): number => this.#failures.get(batch.id) ?? 0;
      const batches = (await this.#batches()).filter(({ id }) => !early.has(id));
      if (!batches.length) break;
      for (const batch of batches.sort((one, other) => failed(one) - failed(other))) {
        const answer = await this.#send(batch);
        if (answer === undefined) {
          this.#failures.delete(batch.id);
          continue;
        }
        this.#failures.set(batch.id, failed(batch) + 1);
        if (answer.verdict !== "early") return answer.wait;
        early.set(batch.id, answer.wait);
      }
    }
    if (early.size) return Math.max(...early.values());
    this.trouble = "";
    return undefined;
  }

  /** Send one batch; undefined if it is done with, otherwise what the collector says, if anything. */
  async #send(batch: Batch): Promise<Pick<Answer, "verdict" | "wait"> | undefined> {
    const { id, reports } = batch;
    this.#underWay.add(id);
    try {
      const { verdict, words, wait } = await this.#post(batch);
      if (verdict === "taken") {
        await this.#finish(id);
        return undefined;
      }
      this.trouble = `the collector answered ${words}`;
      if (verdict === "later" || verdict === "early") return { verdict, wait };
      const count = this.#count(reports);
      if (verdict === "too large" && count > 1) {
        this.#batch = Math.min(this.#batch, count >> 1);
        await this.#finish(id, (book, whole) => this.#queue(book, fromHex(whole.reports)!, whole));
      } else {
        await this.#finish(id, (book, refused) => listIn(book.refused, this.#place).push(refused));
        this.#setAside++;
      }
      return undefined;
    } catch (problem) {
      if (problem instanceof Refused) throw problem;
      this.trouble = `the collector cannot be reached (${(problem as Error).message})`;
      return { verdict: "later", wait: 0 };
    } finally {
      this.#underWay.delete(id);
    }
  }

  /** The token, and a signal for when an answer is no longer waited for. */
  #access(): [string | undefined, AbortSignal] {
    return [this.#options.token, AbortSignal.timeout(1000 * (this.#options.timeout ?? 30))];
  }

  async #post(batch: Batch): ReturnType<typeof post> {
    const bytes = fromHex(batch.reports)!;
    const body = this.#options.sealedFor ? joined(bytes) : envelope(this.task, bytes);
    const route = this.#options.sealedFor ? "sealed" : "reports";
    return post(this.#url + route, body, batch, ...this.#access());
  }

  #count(reports: string): number {
    return reports.length / 2 / this.#width;
  }

  /** The page goes: send what is left without waiting for answers. The next page hears them, by sending again. */
  #leave(): void {
    if (this.#rouse) return; // the collector is away, or wants us to wait
    for (const batch of this.#known) {
      if (!this.#underWay.has(batch.id)) this.#post(batch).catch(() => {});
    }
  }
}

/** The body of an upload: reports in the envelope that `hubbub.primitives.envelope` describes. */
export function envelope(task: Task, reports: Uint8Array): Uint8Array<ArrayBuffer> {
  const [count, length] = [reports.length / task.reportBytes, reports.length];
  const numbers = [count, 0, length].flatMap((number) => littleEndian(number, 8));
  const body = joined("hubbR", [1], littleEndian(task.code, 2), fromHex(task.digest)!, numbers, reports);
  return joined(body, blake2b(body, 16));
}

/** An id for a batch: the day, so that a collector may forget ids later, and a fresh random number. */
function newId(): string {
  const now = new Date();
  const day = isSet(now) ? `${now.toISOString().slice(0, 10).replaceAll("-", "")}-` : "";
  return day + toHex(crypto.getRandomValues(new Uint8Array(16)));
}

/** A clock that shows an earlier year was never set. */
function isSet(clock: Date): boolean {
  return clock.getFullYear() >= 2024;
}

/** The beginning of all addresses of a service. */
function address(url: string): string {
  try {
    const { protocol, origin, pathname } = new URL(url, globalThis.location?.href);
    if (/^https?:$/.test(protocol)) return origin + pathname.replace(/\/+$/, "");
  } catch {
    // said below
  }
  throw new Refused(`"${url}" is no address of a service, such as https://collector.example.`);
}
