/** From a record to report bytes. Beside it in Python: hubbub/device/client.py. */
import { type Coins, SecretCoins, type Seeds, systemSeeds } from "./coins.js";
import { Refused } from "./errors.js";
import {
  type DeviceRecord,
  type Entries,
  emptySummary,
  encodeRecord,
  type Summary,
  sampleDown,
} from "./record.js";
import type { Task } from "./task.js";

export type { DeviceRecord };

/** Makes private reports for one task. It draws its coins from the operating system and accepts no others. */
export class Client {
  /** What happened to the records so far: what was left out, clipped, sampled down. It stays on the device. */
  readonly summary: Summary = emptySummary();

  constructor(readonly task: Task) {}

  /** One private report of a record: a map key -> value, or a collection of keys. */
  report(record: DeviceRecord): Uint8Array<ArrayBuffer> {
    if (this.task.needsNonce) {
      throw new Refused(`Task "${this.task.name}" needs a nonce of its collector: use an Uploader.`);
    }
    return privatize(this.task, record, new SecretCoins(), systemSeeds, this.summary);
  }
}

/** The same with any coins, for tests: whoever knows the coins of a report can undo its noise. */
export function privatize(
  task: Task,
  record: DeviceRecord,
  coins: Coins,
  seeds: Seeds,
  summary: Summary,
): Uint8Array<ArrayBuffer> {
  return randomized(task, encodeRecord(task.keys, task.scale, record, summary), coins, seeds, summary);
}

/** The same of a record that is encoded. */
export function randomized(
  task: Task,
  encoded: Entries,
  coins: Coins,
  seeds: Seeds,
  summary: Summary,
): Uint8Array<ArrayBuffer> {
  const marks = task.keys.universe.count_lengths ? task.keys.lengthIds() : undefined;
  const entries = sampleDown(encoded, task.maxEntries ?? Infinity, coins, marks, summary);
  return task.randomize(entries, coins, seeds);
}
