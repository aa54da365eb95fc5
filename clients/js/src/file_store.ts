/**
 * The store of a device that runs Node: a file, which its processes change one after another.
 *
 * Node cannot lock files, so a lock is a chain of small files path.lock.1, path.lock.2, ..., of which the last counts:
 * it names the process that holds the lock, or nobody. Taking or returning the lock makes the next one, which only one
 * can do; whoever finds that there is a later one than its own (because its number had been used and cleared away) does
 * not hold it. The lock of a process that has died is taken over. The last one is never removed.
 */

import { randomBytes } from "node:crypto";
import { link, open, readdir, readFile, rename, unlink } from "node:fs/promises";
import { hostname } from "node:os";
import { basename, dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Refused } from "./errors.js";
import { type Changed, type Store, unusable } from "./store.js";

/** Milliseconds until a lock is asked for again, and for which it is asked for at all. */
const POLL = 5;
const PATIENCE = 20_000;
const NOBODY = "nobody";
/** Locks that this process has returned without being able to write so, because the disk is full. */
const returned = new Set<string>();

export class FileStore implements Store {
  readonly where: string;

  constructor(readonly path: string) {
    this.where = path;
  }

  async read(): Promise<string | undefined> {
    try {
      return await readFile(this.path, "utf8");
    } catch (problem) {
      if (codeOf(problem) === "ENOENT") return undefined;
      throw unusable(this.where, problem);
    }
  }

  async change<T>(change: (text: string | undefined) => Changed<T>): Promise<T> {
    const held = await this.#lock();
    try {
      const { keep, result } = change(await this.read());
      if (keep !== undefined) await this.#write(this.path, keep, rename);
      return result;
    } finally {
      await this.#write(this.#name(held + 1), NOBODY, link).catch(() => returned.add(this.#name(held)));
    }
  }

  /** Take the lock; its number. */
  async #lock(): Promise<number> {
    const me = `${hostname()} ${process.pid}`;
    for (const deadline = Date.now() + PATIENCE; ; await sleep(POLL)) {
      const last = (await this.#numbers()).at(-1) ?? 0;
      const holder = last ? await readFile(this.#name(last), "utf8").catch(() => "somebody") : NOBODY;
      if (holder === NOBODY || isDead(holder) || returned.has(this.#name(last))) {
        const mine = last + 1;
        if (await this.#write(this.#name(mine), me, link)) {
          const numbers = await this.#numbers();
          if (numbers.at(-1) === mine) {
            for (const each of numbers.slice(0, -1)) await unlink(this.#name(each)).catch(() => {});
            return mine;
          }
          await unlink(this.#name(mine)).catch(() => {});
        }
      }
      if (Date.now() > deadline) {
        throw new Refused(`${this.path} is in use by ${holder} (computer, process); nothing was changed.`);
      }
    }
  }

  async #numbers(): Promise<number[]> {
    const name = `${basename(this.path)}.lock.`;
    try {
      const found = (await readdir(dirname(this.path))).filter((each) => each.startsWith(name));
      return found.map((each) => Number(each.slice(name.length))).sort((one, other) => one - other);
    } catch (problem) {
      throw unusable(this.where, problem);
    }
  }

  #name(number: number): string {
    return `${this.path}.lock.${number}`;
  }

  /** Write a file whole, force it to disk and then give it its name; false if the name is taken and stays so. */
  async #write(path: string, text: string, publish: typeof link): Promise<boolean> {
    const draft = `${this.path}.draft.${randomBytes(8).toString("hex")}`;
    try {
      await synced(draft, "wx", text);
      await publish(draft, path);
      if (process.platform !== "win32") await synced(dirname(this.path), "r"); // Windows syncs no folders
      return true;
    } catch (problem) {
      if (codeOf(problem) === "EEXIST") return false;
      throw unusable(this.where, problem);
    } finally {
      await unlink(draft).catch(() => {});
    }
  }
}

async function synced(path: string, flags: string, text?: string): Promise<void> {
  const file = await open(path, flags, 0o600);
  try {
    if (text !== undefined) await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Whether a holder is a process of this computer that is no more. */
function isDead(holder: string): boolean {
  const [computer, number] = holder.split(" ");
  if (computer !== hostname() || !(Number(number) > 0)) return false;
  try {
    process.kill(Number(number), 0);
    return false;
  } catch (problem) {
    return codeOf(problem) === "ESRCH";
  }
}

function codeOf(problem: unknown): string | undefined {
  return (problem as { code?: string }).code;
}
