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
 */

import { type Book, changeBook, listIn, type Made, readBook } from "./book.js";
import { fromHex, toHex } from "./bytes.js";
import { Client, type DeviceRecord } from "./client.js";
import { Refused } from "./errors.js";
import { periodOf } from "./periods.js";
import { seal } from "./sealing.js";
import { browserStore, type Store } from "./store.js";
import type { Task } from "./task.js";

/** This period's budget is gone. */
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
  ): Promise<Uint8Array> {
    return (await this.spend(task, record, publicKey, day)) ?? this.#again(task, true, day);
  }

  /** A new report, or `BudgetSpent` if this period's budget is gone. */
  async fresh(task: Task, record: DeviceRecord, day = new Date()): Promise<Uint8Array> {
    const made = await this.spend(task, record, undefined, day);
    if (made) return made;
    const period = periodOf(task.period, day);
    throw new BudgetSpent(
      `The budget of task "${task.name}" for period ${period} is spent; replay the last report instead.`,
    );
  }

  /**
   * Make a report, sealed if there is a key, and keep it; undefined if this period's budget is gone.
   *
   * `also` may change the book in the same step.
   */
  async spend(
    task: Task,
    record: DeviceRecord,
    publicKey: Uint8Array | undefined,
    day: Date,
    also: (book: Book, payload: Uint8Array) => void = () => {},
  ): Promise<Uint8Array | undefined> {
    const period = periodOf(task.period, day);
    if (!hasBudget(await readBook(this.store, task), task, period)) return undefined;
    const report = new Client(task).report(record);
    const payload = publicKey ? await seal(report, publicKey, task, period) : report;
    const entry = publicKey ? { sealed: toHex(payload) } : toHex(payload);
    return changeBook(this.store, task, (book) => {
      if (!hasBudget(book, task, period)) return undefined; // another tab was faster
      book.ledger[task.digest] ??= {};
      listIn(book.ledger[task.digest], period).push(entry);
      also(book, payload);
      return payload;
    });
  }

  /** The epsilon that this device has spent on a task, all periods added up. */
  async spent(task: Task): Promise<number> {
    const periods = (await readBook(this.store, task)).ledger[task.digest] ?? {};
    return task.epsilon * Object.values(periods).reduce((count, made) => count + made.length, 0);
  }

  /** The last report of this period that was made for a collector, or sealed; undefined if there is none. */
  async last(task: Task, sealed = false, day = new Date()): Promise<Uint8Array | undefined> {
    const made = madeIn(await readBook(this.store, task), task, periodOf(task.period, day));
    const last = made.filter((each) => (typeof each !== "string") === sealed).at(-1);
    return last === undefined ? undefined : fromHex(typeof last === "string" ? last : last.sealed);
  }

  /** The same, which must be there. */
  async #again(task: Task, sealed: boolean, day: Date): Promise<Uint8Array> {
    const last = await this.last(task, sealed, day);
    if (last === undefined) {
      const [one, other] = sealed ? ["a shuffler", "a collector"] : ["a collector", "a shuffler"];
      throw new BudgetSpent(
        `The budget of task "${task.name}" for period ${periodOf(task.period, day)} is spent on reports to ${other}; ` +
          `the same report must not reach ${one} as well.`,
      );
    }
    return last;
  }
}

function madeIn(book: Book, task: Task, period: string): Made[] {
  return book.ledger[task.digest]?.[period] ?? [];
}

function hasBudget(book: Book, task: Task, period: string): boolean {
  return madeIn(book, task, period).length < task.reportsPerPeriod;
}
