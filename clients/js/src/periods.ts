/** Collection periods: what the one of a day is called. Days are those of the device's own calendar. */

import { Refused } from "./errors.js";
import type { Period, Task } from "./task.js";

/** Bytes of a period's name on a sealed report; a task without periods has nothing to tell apart. */
export const PERIOD_BYTES: Record<Period, number> = { once: 0, day: 10, week: 8, month: 7 };

const DAY = 86_400_000;

/** The day of a moment by the device's own calendar, as a moment of UTC, where every day has as many hours as the next. */
function dayOf(moment: Date): Date {
  const year = moment.getFullYear();
  if (!/^\d{4}$/.test(String(year))) throw new Refused(`The clock shows the year ${year}: set it.`);
  return new Date(Date.UTC(year, moment.getMonth(), moment.getDate()));
}

/** The name of the collection period that a moment falls into. */
export function periodOf(period: Period, moment: Date): string {
  if (period === "once") return "once";
  const day = dayOf(moment);
  if (period !== "week") return day.toISOString().slice(0, PERIOD_BYTES[period]); // what 2026-11-16 begins with
  // ISO weeks belong to the year that their Thursday is in.
  const thursday = day.getTime() + (4 - (day.getUTCDay() || 7)) * DAY;
  const year = new Date(thursday).getUTCFullYear();
  const week = 1 + Math.floor((thursday - Date.UTC(year, 0, 1)) / DAY / 7);
  return `${year}-W${String(week).padStart(2, "0")}`;
}

/** Whether a device whose turn was drawn from 0 .. rotation - 1 takes part in the period of this moment. */
export function takesPart(task: Pick<Task, "period" | "rotation">, turn: number, moment: Date): boolean {
  const day = dayOf(moment);
  const days = day.getTime() / DAY + 719_163; // from the first day of the year 1, a Monday, which is 1
  const months = 12 * day.getUTCFullYear() + day.getUTCMonth() + 1;
  const numbers = { once: 0, day: days, week: Math.floor((days - 1) / 7), month: months };
  return numbers[task.period] % task.rotation === turn;
}
