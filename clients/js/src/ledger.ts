/**
 * A device's memory of what it has already said, so that it never says too much.
 *
 * Every fresh report spends the task's epsilon again. The ledger allows as many per task and period as the task says,
 * and answers further questions with the very bytes that it gave before: to a collector the same report, to a
 * shuffler the same sealed item, which it knows and drops. A report takes one way, and is sealed once.
 *
 * What is returned is on disk before. A tab that is closed in the middle, or two tabs at once, can waste budget but
 * never spend it twice: a report is made first and counts when the store has taken it, which happens only if there is
 * budget left at that moment. One that comes too late is forgotten where it was made.
 *
 * Where devices take turns (`rotation`), a device draws its turn once, without a look at the record, and is silent in all
 * other periods. Where records are memoized, a record that was answered before gets the same report again (memo.ts).
 */

import { type Book, changeBook, digitsOf, keptOf, listIn, type Made, madeFor, readBook } from "./book.js";
import { fromHex, toHex } from "./bytes.js";
import { type DeviceRecord, randomized } from "./client.js";
import { SecretCoins, systemSeeds } from "./coins.js";
import { Refused } from "./errors.js";
import { answer, nameOf } from "./memo.js";
import { nonceSeeds } from "./nonces.js";
import { periodOf, takesPart } from "./periods.js";
import { emptySummary, encodeRecord } from "./record.js";
import { checkSealable, seal } from "./sealing.js";
import { browserStore, type Store } from "./store.js";
import { type Labels, labelsFrom } from "./strata.js";
import type { Task } from "./task.js";

/** This period's budget is gone, or it is not the device's turn. */
export class BudgetSpent extends Refused {}

export class Ledger {
  constructor(readonly store: Store = browserStore()) {}

  /** A report for this period: a fresh one while the budget lasts, then the last one again. */
  async report(task: Task, record: DeviceRecord, day = new Date()): Promise<Uint8Array> {
    return (await this.spend(task, record, undefined, day)) ?? this.#again(task, false, day);
  }

  /** The same for a shuffler: a fresh report, sealed for the collector, then the last sealed item again. */
  async sealed(
    task: Task,
    record: DeviceRecord,
    publicKey: Uint8Array,
    day = new Date(),
    labels: Labels = {},
  ): Promise<Uint8Array> {
    const made = await this.spend(task, record, publicKey, day, undefined, labels);
    return made ?? this.#again(task, true, day);
  }

  /** A new report, or `BudgetSpent` if this period's budget is gone. */
  async fresh(task: Task, record: DeviceRecord, day = new Date()): Promise<Uint8Array> {
    const made = await this.spend(task, record, undefined, day);
    return made ?? this.#refuse(task, day, "replay the last report instead");
  }

  /**
   * Make a report, sealed if there is a key, and keep it; undefined if this period's budget is gone, or if it is not the
   * device's turn. Of a task that memoizes: what is to be sent in this period, perhaps a report of an earlier one.
   *
   * `also` may change the book in the same step. A sealed report says the `labels`, which it keeps. With the collector's
   * `nonce`, if the task needs one.
   */
  async spend(
    task: Task,
    record: DeviceRecord,
    publicKey: Uint8Array | undefined,
    day: Date,
    also: (book: Book, payload: Uint8Array) => void = () => {},
    labels: Labels = {},
    nonce?: string,
  ): Promise<Uint8Array | undefined> {
    if (publicKey) checkSealable(task);
    const period = periodOf(task.period, day);
    const values = publicKey ? labelsFrom(task, labels) : [];
    if (!(await this.mayReport(task, day))) return undefined;
    if (task.needsNonce !== (nonce !== undefined)) {
      throw new Refused(
        `Task "${task.name}" needs ${nonce ? "no" : "a"} nonce of its collector: use an Uploader.`,
      );
    }
    const entries = encodeRecord(task.keys, task.scale, record, emptySummary());
    const seeds = nonce === undefined ? systemSeeds : nonceSeeds(nonce);
    const report = randomized(task, entries, new SecretCoins(), seeds, emptySummary());
    const sealed = publicKey && (await seal(report, publicKey, task, period, values));
    const salt = toHex(crypto.getRandomValues(new Uint8Array(32)));
    return changeBook(this.store, task, (book) => {
      if (!mayReport(book, task, day)) return undefined; // another tab was faster
      const kept = keptOf(book, task);
      let payload: Uint8Array = sealed ?? report;
      if (task.memoizeCap) {
        kept.memo ??= { salt, reports: {} };
        const name = nameOf(fromHex(kept.memo.salt) as Uint8Array, entries);
        const last = madeFor(book, task).at(-1) as string | undefined;
        const said = answer(kept.memo, task.memoizeCap, name, toHex(report), last);
        payload = fromHex(said.report) as Uint8Array;
        if (said.again) kept.again = [...(kept.again ?? []), period];
      }
      book.ledger[task.digest] ??= {};
      listIn(book.ledger[task.digest], period).push(sealed ? { sealed: toHex(payload) } : toHex(payload));
      listIn(kept.days, period).push(periodOf("day", day));
      also(book, payload);
      return payload;
    });
  }

  /** Whether there is budget left in this period, and it is the device's turn. */
  async mayReport(task: Task, day = new Date()): Promise<boolean> {
    return mayReport(await this.#withTurn(task), task, day);
  }

  /** The book, with this device's turn in it if the task has turns: on disk before anybody can see it. */
  async #withTurn(task: Task): Promise<Book> {
    const book = await readBook(this.store, task);
    if (task.rotation === 1 || book.kept[task.digest]?.turn !== undefined) return book;
    const drawn = new SecretCoins().below(task.rotation);
    await changeBook(this.store, task, (now) => {
      const kept = keptOf(now, task);
      kept.turn ??= drawn; // another tab may have been faster
      return kept.turn;
    });
    return readBook(this.store, task);
  }

  /** The epsilon that this device has spent on a task, all periods added up. */
  async spent(task: Task): Promise<number> {
    const book = await readBook(this.store, task);
    const again = book.kept[task.digest]?.again?.length ?? 0;
    return task.epsilon * (madeFor(book, task).length - again);
  }

  /** The last report of this period that was made for a collector, or sealed; undefined if there is none. */
  async last(task: Task, sealed = false, day = new Date()): Promise<Uint8Array | undefined> {
    const made = madeIn(await readBook(this.store, task), task, periodOf(task.period, day));
    const last = made.filter((each) => (typeof each !== "string") === sealed).at(-1);
    return last === undefined ? undefined : fromHex(digitsOf(last));
  }

  /** The same, which must be there. */
  async #again(task: Task, sealed: boolean, day: Date): Promise<Uint8Array> {
    const last = await this.last(task, sealed, day);
    return last ?? this.#refuse(task, day, "the same report must not reach a collector and a shuffler");
  }

  /** Say why there is no report: it is not the device's turn, or the budget is gone, and what follows from that. */
  async #refuse(task: Task, day: Date, consequence: string): Promise<never> {
    const period = periodOf(task.period, day);
    throw new BudgetSpent(
      madeIn(await readBook(this.store, task), task, period).length
        ? `The budget of task "${task.name}" for period ${period} is spent; ${consequence}.`
        : `In task "${task.name}" the device reports in one of ${task.rotation} periods, and ${period} is not its turn.`,
    );
  }
}

function madeIn(book: Book, task: Task, period: string): Made[] {
  return book.ledger[task.digest]?.[period] ?? [];
}

/** Whether there is budget left, and it is the device's turn. The record is no argument. */
function mayReport(book: Book, task: Task, day: Date): boolean {
  if (madeIn(book, task, periodOf(task.period, day)).length >= task.reportsPerPeriod) return false;
  return takesPart(task, book.kept[task.digest]?.turn ?? 0, day);
}
