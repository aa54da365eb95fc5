/**
 * What a device remembers, in one text: which reports it has made (the ledger), and which wait to be sent (the outbox).
 *
 * Both are in one place so that a report is spent and queued in one step: a tab that is closed at any moment has done
 * both or neither.
 */

import { fromHex } from "./bytes.js";
import { isId } from "./delivery.js";
import { Refused } from "./errors.js";
import type { Memo } from "./memo.js";
import { sealedBytes } from "./sealing.js";
import type { Store } from "./store.js";
import type { Stratum } from "./strata.js";
import type { Task } from "./task.js";

/** One report that was made: hexadecimal digits, and one that was made for a shuffler sealed only. */
export type Made = string | { sealed: string };

/**
 * Reports that are sent together, one after another in hexadecimal digits; "id" is theirs alone and stays. So does what
 * is said beside them, if they are not sealed: labels and period are those of the moment when they were made.
 */
export interface Batch extends Stratum {
  id: string;
  reports: string;
}

/** What is remembered of a task besides its reports. Clients that know nothing of it leave it as it is. */
export interface Kept {
  name: string;
  epsilon: number;
  delta: number;
  unit: string;
  /** By period: on which day, by the device's own calendar, each report was made. */
  days: Record<string, string[]>;
  /** Where devices take turns: which it is, drawn once. */
  turn?: number;
  /** Where records are memoized: reports by their record, and how many there may ever be. */
  memo?: Memo;
  memoizeCap?: number;
  /** The periods whose report is an earlier one, sent again. */
  again?: string[];
}

export interface Book {
  /** By the task's digest, then by period. */
  ledger: Record<string, Record<string, Made[]>>;
  /** By the place that they wait in: the task's digest, with "-keyed" for a shuffler. */
  outbox: Record<string, Batch[]>;
  /** The same of batches that the collector will never take. */
  refused: Record<string, Batch[]>;
  /** By the task's digest. */
  kept: Record<string, Kept>;
}

/** What is remembered of a task, begun if it is not there. */
export function keptOf(book: Book, task: Task): Kept {
  const { name, epsilon, delta, unit } = task;
  book.kept[task.digest] ??= { name, epsilon, delta, unit, days: {} };
  if (task.memoizeCap) book.kept[task.digest].memoizeCap = task.memoizeCap;
  return book.kept[task.digest];
}

/** Where reports of a task wait. */
export function placeOf(task: Task, sealed: boolean): string {
  return sealed ? `${task.digest}-keyed` : task.digest;
}

/** Bytes of a report of a task as it is sent. */
export function widthOf(task: Task, sealed: boolean): number {
  return sealed ? sealedBytes(task) : task.reportBytes;
}

/** All reports of a task, in the order in which they were made. */
export function madeFor(book: Book, task: Task): Made[] {
  return Object.values(book.ledger[task.digest] ?? {}).flat();
}

/** A report as hexadecimal digits, whichever way it takes. */
export function digitsOf(made: Made): string {
  return typeof made === "string" ? made : made.sealed;
}

/** The list with this name, made if it is not there. */
export function listIn<T>(lists: Record<string, T[]>, name: string): T[] {
  lists[name] ??= [];
  return lists[name];
}

/** The book as it is now; without a task, with no look at the reports in it. */
export async function readBook(store: Store, task?: Task): Promise<Book> {
  return parsed(await store.read(), store, task);
}

/** Change the book, alone, and keep it if the function says so by an answer other than undefined. */
export async function changeBook<T>(
  store: Store,
  task: Task,
  change: (book: Book) => T | undefined,
): Promise<T | undefined> {
  return store.change((text) => {
    const book = parsed(text, store, task);
    const result = change(book);
    return { keep: result === undefined ? undefined : JSON.stringify(book), result };
  });
}

/** The book in a text; what it holds for this task must be whole reports of this task. */
function parsed(text: unknown, store: Store, task?: Task): Book {
  if (text === undefined) return { ledger: {}, outbox: {}, refused: {}, kept: {} };
  try {
    const book: Book = { kept: {}, ...JSON.parse(text as string) };
    for (const part of [book.ledger, book.outbox, book.refused, book.kept]) check(isPlain(part));
    if (!task) return book;
    const periods = book.ledger[task.digest] ?? {};
    check(isPlain(periods) && Object.values(periods).every(Array.isArray));
    const made = madeFor(book, task);
    for (const each of made) check(bytesIn(digitsOf(each)) === widthOf(task, typeof each !== "string"));
    checkKept(made, task, book.kept[task.digest]);
    for (const sealed of [false, true]) {
      for (const batches of [book.outbox, book.refused]) {
        for (const { id, reports, labels = "", period = "" } of batches[placeOf(task, sealed)] ?? []) {
          check(isId(id) && bytesIn(reports) > 0);
          check(bytesIn(reports) % widthOf(task, sealed) === 0);
          check(/^[\w=,.+-]*$/.test(labels) && /^[\dW-]*$/.test(period)); // they are sent as headers
        }
      }
    }
    return book;
  } catch {
    throw new Refused(`${store.where} is not a ledger; nothing is reported while it cannot be read.`);
  }
}

/** A turn is one of the task's. A report that is no repetition is in the memo, and no other is; all are within the cap. */
function checkKept(made: Made[], task: Task, kept: Partial<Kept> & { days: object } = { days: {} }): void {
  const { days, turn = 0, memo, again = [] } = kept;
  check(isPlain(days) && Object.values(days).every(Array.isArray) && Array.isArray(again));
  check(Number.isInteger(turn) && turn >= 0 && turn < task.rotation);
  if (memo === undefined) {
    check(!again.length && (!task.memoizeCap || !made.length));
    return;
  }
  check(bytesIn(memo.salt) === 32 && isPlain(memo.reports));
  const reports = Object.values(memo.reports);
  check(reports.length <= task.memoizeCap && reports.length + again.length === made.length);
  check(Object.keys(memo.reports).every((name) => bytesIn(name) === 16));
  check(made.every((each) => typeof each === "string" && reports.includes(each)));
}

function check(holds: boolean): void {
  if (!holds) throw new TypeError();
}

function isPlain(part: unknown): boolean {
  return typeof part === "object" && part !== null && !Array.isArray(part);
}

function bytesIn(hex: string): number {
  return fromHex(hex)?.length ?? Number.NaN;
}
