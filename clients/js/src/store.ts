/**
 * One text that a device keeps, and that all its tabs and processes change one after another.
 *
 * In a browser it is in IndexedDB, whose read-write transactions are alone with it across tabs and workers: a tab that
 * is closed in the middle has changed all or nothing. Nothing else will do. Each process has a copy of localStorage that
 * follows the others' a little later, also under a Web Lock, so that two tabs could each make a report of one period.
 * For Node there is `FileStore` (file_store.ts).
 */

import { Refused } from "./errors.js";

/** What a change makes of the text: what to keep (undefined: what is there), and what to answer. */
export interface Changed<T> {
  keep: string | undefined;
  result: T;
}

export interface Store {
  /** What it is called in messages. */
  readonly where: string;
  /** The text as it is now, undefined before the first change. */
  read(): Promise<string | undefined>;
  /**
   * Apply a function to the text while nobody else does; what it keeps is on disk when this resolves. If it throws, or
   * the text cannot be written, nothing has changed. It may be called again, so it must do nothing else.
   */
  change<T>(change: (text: string | undefined) => Changed<T>): Promise<T>;
}

/** The store of this browser for pages of this origin; pages that give another name have another one. */
export function browserStore(name = "hubbub"): Store {
  if (globalThis.indexedDB) return new DatabaseStore(name);
  throw new Refused("Nothing can be kept safely here: there is no IndexedDB; in Node, give a FileStore.");
}

/** Why a store cannot be used, in a sentence. */
export function unusable(where: string, problem: unknown): Refused {
  if (problem instanceof Refused) return problem;
  const { name = "unknown reason", message } = Object(problem) as Partial<Error>;
  return new Refused(
    name === "QuotaExceededError"
      ? `${where} is full; nothing was changed: make room and try again.`
      : `${where} cannot be used (${message || name}); nothing was changed.`,
  );
}

/** What a store answers; if it cannot be used, why. */
async function saying<T>(where: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (problem) {
    throw unusable(where, problem);
  }
}

const TABLE = "kept";
const PLACE = "book";

class DatabaseStore implements Store {
  readonly where: string;
  #opened: Promise<IDBDatabase> | undefined;

  constructor(readonly name: string) {
    this.where = `the browser's database "${name}"`;
  }

  read(): Promise<string | undefined> {
    return this.#run("readonly", (text) => ({ keep: undefined, result: text }));
  }

  change<T>(change: (text: string | undefined) => Changed<T>): Promise<T> {
    return this.#run("readwrite", change);
  }

  #run<T>(mode: IDBTransactionMode, change: (text: string | undefined) => Changed<T>): Promise<T> {
    return saying(this.where, async () => {
      const transaction = await this.#begin(mode);
      const table = transaction.objectStore(TABLE);
      const found = table.get(PLACE);
      return new Promise((resolve, reject) => {
        let result: T;
        found.onsuccess = () => {
          try {
            const changed = change(found.result as string | undefined);
            result = changed.result;
            if (changed.keep !== undefined) table.put(changed.keep, PLACE);
          } catch (problem) {
            reject(problem);
            transaction.abort();
          }
        };
        transaction.oncomplete = () => resolve(result);
        transaction.onabort = () => reject(transaction.error);
      });
    });
  }

  async #begin(mode: IDBTransactionMode): Promise<IDBTransaction> {
    try {
      this.#opened ??= this.#open();
      // Strict: complete means on the disk, not on its way there.
      return (await this.#opened).transaction(TABLE, mode, { durability: "strict" });
    } catch (problem) {
      this.#opened = undefined; // what is in the way now may be gone at the next attempt
      throw problem;
    }
  }

  #open(): Promise<IDBDatabase> {
    return new Promise((resolve, reject) => {
      const opening = indexedDB.open(this.name, 1); // in some private windows it is there and may not be opened
      opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE);
      opening.onerror = () => reject(opening.error);
      opening.onsuccess = () => {
        const database = opening.result;
        const forget = (): void => {
          database.close();
          this.#opened = undefined;
        };
        database.onclose = forget; // somebody clears the browser's data
        database.onversionchange = forget;
        resolve(database);
      };
    });
  }
}
