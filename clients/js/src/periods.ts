/** Collection periods: what the one of a day is called. Days are those of the device's own calendar. */

import type { Period, Task } from "./task.js";

/** Bytes of a period's name on a sealed report; a task without periods has nothing to tell apart. */
export const PERIOD_BYTES: Record<Period, number> = { once: 0, day: 10, week: 8, month: 7 };

const DAY = 86_400_000;
const two = (number: number): string => String(number).padStart(2, "0");

/** The name of the collection period that a moment falls into. */
export function periodOf(period: Period, moment: Date): string {
  const [year, month, day] = [moment.getFullYear(), moment.getMonth(), moment.getDate()];
  if (period === "once") return "once";
  if (period === "month") return `${year}-${two(month + 1)}`;
  if (period === "day") return `${year}-${two(month + 1)}-${two(day)}`;
  // ISO weeks belong to the year that their Thursday is in. In UTC every day has as many hours as the next.
  const date = Date.UTC(year, month, day);
  const thursday = date + (3 - ((new Date(date).getUTCDay() + 6) % 7)) * DAY;
  const its = new Date(thursday).getUTCFullYear();
  return `${its}-W${two(1 + Math.floor((thursday - Date.UTC(its, 0, 1)) / DAY / 7))}`;
}

/** Whether a device whose turn was drawn from 0 .. rotation - 1 takes part in the period of this moment. */
export function takesPart(task: Pick<Task, "period" | "rotation">, turn: number, moment: Date): boolean {
  const [year, month, day] = [moment.getFullYear(), moment.getMonth(), moment.getDate()];
  const days = Date.UTC(year, month, day) / DAY + 719_163; // from the first day of the year 1, a Monday, which is 1
  const numbers = { once: 0, day: days, week: Math.floor((days - 1) / 7), month: 12 * year + month + 1 };
  return numbers[task.period] % task.rotation === turn;
}
