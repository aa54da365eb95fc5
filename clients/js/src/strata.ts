/**
 * Strata: the reports with one combination of public labels, of one period. In Python: hubbub/protocol/strata.py.
 *
 * A task may have labels, each with a closed list of values. They are public: a batch says them in the clear beside its
 * reports, as it says its period, and a sealed report says them in its first bytes.
 */

import { utf8 } from "./bytes.js";
import { Refused } from "./errors.js";
import { PERIOD_BYTES } from "./periods.js";
import type { Task } from "./task.js";

/** What is public about whoever reports, by name. */
export type Labels = { readonly [name: string]: string };

/** What a batch says of its reports beside them. */
export interface Stratum {
  labels?: string;
  period?: string;
}

/** All labels of a task by name, each with its list. */
export type Lists = { readonly [name: string]: readonly string[] };

/** Whether lists are such as Python's tasks have: what can stand in a header, and numbers of four digits. */
export function areLists(lists: Lists): boolean {
  const isValue = (value: unknown): boolean =>
    typeof value === "string" && /^[A-Za-z0-9][\w.+-]{0,39}$/.test(value);
  let count = 1;
  for (const [name, list] of Object.entries(lists)) {
    if (!/^[a-z][a-z0-9_]{0,31}$/.test(name) || !list.every(isValue)) return false;
    count *= list.length;
  }
  return count <= 65_536;
}

/** The labels of a task by name, in the order in which strata have them. */
function namesOf(task: Task): string[] {
  return Object.keys(task.labels).sort();
}

/** The values of a task's labels in the order of their names; refused where one is missing, unknown or not listed. */
export function labelsFrom(task: Task, given: Labels = {}): string[] {
  const names = namesOf(task);
  for (const name of Object.keys(given)) {
    if (!names.includes(name)) {
      const known = names.length ? `its labels are ${names.join(", ")}` : "it has none";
      throw new Refused(`Task "${task.name}" has no label "${name}": ${known}.`);
    }
  }
  return names.map((name) => {
    const [value, list] = [given[name], task.labels[name]];
    if (typeof value !== "string") {
      throw new Refused(`The label "${name}" is missing, or no text such as "${list[0]}".`);
    }
    if (!list.includes(value)) {
      throw new Refused(`"${value}" is no ${name} of task "${task.name}"; to list it, make another task.`);
    }
    return value;
  });
}

/** A combination of labels as text: country=de,version=2. */
export function labelsText(task: Task, values: readonly string[]): string {
  const names = namesOf(task);
  return values.map((value, place) => `${names[place]}=${value}`).join();
}

/** Bytes at the beginning of a sealed item that say its stratum. */
export function prefixBytes(task: Task): number {
  return PERIOD_BYTES[task.period] + (namesOf(task).length ? 4 : 0);
}

/** What a sealed item says of its stratum: the period's name, and the number of the labels in four digits. */
export function prefixOf(task: Task, period: string, values: readonly string[]): Uint8Array {
  const lists = namesOf(task).map((name) => task.labels[name]);
  // Places in the lists as digits, the first label by name counting most.
  const number = lists.reduce((sum, list, place) => sum * list.length + list.indexOf(values[place]), 0);
  return utf8((period === "once" ? "" : period) + (lists.length ? number.toString(16).padStart(4, "0") : ""));
}
