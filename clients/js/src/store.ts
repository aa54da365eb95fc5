/**
 * One text that a device keeps, and that all its tabs and processes change one after another.
 *
 * In a browser it is in IndexedDB, whose read-write transactions are alone with it across tabs and workers: a tab that
 * is closed in the middle has changed all or nothing. Where there is no IndexedDB it is in localStorage under a Web
 * Lock; browsers write that to disk a little later, so after a power cut the last change may be missing. For Node there
 * is `FileStore` (file_store.ts).
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
  if (typeof indexedDB !== "undefined") return new DatabaseStore(name);
  if (typeof localStorage !== "undefined" && navigator.locks) return new LocalStore(name);
  throw new Refused("Nothing can be kept safely here; in Node, give a FileStore.");
}

/** Why a store cannot be used, in a sentence. */
export function unusable(where: string, problem: unknown): Refused {
  if (problem instanceof Refused) return problem;
  const { name, message } = (problem ?? {}) as { name?: string; message?: string };
  if (name === "QuotaExceededError") {
    return new Refused(`${where} is full; nothing was changed: make room and try again.`);
  }
  return new Refused(
    `${where} cannot be used (${message || name || "unknown reason"}); nothing was changed.`,
  );
}

const TABLE = "kept";
const PLACE = "book";

class DatabaseStore implements Store {
  readonly where: string;
  #opened: Promise<IDBDatabase> | undefined;

  constructor(readonly name: string) {
    this.where = `the browser's database "${name}"`;
  }

  async read(): Promise<string | undefined> {
    return this.#run("readonly", (text) => ({ keep: undefined, result: text }));
  }

  async change<T>(change: (text: string | undefined) => Changed<T>): Promise<T> {
    return this.#run("readwrite", change);
  }

  async #run<T>(mode: IDBTransactionMode, change: (text: string | undefined) => Changed<T>): Promise<T> {
    const database = await this.#open();
    return new Promise((resolve, reject) => {
      let result: T;
      let problem: unknown;
      const fail = (): void => reject(unusable(this.where, problem ?? transaction.error));
      let transaction: IDBTransaction;
      try {
        // Strict: complete means on the disk, not on its way there.
        transaction = database.transaction(TABLE, mode, { durability: "strict" });
      } catch (closed) {
        this.#opened = undefined;
        reject(unusable(this.where, closed));
        return;
      }
      const table = transaction.objectStore(TABLE);
      const found = table.get(PLACE);
      found.onsuccess = () => {
        try {
          const changed = change(found.result as string | undefined);
          result = changed.result;
          if (changed.keep !== undefined) table.put(changed.keep, PLACE);
        } catch (thrown) {
          problem = thrown;
          transaction.abort();
        }
      };
      transaction.oncomplete = () => resolve(result);
      transaction.onabort = fail;
    });
  }

  #open(): Promise<IDBDatabase> {
    this.#opened ??= new Promise<IDBDatabase>((resolve, reject) => {
      const fail = (problem: unknown): void => {
        this.#opened = undefined; // what is in the way now may be gone at the next attempt
        reject(unusable(this.where, problem));
      };
      try {
        const opening = indexedDB.open(this.name, 1);
        opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE);
        opening.onerror = () => fail(opening.error);
        opening.onsuccess = () => {
          const forget = (): void => {
            this.#opened = undefined;
          };
          opening.result.onclose = forget; // somebody clears the browser's data
          opening.result.onversionchange = () => {
            opening.result.close();
            forget();
          };
          resolve(opening.result);
        };
      } catch (problem) {
        fail(problem); // in some private windows it is there and may not be opened
      }
    });
    return this.#opened;
  }
}

class LocalStore implements Store {
  readonly where: string;

  constructor(readonly name: string) {
    this.where = `the browser's storage "${name}"`;
  }

  async read(): Promise<string | undefined> {
    try {
      return localStorage.getItem(this.name) ?? undefined;
    } catch (problem) {
      throw unusable(this.where, problem);
    }
  }

  async change<T>(change: (text: string | undefined) => Changed<T>): Promise<T> {
    return navigator.locks.request(`hubbub store ${this.name}`, async () => {
      const { keep, result } = change(await this.read());
      try {
        if (keep !== undefined) localStorage.setItem(this.name, keep);
      } catch (problem) {
        throw unusable(this.where, problem);
      }
      return result;
    });
  }
}
